"""Agents as message programs, and the driver that advances many of them at once.

A program is a generator. It yields a list of model requests and receives one output per request, in the same order. Its
return value is the answer. Between two yields it calls tools through its attempt:

    def greet(attempt):
        (output,) = yield [attempt.ask([user_message("Who are you?")])]
        return output.text

The driver collects the requests of all live programs and sends them in one `complete_many`. A service then answers them
in parallel, and a local model answers them in one batch. A program waits for nothing else, so the driver needs neither
threads nor an event loop.
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
from rlhf_lab.core.progress import progress
from rlhf_lab.core.tools import Call, Tool, call_tool
from rlhf_lab.data.transcript import render_prompt, to_messages
from rlhf_lab.packs.agents.harness.agent import Assignment, OnDone
from rlhf_lab.packs.agents.harness.resources import AgentModel
from rlhf_lab.packs.agents.trajectory import AgentTrajectory, ModelTurn, TrajectoryStop
from rlhf_lab.packs.judging.judges.requests import Completion, CompletionRequest

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ask:
    """A model request of a program.

    Attributes:
        request: the completion request that is sent to the model.
        part: name of the part of the agent that sends it, e.g. "planner".
        lane: index of the parallel branch; None if there is only one.
    """

    request: CompletionRequest
    part: str
    lane: int | None = None


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """One output of the model.

    Attributes:
        message: the output as an assistant message, to be appended to the next request.
        tool_calls: native tool calls; empty if the model writes tool calls as text.
        truncated: True if the output reached `max_tokens`.
        turn: index of the turn in the attempt.
    """

    message: Message
    tool_calls: tuple[Mapping[str, Any], ...]
    truncated: bool
    turn: int

    @property
    def text(self) -> str:
        return self.message["content"]


Steps = Generator[list[Ask], list[ModelOutput], T]
"""Generator of a program, or of a part of a program, whose return value has the type T."""

Program = Callable[["AgentAttempt"], Steps[str | None]]


class AttemptFinished(Exception):
    """Raised to finish an attempt before its program returns.

    Args:
        stop: why the attempt finished.
        answer: the answer of the agent; None if it has none yet.
        error: error message of the agent itself; "" if there was none.
    """

    def __init__(self, stop: TrajectoryStop, answer: str | None = None, error: str = ""):
        super().__init__(stop)
        self.stop, self.answer, self.error = stop, answer, error


class AgentAttempt:
    """One attempt of a program at a task: its inputs and its turns so far.

    Attributes:
        question: the last user message of the task's prompt.
        messages: messages of the task's prompt, without system messages.
        system: instructions of the task; "" if it has none.
        tools: tools by name.
        files: files of the task that are not listed in its metadata: name → content.
        turns: turns so far, with their lanes, in the order of completion; `trajectory` sorts them by lane.
        calls: number of tool calls so far.
        draft: the answer to record if a turn or call limit ends the attempt now; None if there is none yet.
    """

    def __init__(self, assignment: Assignment, model: AgentModel):
        self.task, self.draw, self.model = assignment.task, assignment.draw, model
        self.tools: Mapping[str, Tool] = {tool.name: tool for tool in assignment.tools}
        self.files = assignment.files
        prompt = to_messages(self.task.prompt)
        instructions = [message["content"] for message in prompt if message["role"] == "system"]
        self.messages = [message for message in prompt if message["role"] != "system"]
        self.system = "\n\n".join(instructions)
        self.question = question_of(self.task)
        self.turns: list[tuple[ModelTurn, int | None]] = []
        self.calls = 0
        self.draft: str | None = None

    def to_messages(self, question: str) -> list[Message]:
        """Return the task's messages with the last one, the question, replaced by `question`."""
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
        """Build a model request.

        Args:
            messages: the conversation so far.
            part: name of the part of the agent that sends the request.
            system: instructions; those of the task are put before them.
            tools: tools that the model may call natively.
            stop: texts that end the output.
            max_tokens: limit of the output in tokens; 0 means `agent.max_tokens`.
        """
        # A later request may be rejected because the conversation has grown too long, which is a result of the attempt.
        # A rejected first request means a wrong setting, and raises.
        request = CompletionRequest(
            tuple(messages),
            system="\n\n".join(filter(None, (self.system, system))),
            max_tokens=max_tokens or self.model.max_tokens,
            draw=self.draw,
            tools=tuple(tool.definition for tool in tools),
            stop=tuple(stop),
            may_be_rejected=bool(self.turns),
            kept=self._task_messages(messages),
        )
        return Ask(request, part)

    def _task_messages(self, messages: Sequence[Message]) -> int:
        """Return the number of messages at the start that state the task: its earlier conversation and the question."""
        *earlier, _ = self.messages
        has_earlier = list(messages[: len(earlier)]) == earlier
        return len(earlier) + 1 if has_earlier else 1  # an executor sees its query alone

    def call(self, output: ModelOutput, name: str, arguments: Mapping[str, Any], id: str = "") -> Call:
        """Execute a tool call that the model requested. Raise AttemptFinished if the limit of calls is reached."""
        self.count_call()
        call = call_tool(self.tools, name, arguments, id)
        self.record(output, call)
        return call

    def count_call(self) -> None:
        """Count a call before it is executed. At the limit of calls, raise AttemptFinished with `draft` as answer."""
        if self.calls == self.model.max_calls:
            raise AttemptFinished("call_limit", self.draft)
        self.calls += 1

    def record(self, output: ModelOutput, call: Call) -> None:
        """Add a call to the turn that requested it."""
        turn, lane = self.turns[output.turn]
        with_call = replace(turn, calls=(*turn.calls, call))
        self.turns[output.turn] = with_call, lane

    def add_turn(self, ask: Ask, completion: Completion) -> ModelOutput:
        """Record a completion as a turn. Raise AttemptFinished if the model refused or the request was rejected."""
        if completion.stop == "rejected":
            raise AttemptFinished("failed", error=f"the request was rejected: {completion.text}")
        request, usage = ask.request, completion.usage
        instructions = [Message(role="system", content=request.system)] if request.system else []
        messages = [*instructions, *request.messages]
        # Tokens written to or read from the provider's prompt cache are input as well.
        input_tokens = usage.input_tokens + usage.cache_write_tokens + usage.cache_read_tokens
        turn = ModelTurn(
            agent=ask.part,
            prompt=render_prompt(messages, request.tools),
            text=completion.text,
            input_tokens=input_tokens,
            output_tokens=usage.output_tokens,
            cost_usd=completion.paid_cost_usd,
            stored=completion.stored,
            latency_s=completion.latency_s,
        )
        self.turns.append((turn, ask.lane))
        # The turn is recorded before a refusal finishes the attempt, because its tokens and cost count.
        if completion.stop == "refused":
            raise AttemptFinished("refused")
        return ModelOutput(
            completion.message,
            completion.tool_calls,
            truncated=completion.stop == "truncated",
            turn=len(self.turns) - 1,
        )

    def trajectory(self, finished: AttemptFinished, wall_s: float) -> AgentTrajectory:
        """Return the record of the finished attempt. Turns of parallel branches are sorted by branch."""
        turns: list[ModelTurn] = []
        # Each run of turns with a lane comes from one parallel section; a turn without a lane separates two sections.
        for _, members in groupby(self.turns, key=lambda member: member[1] is not None):
            in_order = sorted(members, key=lambda member: member[1] or 0)  # stable: turns of one lane stay in order
            turns += [turn for turn, _ in in_order]
        return AgentTrajectory(finished.answer, tuple(turns), finished.stop, wall_s, finished.error)


