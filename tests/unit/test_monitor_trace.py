"""Criteria of a monitor: the settings, scaled to the run."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from rlhf_lab.core.episodes import Episode, Segment, Task
from rlhf_lab.core.types import Corpus, RewardBatch
from rlhf_lab.monitoring import monitor
from rlhf_lab.monitoring.detector import DetectorSettings, DetectorVerdict, IterationBatch
from rlhf_lab.monitoring.settings import Alerts, Monitor
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
    disagreement_N, unverified_N = watch.listener.recorded(episodes)
    row = watch.row(episodes, np.array([0.9, 0.8]), disagreement_N, unverified_N)
    batch = IterationBatch.from_row(row)
    assert row["tokens"] == [5, 5] and row["unverified"] == [-0.1, -0.2]
    assert ("turns" in row) is batch.by_turn is (environment is not None)
    assert batch.length_N.tolist() == ([2.5, 2.5] if environment else [5, 5])
    # beside the outcome −.1 and −.2, of outcomes of 1 each
    assert batch.parting_N == pytest.approx([-1.1, -1.2])


def watching(tmp_path, **settings) -> monitor.Watch:
    """A monitor of 20 iterations with `action=raise_kl`, without alerts."""
    graph = RewardGraph(terms={"a": object()}, monitor=Monitor(action="raise_kl", **settings))
    config = SimpleNamespace(reward=graph, alerts=Alerts())
    return monitor.Watch(SimpleNamespace(config=config, directory=tmp_path, seed=lambda purpose: 0), 20)


class Alarming:
    """A detector with a strong warning at these checkpoints, of which each iteration is one."""

    def __init__(self, at):
        self.at, self.iteration, self.checkpoints = at, 0, 0
        self.first = {"warning": -1, "hard_stop": -1}  # announced before

    def see(self, batch):
        self.iteration, self.checkpoints = self.iteration + 1, self.checkpoints + 1
        return DetectorVerdict({}, ("length_z",), 2 if self.checkpoints in self.at else 0, scored=1, unscored=0)

    def band(self):
        return None

    def state_dict(self):
        return {"iteration": self.iteration, "checkpoints": self.checkpoints}

    def load_state_dict(self, state):
        self.iteration, self.checkpoints = state["iteration"], state["checkpoints"]


ROW = {"prompt": [0], "tokens": [5], "reward": [1.0]}


@pytest.mark.parametrize(
    ("rising", "raised"),
    [
        (2, [1, 4, 6, 9]),  # at 5 and 7 the last one was a checkpoint ago
        (3, [1, 4, 7]),  # at 5 and 6 it was one and two ago, at 9 two
    ],
)
def test_the_kl_coefficient_is_raised_at_most_once_in_rising_checkpoints(rising, raised, tmp_path):
    """Strong warnings at checkpoints 1, 4, 5, 6, 7 and 9. The first one counts, though nothing was raised before."""
    at = [1, 4, 5, 6, 7, 9]
    watch = watching(tmp_path, rising=rising, factor=3.0)
    watch.detector = Alarming(at)
    factors = []
    for iteration in range(10):
        if iteration == 5:  # a resumed run waits as long as one that was not interrupted
            saved = watch.state_dict()
            watch = watching(tmp_path, rising=rising, factor=3.0)
            watch.detector = Alarming(at)
            watch.load_state_dict(saved)
        watch.see(ROW)
        factors.append(watch.raised_by)
    assert [checkpoint for checkpoint, factor in enumerate(factors, start=1) if factor == 3.0] == raised
    assert sorted(set(factors)) == [1.0, 3.0]
    assert watch.factor == 3.0 ** len(raised)
