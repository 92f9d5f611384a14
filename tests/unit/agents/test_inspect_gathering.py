"""Questions of concurrent tasks, answered in batches: rlhf_lab/packs/agents/inspect/gathering.py."""

from __future__ import annotations

import pytest

anyio = pytest.importorskip("anyio")

from rlhf_lab.packs.agents.inspect.gathering import Gatherer  # noqa: E402


def ask_all(gatherer, questions):
    answers = {}

    async def ask(question):
        try:
            answers[question] = await gatherer.ask(question)
        except ValueError as error:
            answers[question] = str(error)

    async def main():
        async with anyio.create_task_group() as tasks:
            for question in questions:
                tasks.start_soon(ask, question)

    anyio.run(main)
    return answers


def test_questions_that_come_together_are_one_batch():
    batches = []

    def answer(questions):
        batches.append(list(questions))
        return [question * 10 for question in questions]

    assert ask_all(Gatherer(answer, 0.01), range(5)) == {number: number * 10 for number in range(5)}
    assert sorted(batches[0]) == [0, 1, 2, 3, 4] and len(batches) == 1


def test_a_question_that_cannot_be_asked_fails_alone():
    def answer(questions):
        if 2 in questions:
            raise ValueError("not 2")
        return [question * 10 for question in questions]

    assert ask_all(Gatherer(answer, 0.01), range(4)) == {0: 0, 1: 10, 2: "not 2", 3: 30}


def test_those_who_come_while_a_batch_is_answered_are_the_next_batch():
    batches = []

    def answer(questions):
        batches.append(sorted(questions))
        if len(batches) == 1:
            anyio.from_thread.run(anyio.sleep, 0.1)
        return list(questions)

    gatherer = Gatherer(answer, 0.01)
    answers = []

    async def main():
        async with anyio.create_task_group() as tasks:

            async def ask(question, after):
                await anyio.sleep(after)
                answers.append(await gatherer.ask(question))

            for question, after in ((1, 0.0), (2, 0.05), (3, 0.06)):
                tasks.start_soon(ask, question, after)

    anyio.run(main)
    assert batches == [[1], [2, 3]]
    assert sorted(answers) == [1, 2, 3]


def test_a_cancelled_question_is_not_asked():
    batches = []

    def answer(questions):
        batches.append(list(questions))
        return list(questions)

    gatherer = Gatherer(answer, 0.01)

    async def main():
        with anyio.move_on_after(0.001):
            await gatherer.ask("cancelled")
        assert await gatherer.ask("next") == "next"

    anyio.run(main)
    assert batches == [["next"]]
