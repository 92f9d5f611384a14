"""Agents as message programs, and the driver that advances many of them at once.

A program is a generator: it yields lists of asks and gets what was said to each, in their order; what it returns is its
answer. Between two yields it calls tools, through its attempt:

    def greet(attempt):
        (said,) = yield [attempt.ask([user_message("Who are you?")])]
        return said.text

The driver asks for all live programs in one `complete_many`: a service is asked in parallel, a local model in one
batch. A program waits for nothing else, so there are neither threads nor an event loop.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from rlhf_lab.core.episodes import Task
from rlhf_lab.core.errors import LabError
from rlhf_lab.core.messages import Message
from rlhf_lab.core.tools import Call, Tool, call_tool
from rlhf_lab.data.transcript import render_prompt, to_messages
from rlhf_lab.packs.agents.harness.agent import Assignment, OnDone
from rlhf_lab.packs.agents.harness.model import AgentModel
from rlhf_lab.packs.agents.trajectory import AgentTrajectory, TrajectoryStop, Turn
from rlhf_lab.packs.judging.judges.requests import Reply, Request

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ask:
    """What a program wants of the model.

    Attributes:
        request: as the model gets it.
        part: which part of the agent speaks.
        lane: of parts that work beside each other, which one; None where there is one alone.
    """

    request: Request
    part: str
    lane: int | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """What the model said.

    Attributes:
        message: as the assistant's message of the next ask.
        tool_calls: calls of tools in the model's own form; none where it writes them as text.
        truncated: whether it was cut at its longest length.
        turn: its number among the turns of the attempt.
    """

    message: Message
    tool_calls: tuple[Mapping[str, Any], ...]
    truncated: bool
    turn: int

    @property
    def text(self) -> str:
        return self.message["content"]


Steps = Generator[list[Ask], list[Said], T]
"""A program, or a part of one, that comes to a T."""

Program = Callable[["Attempt"], Steps[str | None]]


class Ended(Exception):
    """Ends an attempt before its program returns.

    Args:
        answer: what the agent says the answer is, where it got that far.
        error: of the agent itself.
    """

    def __init__(self, stop: TrajectoryStop, answer: str | None = None, error: str = ""):
        super().__init__(stop)
        self.stop, self.answer, self.error = stop, answer, error


class Attempt:
    """One attempt of a program at a task: what it has, and its turns so far.

    Attributes:
        question: the last message of the task's prompt.
        messages: the task's prompt without instructions.
        system: the task's own instructions; "" where it has none.
        tools: by name.
        files: that come with the task besides its fact `files`: name → content.
        turns: so far; `trajectory` has them in order.
        draft: the answer should a limit of turns or calls end the attempt here; None where there is none yet.
    """

    def __init__(self, assignment: Assignment, model: AgentModel):
        self.task, self.draw, self.model = assignment.task, assignment.draw, model
        self.tools: Mapping[str, Tool] = {tool.name: tool for tool in assignment.tools}
        self.files = assignment.files
        prompt = to_messages(self.task.prompt)
        self.messages = [message for message in prompt if message["role"] != "system"]
        self.system = "\n\n".join(message["content"] for message in prompt if message["role"] == "system")
        self.question = question_of(self.task)
        self.turns: list[tuple[Turn, int | None]] = []
        self.calls = 0
        self.draft: str | None = None

    def asked(self, question: str) -> list[Message]:
        """The task's messages with another question in place of its own."""
        return [*self.messages[:-1], user_message(question)]

    def ask(
        self,
        messages: Sequence[Message],
        *,
        part: str = "agent",
        system: str = "",
        tools: Sequence[Tool] = (),
        stop: Sequence[str] = (),
        max_tokens: int = 0,
    ) -> Ask:
        """Something to be asked.

        Args:
            system: instructions; those of the task stand in front of them.
            tools: that the model may call in its own form.
            stop: texts that end what is said.
            max_tokens: 0 is `agent.max_tokens`.
        """
        request = Request(
            tuple(messages),
            system="\n\n".join(filter(None, (self.system, system))),
            max_tokens=max_tokens or self.model.max_tokens,
            draw=self.draw,
            tools=tuple(tool.definition for tool in tools),
            stop=tuple(stop),
            # what has grown too long is a result of the attempt; a first request that is refused is a wrong setting
            may_be_rejected=bool(self.turns),
        )
        return Ask(request, part)

    def call(self, said: Said, name: str, arguments: Mapping[str, Any], id: str = "") -> Call:
        """Call a tool, as the model said. Raises Ended when no calls are left."""
        self.count_call()
        call = call_tool(self.tools, name, arguments, id)
        self.record(said, call)
        return call

    def count_call(self) -> None:
        """Count a call that is about to be made. Raises Ended, with the draft as answer, when no calls are left."""
        if self.calls == self.model.max_calls:
            raise Ended("call_limit", self.draft)
        self.calls += 1

    def record(self, said: Said, call: Call) -> None:
        """Put a call to the turn that made it."""
        turn, lane = self.turns[said.turn]
        self.turns[said.turn] = replace(turn, calls=(*turn.calls, call)), lane

    def hear(self, ask: Ask, reply: Reply) -> Said:
        """A reply as a turn. Raises Ended for one that was refused, and for a request that was not taken."""
        if reply.stop == "rejected":
            raise Ended("failed", error=f"the service does not take the request: {reply.text}")
        request, usage = ask.request, reply.usage
        instructions = [Message(role="system", content=request.system)] if request.system else []
        turn = Turn(
            agent=ask.part,
            prompt=render_prompt([*instructions, *request.messages], request.tools),
            text=reply.text,
            input_tokens=usage.input_tokens + usage.cache_write_tokens + usage.cache_read_tokens,
            output_tokens=usage.output_tokens,
            cost_usd=reply.asked_cost_usd,
            stored=reply.stored,
            latency_s=reply.latency_s,
        )
        self.turns.append((turn, ask.lane))
        if reply.stop == "refused":
            raise Ended("refused")
        truncated = reply.stop == "truncated"
        return Said(reply.message, reply.tool_calls, truncated, len(self.turns) - 1)

    def trajectory(self, ended: Ended, wall_s: float) -> AgentTrajectory:
        """What became of the attempt. Turns of parts that worked beside each other follow one another."""
        turns: list[Turn] = []
        for _, members in groupby(self.turns, key=lambda member: member[1] is not None):
            in_order = sorted(members, key=_lane)  # stable: turns of one lane stay in order
            turns += [turn for turn, _ in in_order]
        return AgentTrajectory(ended.answer, tuple(turns), ended.stop, wall_s, ended.error)


