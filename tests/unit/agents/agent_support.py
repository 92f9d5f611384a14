"""Models and tasks that agents are tested with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlhf_lab.core.episodes import Task
from rlhf_lab.core.errors import JudgeUnavailable
from rlhf_lab.core.tools import Tool, function_call
from rlhf_lab.data.transcript import render_prompt
from rlhf_lab.packs.agents.harness.agent import Assignment
from rlhf_lab.packs.agents.harness.model import AgentModel
from rlhf_lab.packs.agents.harness.program import Program, ProgramAgent
from rlhf_lab.packs.agents.harness.prompts import Instructions, Prompts
from rlhf_lab.packs.agents.tools.knowledge import KnowledgeBase, calculator_tool, search_tool
from rlhf_lab.packs.agents.trajectory import AgentTrajectory
from rlhf_lab.packs.judging.judges.requests import Reply, Request, Usage

FACTS = {
    "Velmora": {"capital": "Ossin"},
    "Ossin": {"population": "1200", "mayor": "Tal"},
    "Quorin": {"population": "800"},
}
BASE = KnowledgeBase(FACTS, moved={"Old Velmora": "Velmora"})


class FakeModel:
    """Answers by a function, and remembers what it was asked, call by call.

    Args:
        answer: request → its reply, or the text of one.
        fails_after: replies after which it is away.
    """

    def __init__(self, answer: Callable[[Request], Reply | str], fails_after: int | None = None):
        self.answer, self.fails_after = answer, fails_after
        self.rounds: list[list[Request]] = []

    @property
    def asked(self) -> list[Request]:
        return [request for asked in self.rounds for request in asked]

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"kind": "fake"}

    def complete_many(self, requests: Sequence[Request], *, title: str = "") -> list[Reply]:
        if self.fails_after is not None and len(self.asked) + len(requests) > self.fails_after:
            raise JudgeUnavailable("the model is away")
        self.rounds.append(list(requests))
        replies = []
        for request in requests:
            reply = self.answer(request)
            replies.append(Reply(reply, usage=Usage(10, 0, 5, 3)) if isinstance(reply, str) else reply)
        return replies


def calls(*named: tuple[str, Mapping[str, Any]], text: str = "") -> Reply:
    """A reply that calls tools in the model's own form."""
    made = [function_call(name, arguments, id=f"call{i}") for i, (name, arguments) in enumerate(named)]
    return Reply(text, tool_calls=tuple(made))


def script(*turns: Reply | str) -> Callable[[Request], Reply | str]:
    """Answers one after the other, whatever is asked; one conversation at a time."""
    left = list(turns)
    return lambda request: left.pop(0)


def tools() -> list[Tool]:
    return [search_tool(BASE), calculator_tool()]


def assignment(question: str = "Who is the mayor of the capital of Velmora?", **fields: Any) -> Assignment:
    prompt = render_prompt([{"role": "user", "content": question}])
    return Assignment(Task(prompt, {"question": question}), tuple(fields.pop("tools", tools())), **fields)


def agent(program: Program, model: FakeModel, prompts: Prompts | None = None, **settings: Any) -> ProgramAgent:
    return ProgramAgent("tested", program, AgentModel(model, prompts or Instructions(), **settings), {})


def run(program: Program, model: FakeModel, *assignments: Assignment, **settings: Any) -> list[AgentTrajectory]:
    return agent(program, model, **settings).run_many(assignments or (assignment(),), lambda number, trajectory: None)


def last(request: Request) -> str:
    """The last message of a request."""
    return request.messages[-1]["content"]