def question_of(task: Task) -> str:
    """Return the last user message of a task's prompt; the prompt itself if it has none."""
    for message in reversed(to_messages(task.prompt)):
        if message["role"] == "user":
            return message["content"]
    return task.prompt


def user_message(content: str) -> Message:
    return Message(role="user", content=content)


def run_in_parallel(parts: Sequence[Steps[T]], lanes: Sequence[int] | None = None) -> Steps[list[T]]:
    """Run parts of a program in parallel. Return their results in the order of the parts.

    Args:
        parts: the parts.
        lanes: index of each part among all parallel branches of the attempt, by which a trajectory sorts its turns;
            None numbers the parts from 0.
    """
    branch = lanes or range(len(parts))
    results: dict[int, T] = {}
    pending: dict[int, list[Ask]] = {}

    def advance(lane: int, output: list[ModelOutput] | None) -> None:
        part = parts[lane]
        try:
            # A generator has to be started with `next`; only then does it accept a value.
            pending[lane] = next(part) if output is None else part.send(output)
        except StopIteration as returned:  # the part has finished with this value
            results[lane] = returned.value

    for lane in range(len(parts)):
        advance(lane, None)
    while pending:
        # One yield sends the requests of all unfinished parts. The outputs come back in the same order.
        asking, pending = pending, {}
        requests = [replace(ask, lane=branch[lane]) for lane, asks in asking.items() for ask in asks]
        outputs = yield requests
        incoming = iter(outputs)
        for lane, asks in asking.items():
            advance(lane, [next(incoming) for _ in asks])
    return [results[lane] for lane in range(len(parts))]


