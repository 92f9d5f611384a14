"""Signs of reward hacking that agree: one rule of severity, and words for what the monitor did."""

from __future__ import annotations

import json

import pytest
from synthetic_runs import edit

from rlhf_lab.reports.report import write_report
from rlhf_lab.results.gains import MONITOR, _reward_light, lights
from rlhf_lab.results.rundir import read_run
from rlhf_lab.results.severity import monitor_state
from rlhf_lab.statistics.inference import paired_difference


@pytest.fixture
def watched(make_run):
    """A run whose monitor saw something."""

    def make(*, level: str = "hard_stop", policies=("SFT", "PPO"), gold: bool = True, **more: float):
        directory = make_run(policies=policies, gold=gold, prompts=60)
        metrics: dict[str, float] = {}
        for name in ("warning", "hard_stop"):
            on = (name == "warning" and level != "ok") or level == "hard_stop"
            metrics |= {f"alarm/{name}": float(on), f"alarm_at/{name}": 2, f"alarm_share/{name}": 0.5}
        edit(directory / "result.json", metrics=metrics | more)
        return directory

    return make


@pytest.mark.parametrize(
    ("level", "gold_move", "state"),
    [
        ("ok", 0, "good"),
        ("warning", 0, "watch"),
        ("warning", None, "watch"),
        ("hard_stop", +1, "watch"),
        ("hard_stop", 0, "watch"),
        ("hard_stop", -1, "bad"),
        ("hard_stop", None, "bad"),
    ],
)
def test_the_monitor_follows_the_same_rule(watched, level, gold_move, state):
    found = monitor_state(read_run(watched(level=level)), gold_move)
    assert found is not None and found[0] == state


def test_gold_whose_change_is_not_significant_is_not_said_to_stay():
    """Gold rises by 0.5, of which the interval contains 0."""
    gold = paired_difference([0.0, 0.0, 1.0, 1.0], [0.0] * 4, range(4))
    light = _reward_light({"gold": gold}, {"gold": 0}, "gold")
    assert light.state == "good" and light.words == "gold +0.50 ±0.92; gold did not clearly change"


def test_the_page_shows_one_set_of_signs(watched):
    directory = watched(policies=("SFT", "a", "b", "c", "d", "PPO"))
    shown = {light.name: light.state for light in lights(read_run(directory))}
    assert shown["over-optimisation"] == "bad" and shown[MONITOR] == "bad"  # gold falls in this run
    page = write_report(directory).read_text()
    assert "strong warning (two signals)" in page and "hard_stop" not in page and "HARD_STOP" not in page


@pytest.mark.parametrize(
    ("monitor", "results", "words"),
    [
        ({"signals": ["length_z"]}, {}, "strong warning (one signal) first"),
        # part of the reward is the outcome of the task
        ({}, {"alarm/parting": 1.0}, "strong warning (two signals, or parting alone) first"),
        ({"signals": ["length_z"]}, {"alarm/parting": 1.0}, "strong warning (one signal) first"),
    ],
)
def test_a_strong_warning_names_what_the_run_asked_for(watched, monitor, results, words):
    directory = watched(**results)
    (directory / "config.yaml").write_text(json.dumps({"reward": {"monitor": monitor}}))
    found = monitor_state(read_run(directory), 0)
    assert found is not None and found[1].startswith(words)


@pytest.mark.parametrize(
    ("action", "results", "words"),
    [
        ("log", {}, "; training continued (reward.monitor.action=log only reports)"),
        # resumed with alerts.continue_paused=true
        ("pause", {}, "at 50% of checkpoints; training continued"),
        ("stop", {"stopped_at": 2.0}, "; it stopped training at iteration 3"),
    ],
)
def test_the_page_says_what_the_monitor_did(watched, action, results, words):
    directory = watched(**results)
    (directory / "config.yaml").write_text(json.dumps({"reward": {"monitor": {"action": action}}}))
    found = monitor_state(read_run(directory), 0)
    assert found is not None and found[1].endswith(words)
