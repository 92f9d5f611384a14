"""Agent prompts for a small model that was trained from scratch and knows only a few fixed phrases. The phrases are
those of `packs/agents/tools/roles.py`, on which the model was trained. The prompts contain no instructions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rlhf_lab.core.messages import Message
from rlhf_lab.core.tools import Call, Tool
from rlhf_lab.packs.agents.harness.prompts import Exchange, Instructions, Words
from rlhf_lab.packs.agents.tools.roles import prompt_of, spaced_call


class Brief(Instructions):
    """Prompts made of the fixed phrases in roles.py. Results of tools are shown without the marks `<result>`."""

    name: ClassVar[str] = "brief"
    stop: ClassVar[Sequence[str]] = ()
    marks_results: ClassVar[bool] = False

    def direct(self, question: str) -> Words:
        return "", prompt_of("answer", question)

    def with_tools(self, tools: Sequence[Tool], *, native: bool) -> str:
        return ""

    def result(self, call: Call, *, native: bool) -> Message:
        return Message(role="tool", content=call.result)

    def problem(self, text: str) -> Message:
        return Message(role="tool", content=text)

    def plan(self, question: str, tools: Sequence[Tool]) -> Words:
        return "", prompt_of("plan", question)

    def conclude(self, question: str, results: Sequence[Exchange]) -> Words:
        return self.combine(question, results)

    def split(self, question: str, tools: Sequence[Tool], limit: int) -> Words:
        return "", prompt_of("split", question)

    def combine(self, question: str, findings: Sequence[Exchange]) -> Words:
        return "", prompt_of("combine", question, found=[conclusion for _, conclusion in findings])

    def act(self, question: str, notes: str, latest: Sequence[Exchange]) -> str:
        # The notes already contain the latest result.
        return prompt_of("step", question, notes=notes)

    def note(self, question: str, notes: str, latest: Sequence[Exchange]) -> Words:
        ((call, result),) = latest  # a model with brief prompts makes one call per turn
        return "", prompt_of("note", question, notes=notes, call=call, result=result)

    def coordinate(self, *, native: bool) -> str:
        return ""

    def lead(self, question: str) -> str:
        return prompt_of("lead", question)

    def lead_from_notes(self, question: str, notes: str, latest: Sequence[Exchange]) -> str:
        # The notes already contain the latest answer.
        return prompt_of("lead_step", question, notes=notes)

    def call(self, call: Call) -> str:
        return spaced_call(call.name, [str(value) for value in call.arguments.values()])
