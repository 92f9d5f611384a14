"""Conversations to imitate: what becomes a row of a task's attempts."""

from __future__ import annotations

from rlhf_lab.core.episodes import Episode, Segment, Task
from rlhf_lab.data.generated import read_generated, write_generated
from rlhf_lab.packs.agents.synthesis.settings import Trajectories
from rlhf_lab.packs.agents.synthesis.trajectories import (
    OwnTrajectories,
    StoredAttempt,
    by_category,
    demonstrated,
    sampled_attempt,
)
from rlhf_lab.packs.agents.tools.settings import HabitSettings, Tools
from rlhf_lab.packs.agents.tools.tools import build

TASK = Task("\n\nHuman: where?\n\nAssistant:", {"category": "lookup"})


def maker(**settings) -> OwnTrajectories:
    """A maker that samples nothing."""
    generated = object.__new__(OwnTrajectories)
    generated.settings = Trajectories(**settings)
    generated.heldout = {"\n\nHuman: held out\n\nAssistant:"}
    return generated


def attempt(turns: int, success: float | None) -> StoredAttempt:
    return StoredAttempt(f"{TASK.prompt} {turns}", f"answer {turns}", success, turns)


def test_the_shortest_success_is_the_row():
    row = maker()._row(TASK, [attempt(2, 0.0), attempt(5, 1.0), attempt(3, 1.0), attempt(4, 1.0)])
    assert (row["completion"], row["turns"], row["problem"]) == ("answer 3", 3, None)
    assert row["success"] == 0.75 and row["attempts"] == 4


def test_a_task_without_success_is_no_row_unless_failures_are_kept_or_nothing_is_known():
    failures = [attempt(4, 0.0), attempt(2, 0.0)]
    assert maker()._row(TASK, failures)["problem"] == "no attempt succeeded"
    row = maker(only_successes=False)._row(TASK, failures)
    assert (row["completion"], row["problem"]) == ("answer 2", None)
    row = maker()._row(TASK, [attempt(2, None)])
    assert row["problem"] is None and row["success"] is None and "correct_chosen" not in row


def test_a_demonstration_is_graded_as_the_policy_is():
    """An oracle that runs out of patience with busy tools answers `unknown`: that is no success."""
    corpus = build(Tools(train_tasks=30, test_tasks=5, busy=0.9))
    generated = maker()
    generated.environment = corpus.environment
    tasks = corpus.tasks("train")
    graded = [attempt.success for (attempt,) in generated._demonstrate(tasks)]
    wrong = [demonstrated(corpus.environment, task).completion.endswith("unknown") for task in tasks]
    assert 0.0 in graded
    assert [success == 0.0 for success in graded] == wrong


def test_a_held_out_task_is_no_row():
    task = Task("\n\nHuman: held out\n\nAssistant:")
    assert maker()._row(task, [attempt(2, 1.0)])["problem"] == "near a held-out prompt"


def test_a_cut_attempt_is_no_success():
    segment = Segment([5], sampled=True, logps=[-1.0])
    cut = Episode(TASK, TASK.prompt, "Answer: x", [1], (segment,), finished=False)
    assert sampled_attempt(cut, 1.0).success == 0.0


def sampled(response: str, turns: int, *, finished: bool) -> Episode:
    segments = (Segment([5], sampled=True, logps=[-1.0]), Segment([6], sampled=False)) * turns
    return Episode(TASK, TASK.prompt, response, [1], segments[:-1], finished=finished)


def test_without_grades_a_cut_attempt_is_neither_a_failure_nor_the_row():
    """The cut attempt is the shortest one, and nothing is known about success: the row is the complete attempt."""
    episodes = [sampled("to be contin", 1, finished=False), sampled("whole", 2, finished=True)]
    attempts = [sampled_attempt(episode, None) for episode in episodes]
    row = maker(only_successes=False)._row(TASK, attempts)
    assert (row["completion"], row["turns"], row["problem"]) == ("whole", 2, None)
    assert row["success"] is None and "correct_chosen" not in row
    assert maker(only_successes=False)._row(TASK, attempts[:1])["problem"] == "the chosen attempt was cut off"


def test_shares_by_category():
    rows = [{"category": name, "problem": problem} for name, problem in (("sum", None), ("sum", "x"), ("a", None))]
    means = {name: estimate.mean for name, estimate in by_category(rows).items()}
    assert means == {"made/accepted/a": 1.0, "made/accepted/sum": 0.5}


def test_the_world_shows_what_its_own_rows_show(tmp_path):
    """A made row reads like a demonstration of the data without habits, and is learned from the same tokens."""
    none = HabitSettings(wrong_relation=0.0, take_redirect=0.0, stop_early=0.0, repeat_call=0.0)
    corpus = build(Tools(train_tasks=40, test_tasks=5, habits=none))
    environment = corpus.environment
    for pair, task in zip(corpus.train, corpus.tasks("train"), strict=True):
        shown = demonstrated(environment, task)
        assert (shown.prompt, shown.completion) == (pair.prompt, pair.chosen)
    row = {"prompt": corpus.train[0].prompt, "completion": corpus.train[0].chosen, "learn_from": 1}
    write_generated(tmp_path, "demonstrations", [row], [], {})
    (generated,) = read_generated(tmp_path, "demonstrations")
    assert generated.meta["learn_from"] == corpus.train[0].meta["learn_from"] == 1
