"""What the parts of an agent are told where the model knows a few fixed phrases: one that the lab trained itself.

There are no instructions: the phrases are those of `packs/agents/tools/roles.py`, which the model was trained on.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_lab.core.messages import Message
from rlhf_lab.core.tools import Call, Tool
from rlhf_lab.packs.agents.harness.prompts import Exchange, Instructions, Words
from rlhf_lab.packs.agents.tools.roles import prompt_of, spaced_call


class Brief(Instructions):
    """The phrases of the roles, and results as they are."""

    stop: Sequence[str] = ()

    def __init__(self) -> None:
        super().__init__(marks_results=False)
        self.name = "brief"

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

    def split(self, question: str, tools: Sequence[Tool], most: int) -> Words:
        return "", prompt_of("split", question)

    def combine(self, question: str, findings: Sequence[Exchange]) -> Words:
        return "", prompt_of("combine", question, found=[finding for _, finding in findings])

    def act(self, question: str, notes: str, latest: Sequence[Exchange]) -> str:
        # the latest result is in the notes already
        return prompt_of("step", question, notes=notes)

    def note(self, question: str, notes: str, latest: Sequence[Exchange]) -> Words:
        ((call, result),) = latest  # a model that is spoken to in brief makes one call a turn
        return "", prompt_of("note", question, notes=notes, call=call, result=result)

    def call(self, call: Call) -> str:
        return spaced_call(call.name, [str(value) for value in call.arguments.values()])
