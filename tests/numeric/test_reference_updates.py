"""The package beside the reference implementations of tests/reference: equal losses, advantages and parameters.

Each test trains a real algorithm with the real loop, then trains its initial weights again with the reference, in
float64, on the same token ids. The package computes in float32, hence the tolerances. Its pure functions are compared
in float64 at the end.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference import dpo, grpo, ppo, reward_model, sft
from support import ONE_LAYER, SMALL_WORLD, planned, plant
from torch import Tensor, nn

from rlhf_lab.config import registry
from rlhf_lab.core.files import read_jsonl
from rlhf_lab.core.types import RewardBatch
from rlhf_lab.losses.advantage import GroupScores, gae, whiten
from rlhf_lab.losses.advantage import grpo as group_z_scores
from rlhf_lab.losses.policy import ClipRange, PolicyTokens, k3, ppo_clip, value_loss
from rlhf_lab.losses.preference import PairLogps
from rlhf_lab.losses.preference import dpo as dpo_loss
from rlhf_lab.losses.reward_model import bradley_terry
from rlhf_lab.rewards.settings import RewardGraph
from rlhf_lab.sampling.experience import EpisodeGroup
from rlhf_lab.stages.execute import execute
from rlhf_lab.training.loop import Algorithm, train
from rlhf_lab.training.run import Run

EXACT = 1e-12
"""Tolerance of float64."""
ROUNDING = 1e-4
"""Tolerance of float32 over several updates, relative to the distance that a parameter has moved."""

LR, EPS, MAX_GRAD_NORM = 0.01, 0.01, 0.3
# With a small ε the first update of Adam is lr·sign(g), whatever the scale of the loss: a wrong divisor or missing
# clipping would not show. With this one it does.
UPDATES = (
    *("algorithm.optimizer=adamw", f"algorithm.lr={LR}", f"algorithm.adam_eps={EPS}"),
    *(f"algorithm.max_grad_norm={MAX_GRAD_NORM}", "algorithm.log_every_steps=1", "checkpoint.every_steps=0"),
)
DECAY = 0.1
OPTIMIZER: dict[str, Any] = {"lr": LR, "eps": EPS, "max_grad_norm": MAX_GRAD_NORM}
DECAYED = {**OPTIMIZER, "weight_decay": DECAY}
"""The same settings of the reference implementations."""
MAX_LENGTH = 48
PASSES = (
    f"algorithm.max_length={MAX_LENGTH}",  # responses that are longer lose their end, EOS included
    "algorithm.batch_size=32",
    "algorithm.epochs=2",
    "algorithm.micro_batch_tokens=600",  # several passes per update
    f"algorithm.weight_decay={DECAY}",
)
CONSTANT_RATE = ("algorithm.warmup_fraction=0", "algorithm.final_lr_fraction=1")


@pytest.fixture(scope="module")
def speaker(tmp_path_factory) -> Path:
    """A policy that has trained for long enough to end most of its responses."""
    out = tmp_path_factory.mktemp("speaker")
    stage = planned(
        "sft", *SMALL_WORLD, *ONE_LAYER, "algorithm.epochs=24", f"outputs={out}", "checkpoint.every_steps=0"
    )
    execute(stage)
    return Path(stage.model)


class Float64(nn.Module):
    """A copy of a module in float64, called as the reference implementations call models: with token ids alone."""

    def __init__(self, module: nn.Module, outputs: Callable[[Any, Tensor], Tensor]):
        super().__init__()
        self.module = copy.deepcopy(module).double()
        self.outputs = outputs

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return self.outputs(self.module, tokens_BT)


def logits(model: Any, tokens_BT: Tensor) -> Tensor:
    return model(input_ids=tokens_BT, use_cache=False).logits


def scores(model: Any, tokens_BT: Tensor) -> Tensor:
    return model.score(model.base_model(input_ids=tokens_BT, use_cache=False).last_hidden_state)[..., 0]


def values(critic: Any, tokens_BT: Tensor) -> Tensor:
    return critic.head(critic.trunk(input_ids=tokens_BT, use_cache=False).last_hidden_state)[..., 0]


def build(recipe: str, directory: Path, needs: dict[str, str], *overrides: str, reward: Any = None) -> Any:
    """An algorithm that is ready to train; `reward` replaces `reward=length`."""
    roles = [f"needs.{role}={path}" for role, path in needs.items()]
    config = planned(recipe, *SMALL_WORLD, *ONE_LAYER, *UPDATES, *roles, *overrides, f"outputs={directory}").config
    if reward is not None:
        config = config.replace(reward=RewardGraph(terms={"planted": reward}))
    return registry.build("algorithm", config.algorithm, Run(directory, config, needs))


def trained(algorithm: Algorithm) -> list[dict[str, float]]:
    """Train and return the logged row of every update."""
    run = algorithm.run  # type: ignore[attr-defined]
    train(algorithm, run, "reference")
    return [row for row in read_jsonl(run.directory / "metrics.jsonl") if "grad_norm" in row]


def assert_same_parameters(module: nn.Module, reference: Float64, start: Float64) -> None:
    """Every tensor has moved, and to the same place."""
    expected, initial = dict(reference.module.named_parameters()), dict(start.module.named_parameters())
    for name, parameter in module.named_parameters():
        moved = float((expected[name] - initial[name]).detach().norm())
        error = float((parameter.double() - expected[name]).detach().norm())
        assert moved > 1e-5, name
        # A weight around 1 is itself only known to 1e-7 in float32.
        assert error < ROUNDING * moved + 1e-6, f"{name}: {error / moved:.1e} of the distance"


def assert_same(logged: Sequence[float], expected: Sequence[Tensor]) -> None:
    assert logged == pytest.approx([float(value) for value in expected], rel=1e-4, abs=1e-5)


def assert_same_training(rows: list[dict[str, float]], losses: Sequence[Tensor], norms: Sequence[Tensor]) -> None:
    """Loss and gradient norm of all six updates, some of which are clipped."""
    assert_same([row["loss"] for row in rows], losses)
    assert_same([row["grad_norm"] for row in rows], norms)
    assert max(norms) > MAX_GRAD_NORM and len(losses) == 6


def token_ids(algorithm: Any, prompt: str, response: str) -> tuple[list[int], list[int]]:
    """Prompt and response as the model reads them. The response ends with EOS, unless the row is too long for it."""

    def encoded(text: str) -> list[int]:
        return algorithm.encoder.tokenizer(text, add_special_tokens=False)["input_ids"]

    prompt_ids = encoded(prompt)
    response_ids = [*encoded(f" {response}"), algorithm.encoder.tokenizer.eos_token_id]
    return prompt_ids, response_ids[: MAX_LENGTH - len(prompt_ids)]


def assert_uneven(rows: Sequence[sft.Row], eos: int) -> None:
    """Prompts and responses have several lengths, and only some of the responses end with EOS."""
    assert len({len(prompt) for prompt, _ in rows}) >= 3 and len({len(response) for _, response in rows}) >= 3
    assert 0 < sum(response[-1] != eos for _, response in rows) < len(rows)


# 1. Supervised fine-tuning, reward model, DPO: all updates of a run.


def test_sft(tmp_path):
    schedule = ("algorithm.warmup_fraction=0.3", "algorithm.final_lr_fraction=0.1")
    algorithm = build("sft", tmp_path, {}, *PASSES, *schedule)
    start = Float64(algorithm.model, logits)
    rows = trained(algorithm)

    pairs = [pair for pair in algorithm.run.corpus.train if algorithm.settings.uses_row(pair)]
    data = [token_ids(algorithm, pair.prompt, pair.chosen) for pair in pairs]
    assert_uneven(data, algorithm.encoder.eos_id)
    settings = sft.Settings(**DECAYED, warmup_fraction=0.3, final_lr_fraction=0.1)
    model = copy.deepcopy(start)
    expected = sft.train(model, [[data[i] for i in step] for step in algorithm.steps], settings)
    assert_same_training(rows, *expected)
    assert_same_parameters(algorithm.model, model, start)


def test_reward_model(policy, tmp_path):
    loss = ("algorithm.centering=0.1", "algorithm.margin=0.5", "algorithm.on_policy_fraction=0")
    algorithm = build("reward_model", tmp_path, {"policy": str(policy)}, *PASSES, *CONSTANT_RATE, *loss)
    start = Float64(algorithm.model, scores)
    rows = trained(algorithm)

    model = copy.deepcopy(start)
    settings = reward_model.Settings(centering=0.1, margin=0.5, **DECAYED)
    assert_same_training(rows, *reward_model.train(model, pairs_of_steps(algorithm), settings))
    assert_same_parameters(algorithm.model, model, start)


def test_dpo(policy, tmp_path):
    loss = ("algorithm.beta=0.3", "algorithm.label_smoothing=0.1", "reward=length", "needs.reward=null")
    algorithm = build("dpo", tmp_path, {"policy": str(policy)}, *PASSES, *CONSTANT_RATE, *loss)
    start = Float64(algorithm.model, logits)
    rows = trained(algorithm)

    model = copy.deepcopy(start)
    settings = dpo.Settings(beta=0.3, label_smoothing=0.1, **DECAYED)
    assert_same_training(rows, *dpo.train(model, start, pairs_of_steps(algorithm), settings))
    assert_same_parameters(algorithm.model, model, start)


def pairs_of_steps(algorithm: Any) -> list[list[dpo.Pair]]:
    """The pairs of every update as token ids."""
    pairs = []
    for pair in algorithm.run.corpus.train:
        prompt, chosen = token_ids(algorithm, pair.prompt, pair.chosen)
        _, rejected = token_ids(algorithm, pair.prompt, pair.rejected)
        pairs.append((prompt, chosen, rejected))
    rows = [(prompt, response) for prompt, *responses in pairs for response in responses]
    assert_uneven(rows, algorithm.encoder.eos_id)
    return [[pairs[i] for i in step] for step in algorithm.steps]


# 2. PPO and GRPO: two iterations of four updates. In the second one, policy and reference differ from its start.


@dataclass
class Iteration:
    """What an iteration sampled, and what the package computed from it.

    Attributes:
        groups: sampled responses of each prompt with their rewards.
        updates: responses of each update.
        advantage_N: advantage of each response token.
    """

    groups: list[EpisodeGroup]
    updates: list[list[int]] = field(default_factory=list)
    advantage_N: Tensor = field(default_factory=lambda: torch.zeros(0))

    @property
    def prompts(self) -> list[list[int]]:
        return [group.episodes[0].prompt_ids for group in self.groups]

    @property
    def sampled(self) -> list[list[list[int]]]:
        return [[episode.token_ids for episode in group.episodes] for group in self.groups]

    @property
    def rewards_BG(self) -> Tensor:
        return torch.tensor([group.rewards for group in self.groups], dtype=torch.float64)


def record(algorithm: Any) -> list[Iteration]:
    """Return a list that the algorithm fills while it trains."""
    iterations: list[Iteration] = []
    draw, plan_updates = algorithm.rollouts.draw, algorithm._plan_updates

    def draw_and_record(model: nn.Module, iteration: int) -> tuple[list[EpisodeGroup], dict[str, float]]:
        groups, metrics = draw(model, iteration)
        iterations.append(Iteration(groups))
        return groups, metrics

    def plan_and_record() -> None:
        plan_updates()
        iterations[-1].updates = algorithm.plan
        iterations[-1].advantage_N = algorithm.experience.tokens["advantage"]

    algorithm.rollouts.draw, algorithm._plan_updates = draw_and_record, plan_and_record
    return iterations


ROLLOUTS = (
    *("algorithm.iterations=2", "algorithm.epochs=2", "algorithm.batch_size=16", "algorithm.micro_batch_tokens=400"),
    *("rollout.max_new_tokens=40", "rollout.temperature=0.8"),
)
TEMPERATURE = 0.8
PENALTY = 0.5


def test_ppo(speaker, reward_model, tmp_path):
    credit = ("algorithm.beta=0.7", "algorithm.gamma=0.98", "algorithm.lam=0.9", "algorithm.value_lam=0.9")
    size = ("algorithm.prompts_per_iteration=32", "algorithm.critic_warmup=0", f"algorithm.critic_lr={2 * LR}")
    more = ("algorithm.value_weight=0.3", f"algorithm.missing_eos_penalty={PENALTY}")
    needs = {"policy": str(speaker), "reward": str(reward_model)}
    algorithm = build("ppo", tmp_path, needs, *ROLLOUTS, *credit, *size, *more)
    iterations = record(algorithm)
    start, critic_start = Float64(algorithm.model, logits), Float64(algorithm.critic, values)
    rows = trained(algorithm)

    settings = ppo.Settings(
        beta=0.7,
        gamma=0.98,
        lam=0.9,
        value_weight=0.3,
        missing_eos_penalty=PENALTY,
        temperature=TEMPERATURE,
        critic_lr=2 * LR,
        **OPTIMIZER,
    )
    model, critic = copy.deepcopy(start), copy.deepcopy(critic_start)
    optimizer = ppo.adam(model, critic, settings)
    eos = algorithm.encoder.eos_id
    losses = []
    for iteration in iterations:
        responses = [response for (response,) in iteration.sampled]
        rewards = iteration.rewards_BG[:, 0].tolist()
        batch = ppo.prepare(model, critic, start, iteration.prompts, responses, rewards, eos, settings)
        assert_uneven(list(zip(iteration.prompts, responses, strict=True)), eos)
        assert torch.allclose(iteration.advantage_N.double(), batch.advantage[batch.mask], atol=ROUNDING)
        losses += ppo.train(model, critic, optimizer, batch, iteration.updates, settings)
    assert_same([row["loss"] - 0.3 * row["value_loss"] for row in rows], [loss.policy for loss in losses])
    assert_same([row["value_loss"] for row in rows], [loss.value for loss in losses])
    assert_same([row["clip_fraction"] for row in rows], [loss.clipped_fraction for loss in losses])
    tokens = algorithm.experience.tokens
    assert float((tokens["old"] - tokens["ref"]).mean()) > 0.01, "the penalty of the second iteration is not 0"
    assert max(loss.clipped_fraction for loss in losses) > 0.05
    assert max(row["grad_norm"] for row in rows) > MAX_GRAD_NORM
    assert max(row["grad_norm/critic"] for row in rows) > MAX_GRAD_NORM
    assert_same_parameters(algorithm.model, model, start)
    assert_same_parameters(algorithm.critic, critic, critic_start)


class LettersOfSomePrompts:
    """Reward: e to the number of letters of a response in thirties, but 4.7 for every response to half of the prompts.

    In float32 the mean of six times 4.7 is not 4.7, and the difference is as large as the ε of the z-score. Different
    powers of e have no mean that is one of them: such a response would have the advantage 0 up to rounding, which
    decides whether its tokens count as clipped.
    """

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        texts = zip(prompts, responses, strict=True)
        constant = float(np.float32(4.7))
        scores = [math.exp(len(text) / 30) if len(prompt) % 2 else constant for prompt, text in texts]
        return RewardBatch(np.array(scores))


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
def test_grpo(aggregation, speaker, monkeypatch, tmp_path):
    reward = plant(monkeypatch, lambda settings, run: LettersOfSomePrompts())
    size = (
        *("algorithm.prompts_per_iteration=8", "algorithm.group_size=6", "algorithm.batch_size=24"),
        "algorithm.beta=0.7",
    )
    more = (f"algorithm.aggregation={aggregation}", f"algorithm.missing_eos_penalty={PENALTY}")
    no_reward_model = ("reward=length", "needs.reward=null")
    needs = {"policy": str(speaker)}
    algorithm = build("grpo", tmp_path, needs, *ROLLOUTS, *size, *more, *no_reward_model, reward=reward)
    iterations = record(algorithm)
    start = Float64(algorithm.model, logits)
    rows = trained(algorithm)

    settings = grpo.Settings(
        beta=0.7,
        per_response=aggregation == "sequence_mean",
        missing_eos_penalty=PENALTY,
        temperature=TEMPERATURE,
        **OPTIMIZER,
    )
    model = copy.deepcopy(start)
    optimizer = grpo.adam(model, settings)
    eos = algorithm.encoder.eos_id
    losses = []
    for iteration in iterations:
        prompts, sampled = iteration.prompts, iteration.sampled
        batch = grpo.prepare(model, start, prompts, sampled, iteration.rewards_BG, eos, settings)
        assert_uneven([(p, r) for p, group in zip(prompts, sampled, strict=True) for r in group], eos)
        advantage_N = batch.advantage[:, None].expand_as(batch.mask)[batch.mask]
        assert torch.allclose(iteration.advantage_N.double(), advantage_N, atol=ROUNDING)
        losses += grpo.train(model, optimizer, batch, iteration.updates, settings)
    advantage_N = torch.cat([iteration.advantage_N for iteration in iterations])
    assert 0 < float((advantage_N == 0).double().mean()) < 0.5, "some group has equal scores"
    assert_same([row["loss"] for row in rows], [loss.loss for loss in losses])
    assert_same([row["kl_penalty"] for row in rows], [loss.kl for loss in losses])
    assert_same([row["clip_fraction"] for row in rows], [loss.clipped_fraction for loss in losses])
    assert_same([row["grad_norm"] for row in rows], [loss.norm for loss in losses])
    assert max(loss.clipped_fraction for loss in losses) > 0.05 and max(loss.kl for loss in losses) > 0.01
    assert max(loss.norm for loss in losses) > MAX_GRAD_NORM
    assert_same_parameters(algorithm.model, model, start)


# 3. Pure functions of the package in float64.


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_pair_losses_in_float64():
    chosen, rejected, ref_chosen, ref_rejected = (5 * random(64, seed=seed) for seed in range(4))
    mine = dpo_loss(PairLogps(chosen, rejected), PairLogps(ref_chosen, ref_rejected), beta=0.3, label_smoothing=0.1)
    settings = dpo.Settings(beta=0.3, label_smoothing=0.1)
    expected = dpo.pair_loss(chosen, rejected, ref_chosen, ref_rejected, settings)
    assert torch.allclose(mine.per_pair_B, expected, atol=EXACT, rtol=EXACT)
    expected = reward_model.pair_loss(chosen, rejected, reward_model.Settings(centering=0.1, margin=0.5))
    assert torch.allclose(bradley_terry(chosen, rejected, margin=0.5, centering=0.1), expected, atol=EXACT, rtol=EXACT)


def test_advantages_in_float64():
    """Responses of 7, 3 and 1 tokens behind prompts of 2, 4 and 1; groups with different and with equal scores."""
    length_R, prompt_R = torch.tensor([7, 3, 1]), torch.tensor([2, 4, 1])
    column_T = torch.arange(int((prompt_R + length_R).max()))
    mask_RT = (column_T >= prompt_R[:, None]) & (column_T < (prompt_R + length_R)[:, None])
    reward_N, value_N = random(11, seed=0), random(11, seed=1)

    def placed(values_N: Tensor, mask: Tensor) -> Tensor:
        return torch.full(mask.shape, 9.0, dtype=torch.float64).masked_scatter(mask, values_N)

    # The package keeps only response tokens, the reference keeps them behind their prompts. The 9s must not count.
    alone_RT = torch.arange(7) < length_R[:, None]
    mine_RT = gae(placed(reward_N, alone_RT), placed(value_N, alone_RT), length_R, gamma=0.98, lam=0.9)
    expected_RT = ppo.gae(placed(reward_N, mask_RT), placed(value_N, mask_RT), mask_RT, 0.98, 0.9)
    assert torch.allclose(mine_RT[alone_RT], expected_RT[mask_RT], atol=EXACT)
    expected_N = ppo.whiten(expected_RT, mask_RT)[mask_RT]
    assert torch.allclose(whiten(mine_RT[alone_RT]), expected_N, atol=EXACT)

    score_BG = random(3, 4, seed=2)
    score_BG[1] = 0.1
    expected_BG = grpo.group_advantages(score_BG)
    assert torch.allclose(group_z_scores(GroupScores(score_BG)), expected_BG, atol=EXACT)
    assert float(expected_BG[1].abs().max()) < 1e-9 < float(expected_BG[0].abs().min())


def test_clipped_losses_in_float64():
    """The reference reads its log-probabilities from logits: all three responses have 5 tokens behind 2 of a prompt."""
    tokens_RT = torch.randint(11, (3, 7), generator=torch.Generator().manual_seed(0))
    mask_RT = torch.arange(7).expand(3, 7) >= 2
    logits_RTV, value_RT = random(3, 7, 11, seed=1), random(3, 7, seed=2)
    logp_RT = grpo.token_logps(lambda tokens: logits_RTV, tokens_RT, TEMPERATURE)
    old_RT, ref_RT = (logp_RT + 0.3 * random(3, 7, seed=seed) for seed in (3, 4))
    advantage_R = random(3, seed=5)
    advantage_RT = advantage_R[:, None].expand(3, 7)

    logp_N, old_N, ref_N, advantage_N = (v[mask_RT] for v in (logp_RT, old_RT, ref_RT, advantage_RT))
    row_N = torch.arange(3).repeat_interleave(5)
    mine = ppo_clip(PolicyTokens(logp_N, old_N, advantage_N, row_N, 3), ClipRange(0.2, 0.2))
    penalty_N = k3(logp_N, ref_N)
    group_batch = grpo.Batch(tokens_RT, mask_RT, old_RT, ref_RT, advantage_R)
    settings = grpo.Settings(beta=0.7, temperature=TEMPERATURE)
    loss, mean_kl, clipped_fraction = grpo.losses(lambda tokens: logits_RTV, group_batch, settings)
    assert float(loss) == pytest.approx(float((mine.per_token + 0.7 * penalty_N).mean()), abs=EXACT)
    assert float(mean_kl) == pytest.approx(float(penalty_N.mean()), abs=EXACT)
    assert 0 < float(clipped_fraction) == pytest.approx(float(mine.clipped.double().mean()))

    returns_RT, old_value_RT = value_RT + random(3, 7, seed=6), value_RT + 0.3 * random(3, 7, seed=7)
    batch = ppo.Batch(tokens_RT, mask_RT, old_RT, old_value_RT, advantage_RT, returns_RT)
    state_value_RT = value_RT.roll(-1, 1)  # the critic's value at t - 1 belongs to the token at t
    losses = ppo.losses(lambda t: logits_RTV, lambda t: state_value_RT, batch, ppo.Settings(temperature=TEMPERATURE))
    mine_value_N = value_loss(value_RT[mask_RT], old_value_RT[mask_RT], returns_RT[mask_RT], clip=0.2)
    assert float(losses.policy) == pytest.approx(float(mine.per_token.mean()), abs=EXACT)
    assert float(losses.value) == pytest.approx(float(mine_value_N.mean()), abs=EXACT)
