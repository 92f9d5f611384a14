"""Agents without a model that write programs, whose scores are bounds for other agents that write programs.

They go through the rounds of code_executor.py. `solves` is the upper bound and `unchanged` the lower bound.
`reads_errors` repairs a program if and only if running it has failed. This is the bound for a perfect reader of
tracebacks that ignores the description.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rlhf_lab.data.text_calls import ANSWER
from rlhf_lab.packs.agents.harness.agent import Assignment, OnDone
from rlhf_lab.packs.agents.harness.code_executor import code_executor
from rlhf_lab.packs.agents.harness.program import ProgramAgent, question_of
from rlhf_lab.packs.agents.harness.prompts import RUN_FAILED, Instructions
from rlhf_lab.packs.agents.harness.resources import AgentModel, AgentResources
from rlhf_lab.packs.agents.harness.settings import ScriptedCode
from rlhf_lab.packs.agents.trajectory import AgentTrajectory
from rlhf_lab.packs.judging.judges.requests import Completion, CompletionRequest

# same value as the default of CodeExecutor.output_chars
OUTPUT_CHARS = 4000


@dataclass(frozen=True)
class ScriptedCoder:
    """A scripted agent that writes programs.

    Attributes:
        settings: settings with the behaviour.
        resources: resources of the run, whose code runner is used.
    """

    settings: ScriptedCode
    resources: AgentResources

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"agent": "scripted_code", **self.settings.identity()}

    def run_many(self, assignments: Sequence[Assignment], on_done: OnDone) -> list[AgentTrajectory]:
        # The script sees only the messages of a request, so it finds the task by its question.
        metadata_of = {question_of(assignment.task): assignment.task.metadata for assignment in assignments}
        script = Script(self.settings.behaviour, metadata_of)
        program = partial(
            code_executor,
            run_code=self.resources.run_code,
            rounds=self.settings.rounds,
            answer_is_code=True,
            output_chars=OUTPUT_CHARS,
        )
        # The script takes the place of a model, so the bounds are measured with the real code_executor.
        model = AgentModel(script, Instructions())
        return ProgramAgent(self.settings.behaviour, program, model, self.settings.identity()).run_many(
            assignments, on_done
        )


@dataclass(frozen=True)
class Script:
    """A `Completer` that answers by a fixed rule, from the metadata of the question instead of with a model."""

    behaviour: str
    metadata_of: Mapping[str, Mapping[str, Any]]

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"script": self.behaviour}

    def complete_many(self, requests: Sequence[CompletionRequest], *, title: str = "") -> list[Completion]:
        return [Completion(self._text_of(request)) for request in requests]

    def _text_of(self, request: CompletionRequest) -> str:
        metadata = self.metadata_of[request.messages[0]["content"]]
        is_first = len(request.messages) == 1
        has_failed = request.messages[-1]["content"].startswith(RUN_FAILED)
        later_messages = request.messages[1:]
        wrote_solution = any(metadata["solution"] in message["content"] for message in later_messages)
        if is_first:
            return block(metadata["solution"] if self.behaviour == "solves" else metadata["program"])
        if self.behaviour == "reads_errors" and has_failed and not wrote_solution:
            return block(metadata["solution"])
        return f"{ANSWER} done"


def block(program: str) -> str:
    """Format a program as a code block of a turn."""
    return f"```python\n{program}```"


def build(settings: ScriptedCode, resources: AgentResources) -> ScriptedCoder:
    return ScriptedCoder(settings, resources)
