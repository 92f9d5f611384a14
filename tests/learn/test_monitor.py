"""The reward-hacking monitor inside training: by default it changes nothing, acts as configured, resumes exactly."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from support import ONE_LAYER, SMALL_WORLD, execute_with_stops, planned, said, same_weights

from rlhf_lab.cli.commands import monitor_command
from rlhf_lab.config import registry
from rlhf_lab.core.files import read_json, read_jsonl
from rlhf_lab.stages.artifacts import Stage
from rlhf_lab.stages.execute import ensure, execute
from rlhf_lab.training.loop import Paused

COMMON = (*SMALL_WORLD, *ONE_LAYER, "algorithm.epochs=1", "algorithm.batch_size=16", "reward=length")
ON_POLICY = ("algorithm.optimizer=adamw", "algorithm.lr=3e-3", "algorithm.log_every_steps=1")
KINDS = {
    "ppo": (
        *ON_POLICY,
        "algorithm.iterations=8",
        "algorithm.prompts_per_iteration=32",
        "algorithm.critic=zero",
        "algorithm.critic_warmup=1",
        "algorithm.beta=0.01",
    ),
    "grpo": (*ON_POLICY, "algorithm.iterations=8", "algorithm.prompts_per_iteration=8", "algorithm.beta=0.01"),
    "dpo_iterative": (
        "algorithm.optimizer=adamw",
        "algorithm.lr=3e-3",
        "algorithm.prompts_per_round=32",
        "algorithm.corpus_fraction=0.33",
        "algorithm.rounds=4",
        "needs.baseline=null",
    ),
}
CLASSES = {"ppo": "ProximalPolicyOptimisation", "grpo": "GroupPolicyOptimisation", "dpo_iterative": "IteratedDPO"}
EAGER = (
    "reward.monitor.warmup=2",
    "reward.monitor.signals=[length_z]",
    "reward.monitor.z=0.05",
)
"""Every checkpoint after warm-up is a strong warning, or nearly."""


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> Path:
    stage = planned("sft", *SMALL_WORLD, *ONE_LAYER, "algorithm.lr=3e-3", f"outputs={tmp_path_factory.mktemp('sft')}")
    execute(stage)
    return Path(stage.model)


def plan(recipe: str, policy: Path, out: Path, *more: str) -> Stage:
    needs = (f"needs.policy={policy}", f"needs.reward={policy if recipe == 'dpo_iterative' else 'null'}")
    return planned(recipe, *COMMON, *KINDS[recipe], *needs, "checkpoint.every_steps=1", *more, f"outputs={out}")


def rows(stage: Stage, key: str) -> list[dict]:
    return [row for row in read_jsonl(stage.directory / "metrics.jsonl") if key in row]


def result(stage: Stage) -> dict:
    return read_json(stage.directory / "result.json")


def same_model(one: Stage, other: Stage) -> bool:
    return same_weights(Path(one.model), Path(other.model))


@pytest.mark.parametrize("recipe", ["ppo", "dpo_iterative"])
def test_watching_changes_nothing(recipe, policy, tmp_path):
    """Bit for bit: the model, the evaluation, and every logged number but the monitor's own."""
    log = plan(recipe, policy, tmp_path, *EAGER)
    off = plan(recipe, policy, tmp_path, *EAGER, "reward.monitor.action=off")
    for stage in (log, off):
        execute(stage)
    assert same_model(log, off)
    assert result(log)["policies"] == result(off)["policies"]
    own = [{k: v for k, v in row.items() if k != "time" and "monitor/" not in k} for row in rows(log, "step")]
    assert own == [{k: v for k, v in row.items() if k != "time"} for row in rows(off, "step")]
    assert not (off.directory / "monitor.jsonl").exists() and "alarm/length_z" not in result(off)["metrics"]
    seen = read_jsonl(log.directory / "monitor.jsonl")
    assert [row["iteration"] for row in seen] == list(range(len(seen)))
    assert {"prompt", "tokens", "reward", "gold"} <= seen[0].keys()
    assert result(log)["metrics"]["alarm/hard_stop"] == 1
    assert any("first alarms" in note for note in result(log)["notes"])


def test_the_trace_says_offline_what_the_run_said_live(policy, tmp_path, capsys):
    stage = plan("ppo", policy, tmp_path, "reward.monitor.warmup=2", "reward.monitor.z=0.5")
    execute(stage)
    capsys.readouterr()
    monitor_command([str(stage.directory)])
    out = capsys.readouterr().out
    found = result(stage)["metrics"]
    for name in ("length_z", "length_cusum", "reward_kl"):
        line = next(line for line in out.splitlines() if line.strip().startswith(name))
        first = found[f"alarm_at/{name}"]
        assert line.split()[1] == ("–" if first is None else str(first + 1))  # shown from 1


