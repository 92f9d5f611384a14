"""Criteria of a monitor: the settings, scaled to the run."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from rlhf_lab.core.episodes import Episode, Segment, Task
from rlhf_lab.core.types import Corpus, RewardBatch
from rlhf_lab.monitoring import monitor
from rlhf_lab.monitoring.detector import DetectorSettings, IterationBatch
from rlhf_lab.monitoring.settings import Monitor
from rlhf_lab.rewards.settings import RewardGraph


def test_planned_checkpoints_are_whole_ones():
    """25 iterations, a checkpoint every 4: six of them."""
    found = DetectorSettings.of(Monitor(z=3.0), 25, every=4, warmup=2, seed=7)
    assert (found.planned, found.every, found.warmup, found.z, found.seed) == (6, 4, 2, 3.0, 7)


def agent_episode(number: int) -> Episode:
    """Two turns of 3 and 2 tokens, and 4 of a tool between them."""
    segments = (Segment([1, 2, 3], True), Segment([4, 5, 6, 7], False), Segment([8, 9], True))
    return Episode(Task("question"), f"question and call {number}", "answer", [0], segments)


@pytest.mark.parametrize("environment", [None, object()], ids=["replies", "environment"])
def test_a_row_has_turns_where_an_environment_answers(environment, tmp_path):
    corpus = Corpus("toy", [], [], "", environment=environment)
    run = SimpleNamespace(
        config=SimpleNamespace(reward=RewardGraph(terms={"a": object()})),
        corpus=corpus,
        directory=tmp_path,
        seed=lambda purpose: 0,
        measure_samples=lambda episodes: {},
    )
    watch = monitor.Watch(run, 10)
    episodes = [agent_episode(0), agent_episode(1)]

    class Reward:
        observe = state_dict = load_state_dict = None

        def __call__(self, episodes):
            return RewardBatch(np.array([0.9, 0.8]), unverified_N=np.array([-0.1, -0.2]))

    watch.listen(Reward())(episodes)
    row = watch.row(episodes, np.array([0.9, 0.8]), watch.listener.recorded(episodes))
    batch = IterationBatch.from_row(row)
    assert row["tokens"] == [5, 5] and row["unverified"] == [-0.1, -0.2]
    assert ("turns" in row) is batch.by_turn is (environment is not None)
    assert batch.length_N.tolist() == ([2.5, 2.5] if environment else [5, 5])
    # beside the outcome −.1 and −.2, of outcomes of 1 each
    assert batch.parting_N == pytest.approx([-1.1, -1.2])
