"""Questions that come one by one from many tasks at once, answered together: the sampler works on batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import anyio
from anyio import to_thread

Question = TypeVar("Question")
Answer = TypeVar("Answer")


@dataclass(eq=False)
class _Waiting(Generic[Question, Answer]):
    question: Question
    answers: tuple[Answer, ...] = ()
    error: Exception | None = None


class Gatherer(Generic[Question, Answer]):
    """Answers questions of concurrent tasks in batches.

    The first task that finds nobody answering waits a moment and answers all that have come; those that come meanwhile
    wait for it, and the first of them answers the next batch.

    Args:
        answer: called in a thread, for one batch at a time; an answer per question, in their order.
        window_s: seconds to wait for further questions.
    """

    def __init__(self, answer: Callable[[Sequence[Question]], Sequence[Answer]], window_s: float):
        self._answer, self._window_s = answer, window_s
        self._waiting: list[_Waiting[Question, Answer]] = []
        self._turn = anyio.Lock()

    async def ask(self, question: Question) -> Answer:
        """The answer. Raises what `answer` raises for this question alone."""
        waiting: _Waiting[Question, Answer] = _Waiting(question)
        self._waiting.append(waiting)
        try:
            async with self._turn:
                if not waiting.answers and waiting.error is None:
                    await anyio.sleep(self._window_s)
                    batch, self._waiting = self._waiting, []
                    await to_thread.run_sync(self._answer_batch, batch)
        finally:
            if waiting in self._waiting:  # the task was cancelled
                self._waiting.remove(waiting)
        if waiting.error is not None:
            raise waiting.error
        return waiting.answers[0]

    def _answer_batch(self, batch: Sequence[_Waiting[Question, Answer]]) -> None:
        try:
            answers = self._answer([waiting.question for waiting in batch])
        except Exception as error:
            if len(batch) == 1:
                batch[0].error = error
                return
            for waiting in batch:  # one question that cannot be asked must not fail the others
                self._answer_batch([waiting])
            return
        for waiting, answer in zip(batch, answers, strict=True):
            waiting.answers = (answer,)
