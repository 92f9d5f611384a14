"""Each policy-optimisation algorithm learns a planted reward (say "blue") in seconds; its switches do something."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import planned, plant

from rlhf_lab.algorithms.policy_gradient.on_policy import OnPolicy
from rlhf_lab.config import registry
from rlhf_lab.core.errors import NumericError
from rlhf_lab.core.files import read_jsonl
from rlhf_lab.core.types import RewardBatch
from rlhf_lab.rewards.settings import RewardGraph
from rlhf_lab.training.loop import train
from rlhf_lab.training.run import Result, Run

SIZE = (
    *("evaluation.prompts=8", "evaluation.samples_per_prompt=4", "evaluation.pairs=20", "checkpoint.every_steps=0"),
    *("rollout.max_new_tokens=10", "algorithm.lr=3e-3", "algorithm.log_every_steps=1"),
)


class CountsBlue:
    """Reward: number of times a response says blue."""

    def __call__(self, prompts, responses):
        return RewardBatch(np.array([text.split().count("blue") for text in responses], dtype=float))


class Abstains(CountsBlue):
    """The same, but it abstains on responses that start with "red"."""

    def __call__(self, prompts, responses):
        total = super().__call__(prompts, responses).total_N
        return RewardBatch(np.where([text.startswith("red") for text in responses], np.nan, total))


@pytest.fixture
def reward(monkeypatch) -> dict[str, Any]:
    """The planted reward of a plug-in; `reward["class"]` may be exchanged."""
    chosen: dict[str, Any] = {"class": CountsBlue}
    chosen["settings"] = plant(monkeypatch, lambda settings, run: chosen["class"]())
    return chosen


def build(recipe: str, toy, reward, directory: Path, *overrides: str) -> OnPolicy:
    data, policy = toy
    """The planted reward replaces `reward=length`; PPO has a fresh critic and no warm-up by default."""
    named = {override.partition("=")[0] for override in overrides}
    usual = {"algorithm.critic": "zero", "algorithm.critic_warmup": "0"} if recipe == "ppo" else {}
    critic = [f"{key}={value}" for key, value in usual.items() if key not in named]
    config = planned(
        recipe,
        *("data=pairs", f"data.path={data}", f"needs.policy={policy}", "needs.reward=null", "reward=length"),
        *SIZE,
        *critic,
        *overrides,
    ).config
    directory.mkdir(exist_ok=True)
    run = Run(
        directory, config.replace(reward=RewardGraph(terms={"planted": reward["settings"]})), {"policy": str(policy)}
    )
    return registry.build("algorithm", config.algorithm, run)


def learn(algorithm: OnPolicy) -> tuple[Result, list[dict]]:
    train(algorithm, algorithm.run, "policy")
    return algorithm.finish(), read_jsonl(algorithm.run.directory / "metrics.jsonl")


def column(rows: list[dict], key: str) -> list[float]:
    return [row[key] for row in rows if key in row]


@pytest.mark.parametrize(
    ("recipe", "overrides"),
    [
        ("ppo", ("algorithm.beta=0.02", "algorithm.critic_warmup=1")),
        ("ppo", ("algorithm.critic=shared", "algorithm.critic_warmup=0", "algorithm.kl_controller=none")),
        *(("grpo", (f"algorithm={name}",)) for name in ("grpo", "remax", "gspo", "canon")),
        *(
            pytest.param("grpo", (f"algorithm={name}",), marks=pytest.mark.slow)
            for name in ("dr_grpo", "dapo", "cispo")
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value).replace("algorithm", ""),
)
def test_it_learns_the_planted_reward(recipe, overrides, toy, reward, tmp_path):
    size = ("algorithm.iterations=16", "algorithm.epochs=2", "algorithm.batch_size=32", "algorithm.beta=0.02")
    if any("gspo" in o for o in overrides):
        size = (*size, "algorithm.lr=1e-2")  # its trust region is narrow by design
    if any("dapo" in o for o in overrides):
        size = (*size, "algorithm.overlong_tokens=4")  # its default is for longer responses
    result, rows = learn(build(recipe, toy, reward, tmp_path, *size, *overrides))
    sft, trained = (policy["metrics"] for policy in result.policies)
    assert trained["proxy"]["mean"] > sft["proxy"]["mean"] + 1
    assert trained["kl"]["mean"] > 0
    rewards = column(rows, "reward")
    assert np.mean(rewards[-3:]) > np.mean(rewards[:2]) + 0.5


def test_the_first_step_starts_at_ratio_one_and_kl_zero(toy, reward, tmp_path):
    algorithm = build("ppo", toy, reward, tmp_path, "algorithm.iterations=1", "algorithm.critic_warmup=0")
    batch = algorithm.collect(0)
    found = [algorithm.loss(micro).metrics for micro in batch.micro]
    assert max(float(metrics["approx_kl"].abs().max()) for metrics in found) < 1e-8
    assert sum(float(metrics["clip_fraction"].sum()) for metrics in found) == 0
    row = read_jsonl(tmp_path / "metrics.jsonl")[0]
    assert abs(row["kl"]) < 1e-4 and row["step0_sampler_gap"] < 1e-4


def test_a_reference_that_is_another_model_is_refused(toy, reward, tmp_path):
    algorithm = build("ppo", toy, reward, tmp_path, "algorithm.iterations=1")
    with torch.no_grad():
        next(algorithm.reference.parameters()).mul_(1.5)
    with pytest.raises(NumericError, match="before the first update"):
        algorithm.collect(0)


@pytest.mark.slow
def test_kl_controllers(toy, reward, tmp_path):
    """Without control no penalty is paid; the adaptive controller turns KL around."""
    size = ("algorithm.iterations=40", "algorithm.batch_size=64", "algorithm.lr=5e-3", "algorithm.kl_target=1.0")
    steered = ("algorithm.kl_controller=adaptive", "algorithm.kl_horizon=64", "algorithm.beta=0.3")
    free, rows = learn(build("grpo", toy, reward, tmp_path / "none", *size, "algorithm.kl_controller=none"))
    assert set(column(rows, "beta")) == {0.0} and np.mean(column(rows, "kl")[-5:]) > 5
    result, rows = learn(build("grpo", toy, reward, tmp_path / "adaptive", *size, *steered, "algorithm=rloo"))
    kl = column(rows, "kl")
    assert kl[-1] < max(kl) - 1 and kl[-1] < 4
    assert result.metrics["beta"] > 0.1
    assert free.policies[-1]["metrics"]["kl"]["low"] > 2 * result.policies[-1]["metrics"]["kl"]["high"]


def test_dynamic_sampling_replaces_wasted_groups(toy, reward, tmp_path):
    """Two responses often say blue equally often."""
    size = ("algorithm.iterations=1", "algorithm.group_size=2", "algorithm.prompts_per_iteration=16")
    size = (*size, "algorithm.batch_size=32")
    simple = build("grpo", toy, reward, tmp_path / "plain", *size)
    dynamic = build("grpo", toy, reward, tmp_path / "dynamic", *size, "algorithm.dynamic_sampling=4")
    for algorithm in (simple, dynamic):
        algorithm.collect(0)
    zero = [int((algorithm.experience.tokens["advantage"] == 0).sum()) for algorithm in (simple, dynamic)]
    assert zero[0] > 0 and zero[1] < zero[0]
    assert simple.rollouts.totals()["wasted_groups"] > 0
    assert dynamic.rollouts.totals()["groups"] > 16
    assert len(dynamic.experience.rows) == 32


@pytest.mark.parametrize("how", ["best", "best_random", "best_worst"])
def test_a_rollout_filter_trains_on_the_ends_of_a_larger_group(how, toy, reward, tmp_path):
    """Two of eight are kept by rank; every sampled token counts, and what is logged is of all samples."""
    size = ("algorithm.iterations=2", "algorithm.group_size=2", "algorithm.prompts_per_iteration=16")
    size = (*size, "algorithm.batch_size=32", f"algorithm.rollout_filter={how}", "algorithm.filter_pool=8")
    algorithm = build("grpo", toy, reward, tmp_path, *size)
    groups, metrics = algorithm.rollouts.draw(algorithm.model, 0)
    for group in groups:
        pool = sorted(group.sampled.rewards)
        assert len(group.episodes) == len(group.scores) == 2 and len(pool) == 8
        responses = [episode.response for episode in group.episodes]
        assert responses == [algorithm.encoder.text(episode.token_ids) for episode in group.episodes]
        assert group.rewards == [float(text.split().count("blue")) for text in responses]
        kept = sorted(group.rewards)
        assert kept[1] == pool[-1]
        if how != "best_random":
            assert kept[0] == (pool[-2] if how == "best" else pool[0])
    lengths = [episode.sampled_tokens for group in groups for episode in group.sampled.episodes]
    assert len(lengths) == 128 and metrics["generated_tokens"] == sum(lengths)
    assert metrics["reward"] == pytest.approx(np.mean([group.sampled.rewards for group in groups]))
    assert metrics["reward_kept"] == pytest.approx(np.mean([group.rewards for group in groups]))
    _, rows = learn(algorithm)
    assert len(algorithm.experience.rows) == 32
    assert abs(rows[0]["kl_sampled"]) < 1e-4
    assert column(rows, "kl_sampled")[-1] != column(rows, "kl")[-1]


def test_a_step_beyond_target_kl_is_not_made(toy, reward, tmp_path):
    """Two steps per iteration: the first is always taken, the second finds KL above an impossible target."""
    size = ("algorithm.iterations=1", "algorithm.epochs=1", "algorithm.batch_size=32", "algorithm.critic_warmup=0")
    algorithm = build("ppo", toy, reward, tmp_path, *size, "algorithm.target_kl=1e-9")
    generated = []
    accept = algorithm.accept_step
    algorithm.accept_step = lambda outputs: generated.append(accept(outputs)) or generated[-1]
    learn(algorithm)
    assert generated == [True, False]


def test_critic_warm_up_leaves_the_policy_alone(toy, reward, tmp_path):
    size = ("algorithm.iterations=3", "algorithm.critic_warmup=2", "algorithm.ptx_weight=1")
    algorithm = build("ppo", toy, reward, tmp_path, *size)
    algorithm.total_steps = 2 * algorithm.settings.steps_per_iteration
    before = {name: p.clone() for name, p in algorithm.model.named_parameters()}
    critic = {name: p.clone() for name, p in algorithm.critic.named_parameters()}
    _, rows = learn(algorithm)
    assert all(torch.equal(p, before[name]) for name, p in algorithm.model.named_parameters())
    assert any(not torch.equal(p, critic[name]) for name, p in algorithm.critic.named_parameters())
    assert column(rows, "explained_variance")[1] > column(rows, "explained_variance")[0]


def test_unscored_replies_are_left_out(toy, reward, tmp_path):
    reward["class"] = Abstains
    algorithm = build("grpo", toy, reward, tmp_path, "algorithm.iterations=2", "algorithm.batch_size=16")
    algorithm.collect(0)
    texts = [algorithm.encoder.text(response) for _, response in algorithm.experience.rows]
    assert 0 < len(texts) < 64
    assert not any(text.startswith("red") for text in texts)
    assert torch.isfinite(algorithm.experience.tokens["advantage"]).all()
    learn(algorithm)


@pytest.mark.slow
def test_ptx_keeps_corpus_replies_likely(toy, reward, tmp_path):
    size = ("algorithm.iterations=8", "algorithm.batch_size=64", "algorithm.kl_controller=none")
    drift = {}
    for weight in (0, 1):
        ptx = f"algorithm.ptx_weight={weight}"
        result, rows = learn(build("ppo", toy, reward, tmp_path / str(weight), *size, ptx))
        drift[weight] = result.policies[-1]["metrics"]["chosen_logp_drift"]["mean"]
        assert ("ptx_nll" in rows[-1]) == bool(weight)
    assert drift[1] > drift[0] + 0.4


@pytest.mark.parametrize("recipe", ["ppo", "grpo"])
def test_an_adapter_trains_and_its_base_is_the_reference(recipe, toy, reward, tmp_path):
    """Step 0 has KL 0 although policy and reference have common weights; the sampler uses the adapted policy."""
    size = ("model.lora.rank=8", "algorithm.iterations=6", "algorithm.batch_size=32")
    algorithm = build(recipe, toy, reward, tmp_path, *size, "algorithm.lr=2e-2", "algorithm.beta=0.02")
    base = {name: p.clone() for name, p in algorithm.reference.named_parameters()}
    result, rows = learn(algorithm)
    assert rows[0]["kl"] == pytest.approx(0, abs=1e-4) and rows[0]["step0_sampler_gap"] < 1e-4
    assert all(torch.equal(p, base[name]) for name, p in algorithm.reference.named_parameters())
    assert result.policies[-1]["metrics"]["kl"]["mean"] > 0.1
    late = algorithm.rollouts.draw(algorithm.model, 99)[0]
    experience, _ = algorithm._experience(late, {})
    exact_N = algorithm._logps(algorithm.model, experience)
    assert torch.allclose(experience.tokens["old"], exact_N, atol=1e-4)


@pytest.mark.parametrize("recipe", ["ppo", "grpo"])
def test_micro_batches_do_not_change_the_gradient(recipe, toy, reward, tmp_path):
    """One pass over 32 responses, 32 passes over one each: the same update."""
    warmup = ("algorithm.critic_warmup=0",) if recipe == "ppo" else ()
    algorithm = build(recipe, toy, reward, tmp_path, "algorithm.batch_size=32", *warmup)
    found = []
    for tokens in (0, 1, 200):
        algorithm.settings = replace(algorithm.settings, micro_batch_tokens=tokens)
        batch = algorithm.collect(0)
        for part in algorithm.parts().values():
            part.module.zero_grad()
        for micro in batch.micro:
            (algorithm.loss(micro).loss_N.sum() / batch.units).backward()
        gradient = [p.grad.clone() for part in algorithm.parts().values() for p in part.module.parameters()]
        found.append((len(batch.micro), gradient))
    assert [passes for passes, _ in found][:2] == [1, 32] and 1 < found[2][0] < 32
    for _, gradient in found[1:]:
        for one, other in zip(found[0][1], gradient, strict=True):
            assert torch.allclose(one, other, atol=1e-6, rtol=1e-4)
    assert max(float(g.abs().max()) for g in found[0][1]) > 1e-3


WIRED = {
    "clip_high": ("ppo", "algorithm.clip_high=0.001", "algorithm.clip_low=0.001"),
    "dual_clip": ("ppo", "algorithm.dual_clip=1.001"),
    "log_ratio_clamp": ("ppo", "algorithm.log_ratio_clamp=1e-4"),
    "value_clip": ("ppo", "algorithm.value_clip=1e-4"),
    "value_weight": ("ppo", "algorithm.value_weight=3"),
    "lam": ("ppo", "algorithm.lam=0.1"),
    "gamma": ("ppo", "algorithm.gamma=0.5"),
    "whiten_advantages": ("ppo", "algorithm.whiten_advantages=false"),
    "reward_scaling": ("ppo", "algorithm.reward_scaling=running_sd", "algorithm.whiten_advantages=false"),
    "reward_clip": ("ppo", "algorithm.reward_clip=0.5", "algorithm.whiten_advantages=false"),
    "overlong_tokens": ("ppo", "algorithm.overlong_tokens=8"),
    "aggregation": ("grpo", "algorithm.aggregation=sequence_mean"),
    "constant": ("grpo", "algorithm.aggregation=constant"),
    "kl_estimator": ("grpo", "algorithm.kl_estimator=k2"),
    "kl_in": ("grpo", "algorithm.kl_in=reward"),
    "policy_loss": ("grpo", "algorithm.policy_loss=gspo"),
    "advantage": ("grpo", "algorithm.advantage=rloo"),
    "rollout_filter": ("grpo", "algorithm.rollout_filter=best_worst", "algorithm.filter_pool=8"),
    "temperature": ("grpo", "rollout.temperature=0.8"),
}
"""Setting → overrides that must change what is trained, from a policy away from its reference."""


def second_step(recipe: str, toy, reward, directory: Path, *overrides: str) -> list[torch.Tensor]:
    """Gradients of the iteration's second step, where ratios are no longer 1."""
    size = ("algorithm.batch_size=32", "algorithm.epochs=1", "algorithm.beta=0.5", "algorithm.adam_eps=1e-8")
    warm = ("algorithm.critic_warmup=0",) if recipe == "ppo" else ()
    algorithm = build(recipe, toy, reward, directory, *size, *warm, *overrides)
    algorithm.settings = replace(algorithm.settings, iterations=3)
    algorithm.total_steps = 3  # an iteration of two steps, and the first step of the next
    train(algorithm, algorithm.run, "wired")
    batch = algorithm.collect(3)
    for micro in batch.micro:
        (algorithm.loss(micro).loss_N.sum() / batch.units).backward()
    return [p.grad.clone() for part in algorithm.parts().values() for p in part.module.parameters()]


@pytest.fixture(scope="module")
def unchanged() -> dict[str, list[torch.Tensor]]:
    """Recipe → gradients without the setting, computed by the first test that compares with them."""
    return {}


@pytest.mark.slow
@pytest.mark.parametrize("name", WIRED)
def test_every_setting_reaches_the_gradient(name, toy, reward, unchanged, tmp_path):
    recipe, *overrides = WIRED[name]
    if recipe not in unchanged:
        unchanged[recipe] = second_step(recipe, toy, reward, tmp_path / "plain")
    changed = second_step(recipe, toy, reward, tmp_path / "changed", *overrides)
    assert any(not torch.allclose(a, b, rtol=1e-4, atol=1e-7) for a, b in zip(unchanged[recipe], changed, strict=True))


def test_a_policy_that_is_no_longer_finite_is_not_sampled(toy, reward, tmp_path):
    algorithm = build("grpo", toy, reward, tmp_path, "algorithm.lr=1e30", "algorithm.log_every_steps=100")
    with pytest.raises(NumericError, match="not finite"):
        learn(algorithm)