def _lane(member: tuple[Turn, int | None]) -> int:
    return member[1] or 0


def question_of(task: Task) -> str:
    """The last thing that the user of a task's prompt says."""
    return next((m["content"] for m in reversed(to_messages(task.prompt)) if m["role"] == "user"), task.prompt)


def user_message(content: str) -> Message:
    return Message(role="user", content=content)


def together(parts: Sequence[Steps[T]]) -> Steps[list[T]]:
    """Parts of a program that work beside each other: what each comes to, in their order."""
    results: dict[int, T] = {}
    pending: dict[int, list[Ask]] = {}

    def advance(lane: int, said: list[Said] | None) -> None:
        try:
            pending[lane] = next(parts[lane]) if said is None else parts[lane].send(said)
        except StopIteration as returned:
            results[lane] = returned.value

    for lane in range(len(parts)):
        advance(lane, None)
    while pending:
        asking, pending = pending, {}
        all_said = yield [replace(ask, lane=lane) for lane, asks in asking.items() for ask in asks]
        heard = iter(all_said)
        for lane, asks in asking.items():
            advance(lane, [next(heard) for _ in asks])
    return [results[lane] for lane in range(len(parts))]


class ProgramAgent:
    """A program with a model: the `BatchAgent` of the lab's own agents.

    Args:
        name: as progress bars show it.
        settings: of the program, as JSON values; part of its identity.
    """

    def __init__(self, name: str, program: Program, model: AgentModel, settings: Mapping[str, Any]):
        self.name, self.program, self.model, self.settings = name, program, model, settings

    @property
    def identity(self) -> Mapping[str, Any]:
        """See `BatchAgent.identity`."""
        return {"agent": self.name, **self.settings, **self.model.identity}

    def run_many(self, assignments: Sequence[Assignment], on_done: OnDone) -> list[AgentTrajectory]:
        """See `BatchAgent.run_many`."""
        start = time.monotonic()
        trajectories: dict[int, AgentTrajectory] = {}
        live: dict[int, _Live] = {}

        def advance(number: int, replies: list[Reply] | None) -> None:
            attempt = live[number]
            ended = attempt.start() if replies is None else attempt.go_on(replies)
            if ended is not None:
                del live[number]
                trajectories[number] = attempt.attempt.trajectory(ended, time.monotonic() - start)
                on_done(number, trajectories[number])

        for number, assignment in enumerate(assignments):
            live[number] = _Live(self.program, Attempt(assignment, self.model))
            advance(number, None)
        while live:
            asking = {number: attempt.asks for number, attempt in live.items()}
            requests = [ask.request for asks in asking.values() for ask in asks]
            title = f"{self.name}: {len(trajectories)} of {len(assignments)} tasks done"
            replies = iter(self.model.completer.complete_many(requests, title=title))
            for number, asks in asking.items():
                advance(number, [next(replies) for _ in asks])
        return [trajectories[number] for number in range(len(assignments))]


class _Live:
    """An attempt that has not ended, and what it is asking."""

    def __init__(self, program: Program, attempt: Attempt):
        self.attempt = attempt
        self.steps = program(attempt)
        self.asks: list[Ask] = []

    def start(self) -> Ended | None:
        return self._advance(lambda: next(self.steps))

    def go_on(self, replies: Sequence[Reply]) -> Ended | None:
        """Hand replies to the asks on. Returns why the attempt ended; None where it goes on."""

        def send() -> list[Ask]:
            said = [self.attempt.hear(ask, reply) for ask, reply in zip(self.asks, replies, strict=True)]
            return self.steps.send(said)

        return self._advance(send)

    def _advance(self, next_asks: Callable[[], list[Ask]]) -> Ended | None:
        try:
            self.asks = next_asks()
            if len(self.attempt.turns) + len(self.asks) > self.attempt.model.max_turns:
                self.steps.close()
                return Ended("turn_limit", self.attempt.draft)
            return None
        except StopIteration as returned:
            return Ended("answered", returned.value)
        except Ended as ended:
            self.steps.close()
            return ended
        except LabError:  # of the infrastructure, such as a sandbox that cannot be made
            raise
        except Exception as error:  # of a tool or of the program: one task must not end the others
            return Ended("failed", error=failure(error))


def failure(error: Exception) -> str:
    """An error of an agent in one line, with the place that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"
