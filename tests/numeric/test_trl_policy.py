"""TRL's GRPO and RLOO trainers, configured by `engine=trl`, against our policy losses, penalties and advantages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from support import checked, disturb, llama_tokenizer, prompt_text, save_tiny
from test_trl_oracle import gradients
from torch.nn.utils.rnn import pad_sequence

from rlhf_lab.algorithms.policy_gradient.settings import GRPO
from rlhf_lab.losses.advantage import GROUP_ADVANTAGES, GroupScores
from rlhf_lab.losses.policy import POLICY_LOSSES, ClipRange, PolicyTokens, k1, k3, loss_units, token_weights
from rlhf_lab.models.build import load_encoder, load_policy
from rlhf_lab.models.encoding import Row, TokenBatch
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.models.settings import Scratch

trl = pytest.importorskip("trl", reason="TRL is the oracle here: pip install 'rlhf_lab[trl]'")

from rlhf_lab.algorithms.trl import options, trainers  # noqa: E402
from rlhf_lab.algorithms.trl.engine import _pad as pad  # noqa: E402

TOLERANCE = 1e-5
QUESTIONS = ["When does the museum open?", "Where is it?"]
REPLIES = ["At nine.", "I am not sure about that, sorry to say.", "Soon", "It is in the old town, next to the river."]
SCORES = torch.tensor([1.0, -0.5, 0.25, 2.0, 0.0, 3.0, -1.0, 0.5])
"""Scores of four responses to each question."""
MAX_NEW = 64
SIZE = ("algorithm.prompts_per_iteration=2", "algorithm.group_size=4", "algorithm.batch_size=8")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return save_tiny("llama", llama_tokenizer([*QUESTIONS, *REPLIES]), tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def rows(directory) -> list[Row]:
    encoder = load_encoder(directory, Scratch())
    return [(encoder.prompt(prompt_text(q)), encoder.response(r)) for q in QUESTIONS for r in REPLIES]


def policy(directory, seed: int = 1) -> Any:
    return disturb(load_policy(directory, Scratch()), seed=seed)


def build_trainer(directory, tmp_path, preset: str, *overrides: str):
    """(settings, TRL's trainer with the arguments that `engine=trl` gives it)."""
    from datasets import Dataset

    length = (f"rollout.max_new_tokens={MAX_NEW}", "rollout.max_prompt_tokens=64")
    root = checked("grpo", f"algorithm={preset}", "engine=trl", *SIZE, *length, *overrides)
    spec = options.trainer(root)
    arguments = options.arguments(root, device="cpu", directory=str(tmp_path), seed=0, steps=1)
    model = policy(directory)
    found = getattr(trainers, spec.name)(
        model=model,
        args=getattr(trl, spec.config)(**arguments),
        reward_funcs=lambda completion_ids, **_: SCORES.tolist(),
        train_dataset=Dataset.from_dict({"prompt": [prompt_text(q) for q in QUESTIONS]}),
        processing_class=load_encoder(directory, Scratch()).tokenizer,
    )
    if found.ref_model is not None:
        disturb(found.ref_model, seed=7)
    return root.algorithm, found


def their_inputs(rows: list[Row], tokens: dict[str, torch.Tensor], advantage_R: torch.Tensor) -> dict[str, Any]:
    """Return TRL's `_generate_and_score_completions` inputs: prompts padded on the left, responses on the right."""
    lengths = [len(response) for _, response in rows]
    per_token = {key: pad_sequence(values.split(lengths), batch_first=True) for key, values in tokens.items()}
    return {
        "prompt_ids": pad([p for p, _ in rows], side="left"),
        "prompt_mask": pad([[1] * len(p) for p, _ in rows], side="left"),
        "completion_ids": pad([r for _, r in rows]),
        "completion_mask": pad([[1] * len(r) for _, r in rows]),
        "advantages": advantage_R,
        "num_items_in_batch": torch.tensor(float(sum(lengths))),
        "old_per_token_logps": per_token["old"],
        "ref_per_token_logps": per_token["ref"],
    }


def our_loss(settings: GRPO, model: Any, rows: list[Row], tokens: dict[str, torch.Tensor], advantage_R: torch.Tensor):
    """As `OnPolicy.policy_loss` and the loop put it together."""
    logps = token_logps(model, TokenBatch.from_rows(rows))
    length_R = torch.tensor([len(response) for _, response in rows])
    length_N = length_R.repeat_interleave(length_R)
    advantage_N = advantage_R.repeat_interleave(length_R)
    clip = ClipRange(settings.clip_low, settings.clip_high, settings.dual_clip)
    inputs = PolicyTokens(logps.logps_N, tokens["old"], advantage_N, logps.row_N, logps.rows)
    loss_N = POLICY_LOSSES[settings.policy_loss](inputs, clip).per_token
    if settings.kl_controller != "none" and settings.kl_in == "loss":
        loss_N = loss_N + settings.beta * k3(logps.logps_N, tokens["ref"])
    weight_N = token_weights(settings.aggregation, length_N, MAX_NEW)
    return (loss_N * weight_N).sum() / loss_units(settings.aggregation, len(rows), len(length_N))


@torch.no_grad()
def old_and_ref(directory, rows) -> dict[str, torch.Tensor]:
    batch = TokenBatch.from_rows(rows)
    models = {"old": disturb(policy(directory), 0.1, seed=3), "ref": policy(directory, 7)}
    return {name: token_logps(model, batch).logps_N for name, model in models.items()}


def assert_same_step(ours: torch.Tensor, model: Any, theirs: torch.Tensor, their_model: Any) -> None:
    # advantages cancel: the loss is a small difference of float32 terms near 1, which are rounded to 6e-8 each
    assert ours.item() == pytest.approx(theirs.item(), rel=TOLERANCE, abs=1e-7)
    assert_same_gradient(gradients(model, ours), gradients(their_model, theirs))


def assert_same_gradient(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    largest = max(float(g.abs().max()) for g in ours.values())
    worst = max(float((ours[name] - theirs[name]).abs().max()) for name in ours)
    assert worst <= TOLERANCE * largest and largest > 100 * TOLERANCE


PENALTY = ("algorithm.kl_controller=fixed", "algorithm.beta=0.3")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "loss_type", "overrides"),
    [
        ("grpo", "bnpo", ()),
        ("grpo", "grpo", ("algorithm.aggregation=sequence_mean",)),
        ("grpo", "bnpo", ("algorithm.dual_clip=1.5",)),
        ("grpo", "bnpo", ("algorithm.kl_controller=none",)),
        ("dr_grpo", "dr_grpo", ()),
        ("dr_grpo", "dr_grpo", PENALTY),
        ("dapo", "bnpo", ("algorithm.dynamic_sampling=0",)),
        ("gspo", "grpo", ()),
        ("gspo", "grpo", PENALTY),
        ("cispo", "cispo", ()),
        ("cispo", "cispo", PENALTY),
    ],
)
def test_grpo_losses_equal_trl(directory, rows, tmp_path, preset, loss_type, overrides):
    """The old policy is so far away that the majority of ratios leaves the trust region, and some do not."""
    settings, trainer = build_trainer(directory, tmp_path, preset, *overrides)
    assert trainer.loss_type == loss_type
    tokens = old_and_ref(directory, rows)
    advantage_R = GROUP_ADVANTAGES["dr_grpo"](GroupScores(SCORES.view(2, 4))).flatten()
    trainer.model.eval()
    theirs = trainer.compute_loss(trainer.model, their_inputs(rows, tokens, advantage_R))
    model = policy(directory)
    assert_same_step(our_loss(settings, model, rows, tokens, advantage_R), model, theirs, trainer.model)


