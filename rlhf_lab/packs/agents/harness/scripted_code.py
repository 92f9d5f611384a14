"""Agents that write programs without a model, which bound what any agent that writes programs can score.

They go through the rounds of code_executor.py. `solves` is the most that is possible, `unchanged` the least;
`reads_errors` repairs a program if and only if running it has failed: what a perfect reader of tracebacks can do who
does not read the description.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rlhf_lab.data.text_calls import ANSWER
from rlhf_lab.packs.agents.harness.agent import Assignment, OnDone
from rlhf_lab.packs.agents.harness.code_executor import code_executor
from rlhf_lab.packs.agents.harness.model import AgentModel
from rlhf_lab.packs.agents.harness.program import ProgramAgent, question_of
from rlhf_lab.packs.agents.harness.prompts import RUN_FAILED, Instructions
from rlhf_lab.packs.agents.harness.settings import ScriptedCode
from rlhf_lab.packs.agents.harness.surroundings import Surroundings
from rlhf_lab.packs.agents.trajectory import AgentTrajectory
from rlhf_lab.packs.judging.judges.requests import Reply, Request

OUTPUT_CHARS = 4000


@dataclass(frozen=True)
class ScriptedCoder:
    """Attributes:
    settings: with the behaviour.
    surroundings: of which it needs what runs code.
    """

    settings: ScriptedCode
    surroundings: Surroundings

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"agent": "scripted_code", **self.settings.identity()}

    def run_many(self, assignments: Sequence[Assignment], on_done: OnDone) -> list[AgentTrajectory]:
        """See `BatchAgent.run_many`."""
        facts_of = {question_of(assignment.task): assignment.task.facts for assignment in assignments}
        script = Script(self.settings.behaviour, facts_of)
        program = partial(
            code_executor,
            run_code=self.surroundings.run_code,
            rounds=self.settings.rounds,
            answer_is_code=True,
            output_chars=OUTPUT_CHARS,
        )
        model = AgentModel(script, Instructions())
        return ProgramAgent(self.settings.behaviour, program, model, self.settings.identity()).run_many(
            assignments, on_done
        )


@dataclass(frozen=True)
class Script:
    """A `Completer` that knows the facts of every question."""

    behaviour: str
    facts_of: Mapping[str, Mapping[str, Any]]

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"script": self.behaviour}

    def complete_many(self, requests: Sequence[Request], *, title: str = "") -> list[Reply]:
        return [Reply(self._said(request)) for request in requests]

    def _said(self, request: Request) -> str:
        facts = self.facts_of[request.messages[0]["content"]]
        is_first = len(request.messages) == 1
        has_failed = request.messages[-1]["content"].startswith(RUN_FAILED)
        wrote_solution = any(facts["solution"] in message["content"] for message in request.messages[1:])
        if is_first:
            return block(facts["solution"] if self.behaviour == "solves" else facts["program"])
        if self.behaviour == "reads_errors" and has_failed and not wrote_solution:
            return block(facts["solution"])
        return f"{ANSWER} done"


def block(program: str) -> str:
    """A program as a turn has it."""
    return f"```python\n{program}```"


def build(settings: ScriptedCode, surroundings: Surroundings) -> ScriptedCoder:
    return ScriptedCoder(settings, surroundings)