class ProgramAgent:
    """A program with a model: the `BatchAgent` of the built-in agents.

    Args:
        name: name shown by progress bars.
        program: the generator function that is run once per attempt.
        model: the model that answers its requests.
        settings: settings of the program, as JSON values; part of its identity.
    """

    def __init__(self, name: str, program: Program, model: AgentModel, settings: Mapping[str, Any]):
        self.name, self.program, self.model, self.settings = name, program, model, settings

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"agent": self.name, **self.settings, **self.model.identity}

    def run_many(self, assignments: Sequence[Assignment], on_done: OnDone) -> list[AgentTrajectory]:
        start = time.monotonic()
        trajectories: dict[int, AgentTrajectory] = {}
        live: dict[int, _Live] = {}

        def advance(number: int, completions: list[Completion] | None) -> None:
            finished = live[number].advance(completions)
            if finished is not None:
                trajectory = live.pop(number).attempt.trajectory(finished, time.monotonic() - start)
                trajectories[number] = trajectory
                on_done(number, trajectory)

        for number, assignment in enumerate(assignments):
            live[number] = _Live(self.program, AgentAttempt(assignment, self.model))
            advance(number, None)
        # Each round sends the requests of all live attempts at once. Attempts that finish drop out of the next round.
        with progress(self.name, len(assignments)) as ticker:
            ticker.advance(len(trajectories))
            while live:
                asking = {number: attempt.asks for number, attempt in live.items()}
                requests = [ask.request for asks in asking.values() for ask in asks]
                completions = iter(self.model.completer.complete_many(requests, title=f"{self.name}: requests"))
                for number, asks in asking.items():
                    advance(number, [next(completions) for _ in asks])
                ticker.advance(len(trajectories) - ticker.done)
        return [trajectories[number] for number in range(len(assignments))]


class _Live:
    """An unfinished attempt and its pending requests."""

    def __init__(self, program: Program, attempt: AgentAttempt):
        self.attempt = attempt
        self.steps = program(attempt)
        self.asks: list[Ask] = []

    def advance(self, completions: Sequence[Completion] | None) -> AttemptFinished | None:
        """Pass completions to the program; None starts it. Return how the attempt ended, or None if it still runs."""
        try:
            self.asks = next(self.steps) if completions is None else self.steps.send(self._outputs(completions))
            # The limit is checked before the requests are sent, so that it is never exceeded.
            turns_after = len(self.attempt.turns) + len(self.asks)
            if turns_after > self.attempt.model.max_turns:
                self.steps.close()
                return AttemptFinished("turn_limit", self.attempt.draft)
            return None
        except StopIteration as returned:
            return AttemptFinished("answered", returned.value)
        except AttemptFinished as finished:
            self.steps.close()
            return finished
        except LabError:  # infrastructure errors, e.g. no sandbox could be created, stop the whole benchmark
            raise
        except Exception as error:  # an error of one tool or program must not stop the other attempts
            return AttemptFinished("failed", error=failure(error))

    def _outputs(self, completions: Sequence[Completion]) -> list[ModelOutput]:
        outputs: list[ModelOutput] = []
        finished: AttemptFinished | None = None
        # All turns are recorded, also those of branches beside one that was refused: they were paid for.
        for ask, completion in zip(self.asks, completions, strict=True):
            try:
                outputs.append(self.attempt.add_turn(ask, completion))
            except AttemptFinished as raised:
                finished = finished or raised
        if finished is not None:
            raise finished
        return outputs


def failure(error: Exception) -> str:
    """Format an error of an agent as one line, with the file and line that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    location = f"{Path(last.filename).name}, line {last.lineno}"
    return f"{type(error).__name__}: {error} ({location})"