def test_dapo_divides_by_the_tokens_of_an_accumulated_step(directory, rows, tmp_path):
    """Two forward passes of four responses are one step of eight: their losses and gradients add up to ours."""
    budget = ("algorithm.micro_batch_tokens=512", "algorithm.kl_controller=none")
    settings, trainer = build_trainer(directory, tmp_path, "grpo", *budget)
    assert trainer.loss_type == "dapo"
    assert trainer.args.gradient_accumulation_steps == trainer.args.steps_per_generation == 2
    tokens = old_and_ref(directory, rows)
    advantage_R = GROUP_ADVANTAGES["grpo"](GroupScores(SCORES.view(2, 4))).flatten()
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 2
    inputs = their_inputs(rows, tokens, advantage_R)
    halves = [{k: v if v.dim() == 0 else v[part] for k, v in inputs.items()} for part in (slice(0, 4), slice(4, 8))]
    theirs = sum(trainer.compute_loss(trainer.model, half) for half in halves)
    model = policy(directory)
    assert_same_step(our_loss(settings, model, rows, tokens, advantage_R), model, theirs, trainer.model)


def their_advantages(trainer: Any, rows: list[Row], monkeypatch) -> tuple[torch.Tensor, dict[str, Any]]:
    """TRL's advantages of fixed responses."""
    prompts = {prompt_text(q): rows[4 * i][0] for i, q in enumerate(QUESTIONS)}
    trainer.encode = prompts.__getitem__
    responses = [response for _, response in rows]
    generated = (responses, None) if isinstance(trainer, trl.GRPOTrainer) else responses
    monkeypatch.setattr(trainer, "_generate_single_turn", lambda *_: generated)
    found = trainer._generate_and_score_completions([{"prompt": prompt_text(q)} for q in QUESTIONS for _ in range(4)])
    return found["advantages"], found


