"""Audited training of small policies: an alarm on a policy that is hacked, none on a healthy one, and exact resume."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
from support import ONE_LAYER, SMALL_WORLD, assert_equal_models, execute_with_stops, planned, same_weights

from rlhf_lab.config import registry
from rlhf_lab.core.files import read_json, read_jsonl
from rlhf_lab.stages.artifacts import Stage
from rlhf_lab.stages.execute import execute
from rlhf_lab.training.loop import Paused

AUDIT = ("reward.audit.labels_per_iteration=16",)
COMMON = (*SMALL_WORLD, *ONE_LAYER, "algorithm.epochs=1", "algorithm.batch_size=16")
ON_POLICY = ("algorithm.optimizer=adamw", "algorithm.log_every_steps=1", "needs.reward=null", "algorithm.beta=0")
KINDS = {
    "ppo": (
        *ON_POLICY,
        "algorithm.lr=1e-2",
        "algorithm.iterations=10",
        "algorithm.prompts_per_iteration=32",
        "algorithm.critic=zero",
        "algorithm.critic_warmup=1",
    ),
    "grpo": (*ON_POLICY, "algorithm.lr=1e-2", "algorithm.iterations=10", "algorithm.prompts_per_iteration=8"),
    "dpo_iterative": (
        "algorithm.optimizer=adamw",
        "algorithm.lr=1e-2",
        "algorithm.beta=0.05",
        "algorithm.prompts_per_round=32",
        "algorithm.corpus_fraction=0",
        "algorithm.rounds=4",
        "needs.baseline=null",
    ),
}
FIRST = {"ppo": 2, "grpo": 1, "dpo_iterative": 1}
LAST = {"ppo": 10, "grpo": 10, "dpo_iterative": 4}
"""Iterations after which the policy is audited first and last; the critic of ppo warms up in the first one."""
HACKED = ("reward=gold", "reward.terms.gold.weight=-1")
HEALTHY = ("reward=gold",)
CLASSES = {"ppo": "ProximalPolicyOptimisation", "grpo": "GroupPolicyOptimisation", "dpo_iterative": "IteratedDPO"}


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("sft")
    longer = ("algorithm.epochs=6", "data.train_pairs=400")
    stage = planned("sft", *SMALL_WORLD, *ONE_LAYER, *longer, "algorithm.lr=1e-2", f"outputs={out}")
    execute(stage)
    return Path(stage.model)


def plan(recipe: str, policy: Path, out: Path, *more: str) -> Stage:
    needs = (f"needs.policy={policy}", f"needs.reward={policy if recipe == 'dpo_iterative' else 'null'}")
    return planned(recipe, *COMMON, *KINDS[recipe], *needs, "checkpoint.every_steps=1", *AUDIT, *more, f"outputs={out}")


def result(stage: Stage) -> dict:
    return read_json(stage.directory / "result.json")


def audited(stage: Stage) -> list[dict]:
    return read_jsonl(stage.directory / "audit.jsonl")


def logged(stage: Stage, key: str) -> list[float]:
    return [row[key] for row in read_jsonl(stage.directory / "metrics.jsonl") if key in row]


@pytest.mark.parametrize("recipe", ["grpo", "dpo_iterative"])
def test_an_alarm_on_a_hacked_run(recipe, policy, tmp_path):
    """The reward pays for responses of lower gold. Every comparison is bought, written and counted once."""
    stage = plan(recipe, policy, tmp_path, *HACKED)
    execute(stage)
    found = result(stage)
    rows = audited(stage)
    assert found["metrics"]["audit/alarm"] == 1 and found["metrics"]["audit/alarm_at"] <= LAST[recipe]
    assert any("is worse than the start policy" in note for note in found["notes"])
    assert [row["iteration"] for row in rows] == list(range(FIRST[recipe], LAST[recipe] + 1))
    assert all(len(row["comparisons"]) == 16 for row in rows)
    assert logged(stage, "audit/e_value") == [row["e_value"] for row in rows]
    assert found["metrics"]["audit/labels"] == 16 * len(rows) == rows[-1]["labels"]


def test_no_alarm_on_a_healthy_run(policy, tmp_path):
    """The reward is gold, so the policy improves, and is certified at the end."""
    stage = plan("ppo", policy, tmp_path, *HEALTHY)
    execute(stage)
    found = result(stage)["metrics"]
    assert found["audit/alarm"] == 0 and found["audit/alarm_at"] is None
    assert found["audit/win_rate"] > 0.55 and found["audit/certified_at"] == LAST["ppo"]


def test_a_spent_budget_ends_with_an_audit_of_the_iterations_that_trained(policy, tmp_path):
    """Ten iterations are planned. The last audit has the number of those before the budget was spent."""
    stage = plan("grpo", policy, tmp_path, *HACKED, "algorithm.token_budget=1500")
    execute(stage)
    trained = len(logged(stage, "generated_tokens"))
    assert 2 < trained < LAST["grpo"]
    assert [row["iteration"] for row in audited(stage)] == list(range(1, trained + 1))


def test_buying_comparisons_changes_no_training(policy, tmp_path):
    """Bit for bit: the model, and every logged number but the audit's own."""
    on = plan("grpo", policy, tmp_path, *HEALTHY)
    off = plan("grpo", policy, tmp_path, *HEALTHY, "reward.audit.labels_per_iteration=0")
    for stage in (on, off):
        execute(stage)
    assert_equal_models(on, off)
    assert result(on)["policies"] == result(off)["policies"]
    assert logged(on, "reward") == logged(off, "reward") and not (off.directory / "audit.jsonl").exists()
    assert not any(name.startswith("audit/") for name in result(off)["metrics"])


