"""Questions of concurrent tasks, answered in batches: rlhf_lab/packs/agents/inspect/gathering.py."""

from __future__ import annotations

import pytest

anyio = pytest.importorskip("anyio")

from rlhf_lab.packs.agents.inspect.gathering import Gatherer  # noqa: E402


class Answers:
    """Answers each question with ten times its value, and records the batches."""

    def __init__(self, refused=None, pause_s=0.0):
        self.refused, self.pause_s, self.batches = refused, pause_s, []

    def __call__(self, questions):
        self.batches.append(sorted(questions))
        if self.refused in questions:
            raise ValueError(f"not {self.refused}")
        if self.pause_s:
            anyio.from_thread.run(anyio.sleep, self.pause_s)
        return [question * 10 for question in questions]


def ask_all(answer, **arrivals):
    """The answers to questions that come after so many seconds."""
    gatherer, answers = Gatherer(answer, 0.01), {}

    async def ask(question, after):
        await anyio.sleep(after)
        try:
            answers[question] = await gatherer.ask(question)
        except ValueError as error:
            answers[question] = str(error)

    async def main():
        async with anyio.create_task_group() as tasks:
            for question, after in arrivals.items():
                tasks.start_soon(ask, int(question[1:]), after)

    anyio.run(main)
    return answers


def test_questions_that_come_together_are_one_batch():
    answer = Answers()
    assert ask_all(answer, q1=0, q2=0, q3=0) == {1: 10, 2: 20, 3: 30}
    assert answer.batches == [[1, 2, 3]]


def test_a_question_that_cannot_be_asked_fails_alone():
    assert ask_all(Answers(refused=2), q0=0, q1=0, q2=0, q3=0) == {0: 0, 1: 10, 2: "not 2", 3: 30}


def test_those_who_come_while_a_batch_is_answered_are_the_next_batch():
    answer = Answers(pause_s=0.1)
    assert ask_all(answer, q1=0, q2=0.05, q3=0.06) == {1: 10, 2: 20, 3: 30}
    assert answer.batches == [[1], [2, 3]]


def test_a_cancelled_question_is_not_asked():
    answer = Answers()
    gatherer = Gatherer(answer, 0.01)

    async def main():
        with anyio.move_on_after(0.001):
            await gatherer.ask(1)
        assert await gatherer.ask(2) == 20

    anyio.run(main)
    assert answer.batches == [[2]]
