"""Stages that train nothing: best-of-n and the comparison of policies, at the smallest size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support import ONE_LAYER, SMALL_WORLD, checked, planned

from rlhf_lab.core.errors import ArtifactError, ConfigError
from rlhf_lab.core.files import read_json, read_jsonl
from rlhf_lab.reports.report import write_report
from rlhf_lab.reports.run.header import mismatches
from rlhf_lab.results.gains import gain
from rlhf_lab.results.rundir import read_run
from rlhf_lab.stages import artifacts
from rlhf_lab.stages.execute import ensure, execute

TINY = (*SMALL_WORLD, *ONE_LAYER, "checkpoint.every_steps=0", "seed=5")
BRIEF = tuple(f"++stages.{name}.algorithm.epochs=0.5" for name in ("sft", "reward_model", "dpo"))
TRAINED = ("needs.ppo=null", "needs.grpo=null", "needs.rloo=null", "needs.dpo_iterative=null", "evaluation.prompts=6")


@pytest.fixture(scope="module")
def outputs(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("evaluation")


@pytest.fixture(scope="module")
def best_of_n(outputs) -> artifacts.Stage:
    stage = planned("best_of_n", *TINY, *BRIEF, "algorithm.samples=6", f"outputs={outputs}")
    ensure(stage, 0)
    return stage


@pytest.fixture(scope="module")
def comparison(outputs) -> artifacts.Stage:
    stage = planned(
        "compare_policies", *TINY, *BRIEF, *TRAINED, "evaluation.samples_per_prompt=2", f"outputs={outputs}"
    )
    ensure(stage, 0)
    return stage


def test_choosing_by_the_proxy_raises_the_proxy(best_of_n):
    policies = best_of_n.result()["policies"]
    assert [policy["name"] for policy in policies] == ["SFT", "best of 2", "best of 4", "best of 6"]
    assert not Path(best_of_n.model).exists() and not (best_of_n.directory / "checkpoint.pt").exists()
    kl = [policy["metrics"]["kl"]["mean"] for policy in policies]
    assert kl == pytest.approx([0, *(np.log(n) - (n - 1) / n for n in (2, 4, 6))])
    proxy = [policy["metrics"]["proxy"]["mean"] for policy in policies]
    assert proxy == sorted(proxy) and proxy[0] < proxy[-1]
    assert all(
        {"gold", "win_rate", "tokens", "verbose", "garble", "reward_per_nat"} <= set(p["metrics"]) for p in policies[1:]
    )
    assert policies[1]["metrics"]["gold"]["clusters"] == 6


def test_the_best_of_all_is_the_best(best_of_n):
    rows = read_jsonl(best_of_n.directory / "evaluation.jsonl")
    sampled = [row for row in rows if row["policy"] == "SFT"]
    assert len(sampled) == 6 * 6
    best = {p: max(row["proxy"] for row in sampled if row["prompt_id"] == p) for p in range(6)}
    chosen = [row for row in rows if row["policy"] == "best of 6"]
    assert {row["prompt_id"]: row["proxy"] for row in chosen} == best
    stored = best_of_n.result()["policies"][-1]["metrics"]["proxy"]["mean"]
    assert stored == pytest.approx(np.mean(list(best.values())), abs=1e-6)


def test_the_report_pairs_expected_values_by_prompt(best_of_n):
    run = read_run(best_of_n.directory)
    assert not mismatches(run)
    policies = {policy.name: policy.metrics for policy in run.policies}
    found = gain(run, "best of 2", "gold")
    assert found.difference.mean == pytest.approx(
        policies["best of 2"]["gold"].mean - policies["SFT"]["gold"].mean, abs=1e-5
    )
    assert found.difference.clusters == 6
    assert "best of 4" in write_report(best_of_n.directory).read_text()


def test_an_interrupted_evaluation_goes_on(best_of_n, monkeypatch):
    before = best_of_n.result()
    rows = (best_of_n.directory / "evaluation.jsonl").read_bytes()
    logged = (best_of_n.directory / "policies.jsonl").read_text().splitlines(keepends=True)
    (best_of_n.directory / "policies.jsonl").write_text("".join(logged[:2]))
    sampled = []
    from rlhf_lab.sampling.local import LocalSampler

    draw = LocalSampler.sample
    monkeypatch.setattr(LocalSampler, "sample", lambda self, *a, **k: sampled.append(a[2]) or draw(self, *a, **k))
    again = execute(best_of_n)
    assert again["policies"] == before["policies"] and (best_of_n.directory / "evaluation.jsonl").read_bytes() == rows
    assert sampled == [2]  # the opponents; the candidates were there


def test_a_comparison_has_every_policy_on_the_same_prompts(comparison):
    result = comparison.result()
    assert [policy["name"] for policy in result["policies"]] == ["sft (reference)", "dpo"]
    reference, dpo = (policy["metrics"] for policy in result["policies"])
    assert reference["kl"]["mean"] == 0 and dpo["kl"]["mean"] > 0
    for metrics in (reference, dpo):
        assert {"gold", "gold_sd", "proxy", "proxy_sd", "tokens", "seconds"} <= set(metrics)
        assert metrics["proxy_sd"]["low"] <= metrics["proxy_sd"]["mean"] <= metrics["proxy_sd"]["high"]
    assert "win_rate" in dpo
    upstream = read_json(comparison.needs["dpo"].directory / "result.json")
    assert dpo["seconds"] == upstream["seconds"]
    rows = read_jsonl(comparison.directory / "evaluation.jsonl")
    assert {r["prompt"] for r in rows if r["policy"] == "dpo"} == {r["prompt"] for r in rows if r["policy"] != "dpo"}
    values = [row["proxy"] for row in rows if row["policy"] == "dpo"]
    assert dpo["proxy_sd"]["mean"] == pytest.approx(np.std(values, ddof=1), abs=1e-5)


def test_a_reward_model_is_no_policy(comparison):
    stage = planned(
        "compare_policies",
        *TINY,
        *BRIEF,
        *TRAINED,
        "+needs.rewrad=reward_model",
        f"outputs={comparison.config.outputs}",
    )
    with pytest.raises(ArtifactError, match=r"needs\.rewrad is a reward model"):
        ensure(stage, 0)


def test_nothing_starts_from_a_stage_without_a_model():
    with pytest.raises(ConfigError, match=r"stage best_of_n \(needs\.policy\): it only evaluates"):
        planned("dpo", "needs.policy=best_of_n")
    with pytest.raises(ConfigError, match=r"samples=1 must be at least 2; one sample leaves nothing to choose from"):
        checked("best_of_n", "algorithm.samples=1")
