"""Models and tasks that agents are tested with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlhf_lab.core.episodes import Task
from rlhf_lab.core.errors import JudgeUnavailable
from rlhf_lab.core.tools import Tool, function_call
from rlhf_lab.data.transcript import render_prompt
from rlhf_lab.packs.agents.harness.agent import Assignment
from rlhf_lab.packs.agents.harness.program import Program, ProgramAgent
from rlhf_lab.packs.agents.harness.prompts import Instructions
from rlhf_lab.packs.agents.harness.resources import AgentModel
from rlhf_lab.packs.agents.tools.knowledge import ToolKnowledge, calculator_tool, search_tool
from rlhf_lab.packs.agents.trajectory import AgentTrajectory
from rlhf_lab.packs.code.sandbox.outcome import ProgramOutcome, Status
from rlhf_lab.packs.judging.judges.requests import Completion, CompletionRequest, Usage

FACTS = {
    "Velmora": {"capital": "Ossin"},
    "Ossin": {"population": "1200", "mayor": "Tal"},
    "Quorin": {"population": "800"},
}
BASE = ToolKnowledge(FACTS, moved={"Old Velmora": "Velmora"})


class FakeModel:
    """Client that answers by a function, and records its requests, call by call.

    Args:
        answer: request → its completion, or the text of one.
        fails_after: number of completions after which it is unavailable.
    """

    def __init__(self, answer: Callable[[CompletionRequest], Completion | str], fails_after: int | None = None):
        self.answer, self.fails_after = answer, fails_after
        self.rounds: list[list[CompletionRequest]] = []

    @property
    def asked(self) -> list[CompletionRequest]:
        return [request for requested in self.rounds for request in requested]

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"kind": "fake"}

    def complete_many(self, requests: Sequence[CompletionRequest], *, title: str = "") -> list[Completion]:
        if self.fails_after is not None and len(self.asked) + len(requests) > self.fails_after:
            raise JudgeUnavailable("the model is away")
        self.rounds.append(list(requests))
        responses = []
        for request in requests:
            response = self.answer(request)
            responses.append(Completion(response, usage=Usage(10, 0, 5, 3)) if isinstance(response, str) else response)
        return responses


def calls(*named: tuple[str, Mapping[str, Any]], text: str = "") -> Completion:
    """A completion that calls tools in the model's own form."""
    generated = [function_call(name, arguments, id=f"call{i}") for i, (name, arguments) in enumerate(named)]
    return Completion(text, tool_calls=tuple(generated))


def script(*turns: Completion | str) -> Callable[[CompletionRequest], Completion | str]:
    """Answer one after the other, whatever the request; one conversation at a time."""
    left = list(turns)
    return lambda request: left.pop(0)


def ran(
    status: Status = "ok", stdout: str = "", stderr: str = "", files: Mapping[str, bytes] | None = None
) -> ProgramOutcome:
    """Return the result of a program that nobody has run."""
    return ProgramOutcome(status, 0, stdout, stderr, 0.0, 0.0, "rlimits", files)


def tools() -> list[Tool]:
    return [search_tool(BASE), calculator_tool()]


def assignment(question: str = "Who is the mayor of the capital of Velmora?", **fields: Any) -> Assignment:
    prompt = render_prompt([{"role": "user", "content": question}])
    return Assignment(Task(prompt, {"question": question}), tuple(fields.pop("tools", tools())), **fields)


def agent(program: Program, model: FakeModel, prompts: Instructions | None = None, **settings: Any) -> ProgramAgent:
    return ProgramAgent("tested", program, AgentModel(model, prompts or Instructions(), **settings), {})


def run(program: Program, model: FakeModel, *assignments: Assignment, **settings: Any) -> list[AgentTrajectory]:
    return agent(program, model, **settings).run_many(assignments or (assignment(),), lambda number, trajectory: None)


def last(request: CompletionRequest) -> str:
    """The last message of a request."""
    return request.messages[-1]["content"]
