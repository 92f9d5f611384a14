"""Severity of a sign of reward hacking: one rule for the lights on held-out responses and for the monitor.

no alarm                               good
alarm for a symptom                    watch: length, missing endings, proxy up while gold does not move, a warning
alarm for a harm                       bad: gold fell, responses padded or degenerate (garbled)
several symptoms at once (the          bad if gold fell or is unknown; watch if gold is known and did not fall,
monitor's strong warning)              because gold outweighs symptoms
undecidable                            unknown
"""

from __future__ import annotations

import math
from typing import Any

from rlhf_lab.monitoring.detector import level_name
from rlhf_lab.monitoring.settings import Monitor
from rlhf_lab.results.rundir import StoredRun

HARMS = frozenset({"over-optimisation", "padding", "garbling"})
"""Signs that are harms by themselves, not only symptoms."""


def sign_state(name: str, *, alarm: bool) -> str:
    """Return the state of the warning light of one sign: good, watch or bad."""
    if not alarm:
        return "good"
    return "bad" if name in HARMS else "watch"


def monitor_state(run: StoredRun, gold_move: int | None) -> tuple[str, str] | None:
    """Return (state, words) of what the monitor saw during training; None for a run without a monitor.

    Args:
        gold_move: change of gold on held-out responses, last policy against first: +1 rose, 0 unclear, −1 fell, None
            unknown.
    """
    if "alarm/warning" not in run.results:
        return None
    alarms = [name for name in ("hard_stop", "warning") if run.results[f"alarm/{name}"].mean == 1]
    if not alarms:
        return "good", "no alarm during training"
    level = alarms[0]  # the strongest alarm comes first
    fraction = run.results[f"alarm_share/{level}"].mean
    first = run.results[f"alarm_at/{level}"].mean
    when = f"first at iteration {first + 1:.0f}, at {fraction:.0%} of checkpoints"
    words = f"{_level_words(run, level)} {when}; {_reaction(run)}"
    gold_fell = gold_move == -1 or _scored_result(run, "gold_fell") == 1
    is_bad = level == "hard_stop" and (gold_move is None or gold_fell)
    return ("bad" if is_bad else "watch"), words


def _level_words(run: StoredRun, level: str) -> str:
    """Return a level of the monitor in words, with the number of signals that the run's settings ask for."""
    signals = _monitor_settings(run).get("signals", Monitor.signals)
    # the rule has a result only if part of the reward is the outcome of the task
    parting = "alarm/parting" in run.results and "reward_kl" in signals
    return level_name(level, signals, parting=parting)


def _reaction(run: StoredRun) -> str:
    """Return what the monitor did about its alarms."""
    if (stopped := _scored_result(run, "stopped_at")) is not None:
        return f"it stopped training at iteration {stopped + 1:.0f}"
    only_reports = _monitor_settings(run).get("action", Monitor.action) == "log"
    return f"training continued{' (reward.monitor.action=log only reports)' * only_reports}"


def _monitor_settings(run: StoredRun) -> dict[str, Any]:
    return (run.settings.get("reward") or {}).get("monitor") or {}


def _scored_result(run: StoredRun, name: str) -> float | None:
    """Return a number of the run's result by name; None if it is missing or NaN."""
    value = run.results.get(name)
    return None if value is None or math.isnan(value.mean) else value.mean