@pytest.mark.parametrize(("recipe", "name"), [("ppo", "PPO"), ("dpo_iterative", "certified policy")])
def test_stop_ends_with_the_policy_certified_last(recipe, name, policy, tmp_path):
    """Nothing is certified before the alarm here (a window of 16 labels is too small), so it is the start policy. It is
    evaluated last, so that its numbers are the run's. The monitor's alarms are judged by the policy before it.
    """
    more = ("reward.audit.action=stop", "reward.audit.delta=0.01", "reward.monitor.warmup=1")
    stage = plan(recipe, policy, tmp_path, *HACKED, *more)
    execute(stage)
    found = result(stage)
    at = found["metrics"]["audit/alarm_at"]
    assert found["status"] == "completed" and found["metrics"]["audit/certified_at"] == 0
    assert audited(stage)[-1]["iteration"] == at <= LAST[recipe]
    assert same_weights(Path(stage.model), policy)
    last = found["policies"][-1]
    assert last["name"] == name and last["metrics"]["kl"]["mean"] == pytest.approx(0, abs=1e-6)
    gold = {row["name"]: row["metrics"]["gold"]["mean"] for row in found["policies"]}
    trained = list(gold)[-2]
    if recipe == "ppo":
        assert trained == f"step {at * 2:.0f}"  # two updates per iteration: 32 prompts in batches of 16
    assert found["metrics"]["gold_change"] == pytest.approx(gold[trained] - gold[next(iter(gold))])


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "action"), [("grpo", "stop"), ("dpo_iterative", "log")])
def test_resumed_equals_uninterrupted(recipe, action, policy, tmp_path, monkeypatch):
    """Killed at several steps: e-values, comparisons, the alarm and the model are those of the uninterrupted run."""
    more = (*HACKED, f"reward.audit.action={action}")
    full, broken = (plan(recipe, policy, tmp_path / name, *more) for name in ("full", "broken"))
    execute(full)
    cls = getattr(import_module(registry.implementation("algorithm", recipe)), CLASSES[recipe])
    execute_with_stops(monkeypatch, cls, broken, 3, 5, 8, may_finish=True)
    assert (full.directory / "audit.jsonl").read_text() == (broken.directory / "audit.jsonl").read_text()
    assert result(full)["metrics"] == result(broken)["metrics"]
    assert_equal_models(full, broken)


@pytest.mark.slow
def test_a_paused_run_continues_with_consent(policy, tmp_path):
    more = (*HACKED, "reward.audit.action=pause")
    paused = plan("grpo", policy, tmp_path / "paused", *more)
    for _ in range(2):  # without consent, the same command trains nothing
        with pytest.raises(Paused, match=r"worse than the start policy .* alerts\.continue_paused=true"):
            execute(paused)
    at = len(audited(paused))
    assert result(paused)["status"] == "paused" and at < LAST["grpo"]
    execute(plan("grpo", policy, tmp_path / "paused", *more, "alerts.continue_paused=true"))
    whole = plan("grpo", policy, tmp_path / "whole", *more, "alerts.continue_paused=true")
    execute(whole)
    assert result(paused)["metrics"] == result(whole)["metrics"]
    assert (paused.directory / "audit.jsonl").read_text() == (whole.directory / "audit.jsonl").read_text()
    assert_equal_models(paused, whole)
