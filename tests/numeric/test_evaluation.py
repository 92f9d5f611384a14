"""Step 0 is exact: a policy that has not moved has KL 0, margin 0 and drift 0, not nearly 0."""

from __future__ import annotations

import math

import pytest
import torch
from support import ONE_LAYER, SMALL_WORLD, planned

from rlhf_lab import registry
from rlhf_lab.algorithms.common import pair_batch
from rlhf_lab.algorithms.dpo import preference_step
from rlhf_lab.algorithms.evaluation import METRICS, SAMPLE_KEYS
from rlhf_lab.files import read_jsonl
from rlhf_lab.losses.preference import PairLogps
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import exact_kl, token_logps
from rlhf_lab.train.run import Run


@pytest.fixture(params=[0, 512], ids=["whole", "micro-batches"])
def dpo(request, tmp_path, policy):
    config = planned(
        "dpo",
        *SMALL_WORLD,
        *ONE_LAYER,
        f"needs.policy={policy}",
        "needs.reward=null",
        f"algorithm.micro_batch_tokens={request.param}",
    ).config
    run = Run(tmp_path, config, {"policy": str(policy)})
    algorithm = registry.build("algorithm", config.algorithm, run)
    algorithm.begin()
    return algorithm


def test_margins_are_exactly_zero_at_step_0(dpo):
    """On the same batch of rows policy and reference agree to the last bit."""
    for pairs, _ in dpo.collect(0).micro:
        with torch.no_grad():
            ref = PairLogps(*token_logps(dpo.reference, pair_batch(pairs, "cpu")).sum_B().chunk(2))
        out = preference_step(dpo.model, pairs, ref, dpo.settings, "cpu")
        assert out.metrics["margin"].abs().max().item() == 0.0
        assert out.loss_N.tolist() == pytest.approx([math.log(2)] * len(pairs), abs=1e-7)


def test_the_stored_reference_differs_from_the_step_by_rounding_alone(dpo):
    """Reference log-probabilities are computed once, in batches of other widths, which moves the last bits."""
    for micro in dpo.collect(0).micro:
        assert dpo.loss(micro).metrics["margin"].abs().max().item() <= 1e-5


def test_kl_is_exactly_zero_at_step_0(dpo):
    rows = [chosen for chosen, _ in dpo.table.pairs[:16]]
    assert exact_kl(dpo.model, dpo.reference, TokenBatch.from_rows(rows)).abs().max().item() == 0.0


def test_an_unmoved_policy_evaluates_as_the_reference(dpo):
    evaluator = dpo.evaluator
    reference, copy = evaluator.evaluate("SFT", dpo.reference), evaluator.evaluate("copy", dpo.model)
    assert copy["metrics"]["kl"]["mean"] == 0.0
    assert copy["metrics"]["chosen_logp_drift"]["mean"] == 0.0
    assert copy["metrics"]["implicit_accuracy"]["mean"] == 0.0  # every pair ties, and a tie is not ranked right
    assert copy["metrics"]["ranking_accuracy"] == reference["metrics"]["ranking_accuracy"]
    assert copy["metrics"].keys() <= METRICS.keys()


def test_rows_are_the_source_of_every_mean(dpo):
    evaluator = dpo.evaluator
    evaluator.evaluate("SFT", dpo.reference)
    for p in dpo.model.parameters():
        p.data.mul_(1.1)
    summary = evaluator.evaluate("moved", dpo.model)["metrics"]
    rows = [r for r in read_jsonl(dpo.run.folder / "evaluation.jsonl") if r["policy"] == "moved"]
    assert len(rows) == 6 * 2
    assert summary["kl"]["mean"] > 0
    for key in SAMPLE_KEYS:
        if key in summary:
            assert summary[key]["mean"] == pytest.approx(sum(r[key] for r in rows) / len(rows), abs=1e-6)
            assert (summary[key]["n"], summary[key]["clusters"]) == (12, 6)


def test_a_policy_is_evaluated_once(dpo, monkeypatch):
    first = dpo.evaluator.evaluate("SFT", dpo.reference)
    monkeypatch.setattr(dpo.evaluator.sampler, "sample", None)
    assert dpo.evaluator.evaluate("SFT", dpo.reference) is first


def test_a_cut_evaluation_goes_on_where_it_stopped(dpo):
    """Rows of a policy whose summary is missing are dropped, and the same rows are written again."""
    dpo.evaluator.evaluate("SFT", dpo.reference)
    dpo.evaluator.evaluate("copy", dpo.model)
    rows, policies = dpo.run.folder / "evaluation.jsonl", dpo.run.folder / "policies.jsonl"
    whole = (rows.read_text(), policies.read_text())
    policies.write_text(policies.read_text()[:-30])
    rows.write_text(rows.read_text()[:-5])
    again = registry.build("algorithm", dpo.settings, Run(dpo.run.folder, dpo.run.config, dpo.run.needs)).evaluator
    again.evaluate("SFT", dpo.reference)
    again.evaluate("copy", dpo.model)
    assert (rows.read_text(), policies.read_text()) == whole