@pytest.mark.parametrize("recipe", ["ppo", "dpo_iterative"])
def test_stop_ends_the_stage_complete(recipe, policy, tmp_path):
    """The policy that sampled the alarming responses is the result; the stage is never built again."""
    stage = plan(recipe, policy, tmp_path, *EAGER, "reward.monitor.action=stop")
    execute(stage)
    found = result(stage)
    at = int(found["metrics"]["stopped_at"])
    assert found["status"] == "completed" and len(found["policies"]) >= 2
    assert any(f"stopped by monitor at iteration {at + 1}" in note for note in found["notes"])
    assert len(read_jsonl(stage.directory / "monitor.jsonl")) == at + 1 < 8
    assert rows(stage, "monitor/level")[-1]["monitor/level"] == 2
    assert Path(stage.model).is_dir() and not (stage.directory / "checkpoint.pt").exists()
    written = (stage.directory / "result.json").stat().st_mtime_ns
    assert ensure(stage, started=0.0) == found and (stage.directory / "result.json").stat().st_mtime_ns == written


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "action"), [("ppo", "log"), ("grpo", "stop"), ("dpo_iterative", "log"), ("dpo_iterative", "stop")]
)
def test_resumed_equals_uninterrupted(recipe, action, policy, tmp_path, monkeypatch):
    """Killed at several steps; alarms, the stop and the trace are those of the uninterrupted run."""
    more = (*EAGER, "reward.monitor.every=2", "reward.monitor.warmup=1", f"reward.monitor.action={action}")
    full, broken = (plan(recipe, policy, tmp_path / name, *more) for name in ("whole", "broken"))
    execute(full)
    cls = getattr(import_module(registry.implementation("algorithm", recipe)), CLASSES[recipe])
    execute_with_stops(monkeypatch, cls, broken, 1, 4, 7, may_finish=True)
    assert result(full)["metrics"] == result(broken)["metrics"] and same_model(full, broken)
    assert (full.directory / "monitor.jsonl").read_text() == (broken.directory / "monitor.jsonl").read_text()
    both = [[row.get("monitor/length_z") for row in rows(stage, "step")] for stage in (full, broken)]
    assert both[0] == both[1] and any(value is not None for value in both[0])


def test_the_rest_of_a_reward_is_recorded_until_it_is_collected():
    from rlhf_lab.core.types import RewardBatch
    from rlhf_lab.monitoring.monitor import Listener

    class Reward:
        observe = state_dict = load_state_dict = None

        def __call__(self, episodes):
            size_N = np.array([len(episode.response) for episode in episodes], dtype=float)
            return RewardBatch(size_N, unverified_N=size_N / 10)

    listener = Listener(Reward())
    listener(said(["p", "p"], ["a", "bb"]))
    listener(said(["q"], ["ccc"]))
    found = listener.recorded(said(["q", "p", "x"], ["ccc", "bb", "y"]))
    assert found.tolist()[:2] == [0.3, 0.2] and np.isnan(found[2])
    assert np.isnan(listener.recorded(said(["q"], ["ccc"]))).all()  # forgotten


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["ppo", "dpo_iterative"])
def test_a_paused_stage_goes_on_exactly_with_consent_and_not_without(recipe, policy, tmp_path):
    """Model, numbers and trace are those of a run that never paused."""
    script, stated = tmp_path / "tell.py", tmp_path / "told.jsonl"
    script.write_text(f"import sys; open({str(stated)!r}, 'a').write(sys.stdin.read() + '\\n')")
    more = (*EAGER, "reward.monitor.action=pause", f"alerts.command=[{sys.executable},{script}]")
    full = plan(recipe, policy, tmp_path / "whole", *more, "alerts.continue_paused=true", "alerts.command=[]")
    execute(full)
    broken = plan(recipe, policy, tmp_path / "broken", *more)
    with pytest.raises(Paused, match=r"alerts\.continue_paused=true"):
        execute(broken)
    paused = (broken.directory / "result.json").read_text()
    assert result(broken)["status"] == "paused" and (broken.directory / "checkpoint.pt").is_file()
    alarms = read_jsonl(stated)
    assert alarms[-1]["event"] == "hard_stop" and alarms[-1]["paused"] and alarms[-1]["recipe"] == recipe
    assert alarms[-1]["iteration"] == len(read_jsonl(broken.directory / "monitor.jsonl")) < 8
    with pytest.raises(Paused, match=r"alerts\.continue_paused=true"):
        ensure(broken, started=0.0)
    assert (broken.directory / "result.json").read_text() == paused
    # killed between the checkpoint and this file: the same command pauses again
    (broken.directory / "result.json").write_text(paused.replace('"paused"', '"running"'))
    with pytest.raises(Paused, match=r"alerts\.continue_paused=true"):
        execute(broken)
    agreed = plan(recipe, policy, tmp_path / "broken", *more, "alerts.continue_paused=true")
    assert agreed.directory == broken.directory
    execute(agreed)
    assert result(agreed)["status"] == "completed"
    assert result(full)["metrics"] == result(agreed)["metrics"]
    assert result(full)["policies"] == result(agreed)["policies"] and same_model(full, agreed)
    assert (full.directory / "monitor.jsonl").read_text() == (agreed.directory / "monitor.jsonl").read_text()
    steps = [[{k: v for k, v in row.items() if k != "time"} for row in rows(stage, "step")] for stage in (full, agreed)]
    assert steps[0] == steps[1]
    assert len(read_jsonl(stated)) == len(alarms)  # a level is reported once


def test_a_hook_that_fails_is_noted_and_ends_nothing(policy, tmp_path):
    stage = plan("grpo", policy, tmp_path, *EAGER, f"alerts.command=[{tmp_path / 'nothing-here'}]")
    execute(stage)
    assert result(stage)["status"] == "completed"
    assert any("alerts.command" in note and "did not start" in note for note in result(stage)["notes"])


def test_a_pause_has_an_exit_status_of_its_own(policy, tmp_path, capsys):
    from rlhf_lab.main import PAUSED, run_stage

    stage = plan("grpo", policy, tmp_path, *EAGER, "reward.monitor.action=pause")
    for _ in range(2):  # the second command says why it does not go on
        status, recorded = run_stage(stage)
        assert status == PAUSED == 3 and recorded["status"] == "paused"
        assert "alerts.continue_paused=true" in capsys.readouterr().out.replace("\n", " ")
