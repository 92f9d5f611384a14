"""The embedded world as a judge and as a writer: answers from `Request.about`, reads no text, sends nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.types import HarmKnowing
from rlhf_lab.judges.backends.settings import Simulated
from rlhf_lab.judges.caller import Caller
from rlhf_lab.judges.questions import Refusal
from rlhf_lab.judges.requests import Reply, Request


class SimulatedBackend:
    """Answers in the form that the requests ask a language model for."""

    def __init__(self, settings: Simulated, caller: Caller):
        self.settings, self.caller = settings, caller

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"kind": "simulated", **self.settings.identity()}

    def complete_many(self, requests: Sequence[Request], *, title: str = "") -> list[Reply]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Reply:
        if isinstance(request.about, Refusal):
            return self._say_what_it_did(request.about)
        raise ConfigError(f"judge=simulated cannot answer {type(request.about).__name__}")

    def _say_what_it_did(self, question: Refusal) -> Reply:
        """What a reply did about its prompt, by the truth."""
        if not isinstance(self.caller.oracle, HarmKnowing):
            raise ConfigError("judge=simulated cannot tell refusals in these data; use data=mini_hh, or another judge")
        (outcome,) = self.caller.oracle.safety_outcomes([question.prompt], [question.reply])
        return Reply(json.dumps({"outcome": outcome}))


def build(settings: Simulated, caller: Caller) -> SimulatedBackend:
    if caller.oracle is None:
        raise ConfigError(
            "judge=simulated answers from the truth of an embedded world, and these data have none; use data=mini_hh, "
            "or judge=anthropic, openai_compatible or local"
        )
    return SimulatedBackend(settings, caller)
