"""What a monitor judges by: the settings, scaled to the run."""

from __future__ import annotations

from rlhf_lab.config.sections import Monitor
from rlhf_lab.monitoring import monitor, replay
from rlhf_lab.monitoring.trace import LIMITS_FILE, TRACE, limits


def test_planned_checkpoints_are_whole_ones():
    """25 iterations, a checkpoint every 4: six of them."""
    found = limits(Monitor(z=3.0), 25, 4, 2, seed=7)
    assert (found.planned, found.every, found.warmup, found.z, found.seed) == (6, 4, 2, 3.0, 7)


def test_the_live_monitor_and_a_replay_use_the_same_files():
    assert (monitor.TRACE, monitor.LIMITS_FILE) == (replay.TRACE, replay.LIMITS_FILE) == (TRACE, LIMITS_FILE)
