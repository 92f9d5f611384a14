"""Batching of requests that come one by one from many concurrent tasks, because the sampler works on batches."""

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
    """Collects questions of concurrent tasks and answers them in batches.

    The first task that finds no batch in progress waits for a short time, then answers all questions collected so far.
    Tasks that arrive during a batch wait for its end, and the first of them answers the next batch.

    Args:
        answer: returns one answer per question, in the same order. It is called in a thread, for one batch at a time.
        window_s: seconds to wait for further questions.
    """

    def __init__(self, answer: Callable[[Sequence[Question]], Sequence[Answer]], window_s: float):
        self._answer, self._window_s = answer, window_s
        self._waiting: list[_Waiting[Question, Answer]] = []
        self._turn = anyio.Lock()

    async def ask(self, question: Question) -> Answer:
        """Return the answer to a question. Raise the error that `answer` raises for it, unaffected by other questions
        of the batch.
        """
        waiting: _Waiting[Question, Answer] = _Waiting(question)
        self._waiting.append(waiting)
        try:
            async with self._turn:
                # Another task may have answered this question while this one waited for the lock.
                if not waiting.answers and waiting.error is None:
                    await anyio.sleep(self._window_s)
                    batch, self._waiting = self._waiting, []
                    await to_thread.run_sync(self._answer_batch, batch)
        finally:
            if waiting in self._waiting:  # the task was cancelled before its batch began
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
            for waiting in batch:  # one invalid question must not fail the others, so each is tried alone
                self._answer_batch([waiting])
            return
        for waiting, answer in zip(batch, answers, strict=True):
            waiting.answers = (answer,)
