"""A judge for tests: answers by a function, and remembers what it was asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlhf_lab.core.errors import JudgeUnavailable
from rlhf_lab.packs.judging.judges.requests import Completion, CompletionRequest


def says(**answer: Any) -> Completion:
    """A JSON object as an answer."""
    return Completion(json.dumps(answer))


class FakeJudge:
    """Args:
    answer: request → its answer, or the text of one.
    fails_after: answers after which it is down.
    """

    def __init__(self, answer: Callable[[CompletionRequest], Completion | str], fails_after: int | None = None):
        self.answer, self.fails_after = answer, fails_after
        self.asked: list[CompletionRequest] = []

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"kind": "fake"}

    def complete_many(self, requests: Sequence[CompletionRequest], *, title: str = "") -> list[Completion]:
        responses = []
        for request in requests:
            if self.fails_after is not None and len(self.asked) >= self.fails_after:
                raise JudgeUnavailable("the judge is down")
            self.asked.append(request)
            response = self.answer(request)
            responses.append(Completion(response) if isinstance(response, str) else response)
        return responses


def text_of(request: CompletionRequest) -> str:
    """The question as the judge reads it."""
    return request.messages[-1]["content"]
