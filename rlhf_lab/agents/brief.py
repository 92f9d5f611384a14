"""What the parts of an agent are told where the model knows a few fixed phrases: one that the lab trained itself."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_lab.agents.prompts import Instructions
from rlhf_lab.core.messages import Message
from rlhf_lab.core.tools import Call, Tool


class Brief(Instructions):
    """No instructions: the task, and results as they are."""

    name = "brief"
    stop: Sequence[str] = ()

    def __init__(self) -> None:
        self.marks_results = False

    def direct(self) -> str:
        return ""

    def with_tools(self, tools: Sequence[Tool], *, native: bool) -> str:
        return ""

    def result(self, call: Call, *, native: bool) -> Message:
        if native:
            return super().result(call, native=True)
        return Message(role="tool", content=call.result)

    def problem(self, text: str) -> Message:
        return Message(role="tool", content=text)