def test_group_normalisation_equals_trl_up_to_its_epsilon(directory, rows, tmp_path, monkeypatch):
    """TRL divides by sd + 1e-4, the lab by sd + 1e-6."""
    _, trainer = build_trainer(directory, tmp_path, "grpo")
    theirs, _ = their_advantages(trainer, rows, monkeypatch)
    ours = GROUP_ADVANTAGES["grpo"](GroupScores(SCORES.view(2, 4)))
    sd_B1 = SCORES.view(2, 4).std(1, keepdim=True)
    torch.testing.assert_close(theirs.view(2, 4), ours * (sd_B1 + 1e-6) / (sd_B1 + 1e-4), rtol=TOLERANCE, atol=1e-6)


def test_dr_grpo_advantages_equal_trl(directory, rows, tmp_path, monkeypatch):
    _, trainer = build_trainer(directory, tmp_path, "dr_grpo")
    theirs, _ = their_advantages(trainer, rows, monkeypatch)
    torch.testing.assert_close(theirs.view(2, 4), GROUP_ADVANTAGES["dr_grpo"](GroupScores(SCORES.view(2, 4))))


def test_trl_sees_the_tokens_that_we_score(directory, rows, tmp_path, monkeypatch):
    """Prompts are the encoder's, responses keep their EOS, reference log-probabilities are those of our function."""
    _, trainer = build_trainer(directory, tmp_path, "grpo", "algorithm.beta=0.3")
    _, found = their_advantages(trainer, rows, monkeypatch)
    for i, (prompt, response) in enumerate(rows):
        assert found["prompt_ids"][i][found["prompt_mask"][i].bool()].tolist() == prompt
        assert found["completion_ids"][i][found["completion_mask"][i].bool()].tolist() == response
    ours_N = token_logps(trainer.ref_model, TokenBatch.from_rows(rows)).logps_N
    theirs_N = found["ref_per_token_logps"][found["completion_mask"].bool()]
    torch.testing.assert_close(theirs_N, ours_N, rtol=TOLERANCE, atol=1e-5)


def test_leave_one_out_with_the_penalty_in_the_reward_equals_trl(directory, rows, tmp_path, monkeypatch):
    """r − β·Σ k1 first, the baseline of the others after."""
    settings, trainer = build_trainer(
        directory, tmp_path, "rloo", "algorithm.aggregation=constant", "algorithm.beta=0.2"
    )
    theirs, _ = their_advantages(trainer, rows, monkeypatch)
    batch = TokenBatch.from_rows(rows)
    with torch.no_grad():
        now, ref = token_logps(policy(directory), batch), token_logps(trainer.ref_model, batch)
        penalty_R = replace(now, logps_N=settings.beta * k1(now.logps_N, ref.logps_N)).sum_B()
    assert float(penalty_R.abs().max()) > 0.1
    ours = GROUP_ADVANTAGES["rloo"](GroupScores((SCORES - penalty_R).view(2, 4)))
    torch.testing.assert_close(theirs.view(2, 4), ours, rtol=TOLERANCE, atol=1e-5)


def test_rloo_equals_trl_where_the_ratio_is_one(directory, rows, tmp_path, monkeypatch):
    """The loss's value shows nothing at ratio 1 (responses weigh the same there, tokens here); its gradient does."""
    settings, trainer = build_trainer(directory, tmp_path, "rloo", "algorithm.aggregation=constant")
    advantage_R, inputs = their_advantages(trainer, rows, monkeypatch)
    trainer.model.eval()
    theirs = gradients(trainer.model, trainer.compute_loss(trainer.model, inputs))
    model = policy(directory)
    old_N = token_logps(model, TokenBatch.from_rows(rows)).logps_N.detach()
    ours = gradients(model, our_loss(settings, model, rows, {"old": old_N, "ref": old_N}, advantage_R))
    assert_same_gradient(ours, theirs)
