"""Step 0 is exact: a policy that has not moved has KL 0, margin 0 and drift 0, not nearly 0."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support import ONE_LAYER, SMALL_WORLD, planned

from rlhf_lab.algorithms.preference.dpo import preference_step
from rlhf_lab.config import registry
from rlhf_lab.core.files import read_jsonl
from rlhf_lab.core.metrics import names
from rlhf_lab.evaluations.evaluator import SAMPLE_KEYS
from rlhf_lab.evaluations.metrics import EVALUATOR
from rlhf_lab.losses.preference import PairLogps
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.models.pair_rows import pair_batch
from rlhf_lab.training.run import Run


@pytest.fixture(params=[0, 512], ids=["whole", "micro-batches"])
def dpo(request, tmp_path, policy):
    config = planned(
        "dpo",
        *SMALL_WORLD,
        *ONE_LAYER,
        f"needs.policy={policy}",
        "needs.reward=null",
        f"algorithm.micro_batch_tokens={request.param}",
        f"outputs={tmp_path}",
    ).config
    run = Run(tmp_path, config, {"policy": str(policy)})
    algorithm = registry.build("algorithm", config.algorithm, run)
    algorithm.start()
    return algorithm


def test_margins_are_exactly_zero_at_step_0(dpo):
    """On the same batch of rows policy and reference agree to the last bit."""
    micro_batches = dpo.collect(0).micro
    assert micro_batches
    for pairs, _ in micro_batches:
        with torch.no_grad():
            ref = PairLogps(*token_logps(dpo.reference, pair_batch(pairs, "cpu")).sum_B().chunk(2))
        out = preference_step(dpo.model, pairs, ref, dpo.settings, "cpu")
        assert out.metrics["margin"].abs().max().item() == 0.0
        assert out.loss_N.tolist() == pytest.approx([math.log(2)] * len(pairs), abs=1e-7)


def test_the_stored_reference_differs_from_the_step_by_rounding_alone(dpo):
    """Reference log-probabilities are computed once, in batches of other widths, which moves the last bits."""
    micro_batches = dpo.collect(0).micro
    assert micro_batches
    for micro in micro_batches:
        assert dpo.loss(micro).metrics["margin"].abs().max().item() <= 1e-5


def test_an_unmoved_policy_evaluates_as_the_reference(dpo):
    evaluator = dpo.evaluator
    reference, copy = evaluator.evaluate("SFT", dpo.reference), evaluator.evaluate("copy", dpo.model)
    assert copy["metrics"]["kl"]["mean"] == 0.0
    assert copy["metrics"]["chosen_logp_drift"]["mean"] == 0.0
    assert copy["metrics"]["implicit_accuracy"]["mean"] == 0.0  # every pair ties, and a tie is not ranked right
    assert copy["metrics"]["ranking_accuracy"] == reference["metrics"]["ranking_accuracy"]
    assert copy["metrics"].keys() <= names(EVALUATOR)


def test_rows_are_the_source_of_every_mean(dpo):
    evaluator = dpo.evaluator
    evaluator.evaluate("SFT", dpo.reference)
    for p in dpo.model.parameters():
        p.data.mul_(1.1)
    summary = evaluator.evaluate("moved", dpo.model)["metrics"]
    rows = [r for r in read_jsonl(dpo.run.directory / "evaluation.jsonl") if r["policy"] == "moved"]
    assert len(rows) == 6 * 2
    assert summary["kl"]["mean"] > 0
    for key in SAMPLE_KEYS:
        if key in summary:
            assert summary[key]["mean"] == pytest.approx(sum(r[key] for r in rows) / len(rows), abs=1e-6)
            assert (summary[key]["n"], summary[key]["clusters"]) == (12, 6)


def test_held_out_pairs_by_hand(dpo):
    """Each reply on its own: the drift of the chosen one, and both rankings, with and without the reference."""
    generator = torch.Generator().manual_seed(0)
    for p in dpo.model.parameters():
        p.data.add_(0.1 * torch.randn(p.shape, generator=generator))
    dpo.evaluator.evaluate("SFT", dpo.reference)
    found = dpo.evaluator.evaluate("moved", dpo.model)["metrics"]

    def logp(model, row) -> float:
        with torch.no_grad():
            return token_logps(model, TokenBatch.from_rows([row])).sum_B().item()

    models = (dpo.model, dpo.reference)
    now, ref = ([[logp(model, row) for row in pair] for pair in dpo.evaluator.pairs] for model in models)
    count = len(now)
    drift = sum(a - b for (a, _), (b, _) in zip(now, ref, strict=True)) / count
    ranked = sum(chosen > rejected for chosen, rejected in now) / count
    implicit = sum(a - c > b - d for (a, b), (c, d) in zip(now, ref, strict=True)) / count
    assert abs(drift) > 0.1 and implicit != ranked
    assert found["chosen_logp_drift"]["mean"] == pytest.approx(drift, abs=1e-3)
    assert found["ranking_accuracy"]["mean"] == pytest.approx(ranked)
    assert found["implicit_accuracy"]["mean"] == pytest.approx(implicit)


def row(policy: str, prompt: int, *, gold: float | None, proxy: float | None) -> dict[str, Any]:
    """A row of evaluation.jsonl."""
    rest = {"kl": 1.0, "tokens": 4, "verbose": 0, "garble": 0, "correct": None, "ended": 1}
    return {"policy": policy, "prompt_id": prompt, "gold": gold, "proxy": proxy, **rest}


@pytest.mark.parametrize(("known", "expected"), [(True, 1.0), (False, 0.0)])
def test_the_truth_judges_wins_where_it_is_known(known, expected, dpo):
    """Two prompts at which the truth rises and the learned reward falls."""

    def rows(policy: str, gold: float, proxy: float) -> list[dict[str, Any]]:
        return [row(policy, prompt, gold=gold if known else None, proxy=proxy) for prompt in range(2)]

    dpo.evaluator._reference_rows = rows("SFT", 0.0, 0.0)
    assert dpo.evaluator._summarise(rows("moved", 1.0, -1.0))["win_rate"].mean == expected


def test_an_unscored_reply_counts_in_no_mean(dpo):
    """Rewards 1, none, 3 at three prompts: 2 over two replies, and one unscored."""
    rows = [row("SFT", prompt, gold=None, proxy=proxy) for prompt, proxy in enumerate((1.0, None, 3.0))]
    dpo.evaluator._reference_rows = rows
    proxy = dpo.evaluator._summarise(rows)["proxy"]
    assert (proxy.mean, proxy.n, proxy.unscored) == (2.0, 2, 1)


def test_a_policy_is_evaluated_once(dpo, monkeypatch):
    first = dpo.evaluator.evaluate("SFT", dpo.reference)
    monkeypatch.setattr(dpo.evaluator.collector.sampler, "sample", None)
    assert dpo.evaluator.evaluate("SFT", dpo.reference) is first


def test_a_cut_evaluation_goes_on_where_it_stopped(dpo):
    """Rows of a policy whose summary is missing are dropped, and the same rows are written again."""
    dpo.evaluator.evaluate("SFT", dpo.reference)
    dpo.evaluator.evaluate("copy", dpo.model)
    rows, policies = dpo.run.directory / "evaluation.jsonl", dpo.run.directory / "policies.jsonl"
    full = (rows.read_text(), policies.read_text())
    policies.write_text(policies.read_text()[:-30])
    rows.write_text(rows.read_text()[:-5])
    again = registry.build("algorithm", dpo.settings, Run(dpo.run.directory, dpo.run.config, dpo.run.needs)).evaluator
    again.evaluate("SFT", dpo.reference)
    again.evaluate("copy", dpo.model)
    assert (rows.read_text(), policies.read_text()) == full
