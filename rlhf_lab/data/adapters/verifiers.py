"""Environments of `verifiers` (its MultiTurnEnv and what is built on it, version 0.1).

Such an environment runs a rollout itself and asks a client for each reply. Here the client is the lab's sampler: the
rollout waits in a thread until the policy's turn has been sampled. So whatever the environment does in a rollout,
its stop conditions, tools and rubric, is its own code.

Left out: rewards of whole groups, replies that are tool calls of a service, rollouts that rewrite what was said before.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlhf_lab.core.episodes import Step, Task
from rlhf_lab.core.errors import LabError, MissingDependency
from rlhf_lab.core.messages import Message

ROW = ("prompt", "answer", "info", "task", "example_id")
"""What a rollout is given of its row."""


class _EventLoop:
    """The event loop that all rollouts of a process share, in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True, name="verifiers").start()


class _Rollout:
    """One rollout, seen from the sampler: what it asks next, or how it ended."""

    def __init__(self) -> None:
        self.events: queue.Queue[tuple[str, Any]] = queue.Queue()
        self.reply: asyncio.Future[str] | None = None

    async def ask(self, messages: Sequence[Mapping[str, Any]]) -> str:
        self.reply = asyncio.get_running_loop().create_future()
        self.events.put(("asked", [_plain(message) for message in messages]))
        return await self.reply


class VerifiersSession:
    """One episode: a rollout that waits for each reply.

    Args:
        environment: of `verifiers`.
        row: of its data set.
        timeout_s: longest wait for the environment.
    """

    def __init__(self, environment: Any, row: Mapping[str, Any], loop: _EventLoop, timeout_s: float):
        self.environment, self.row, self.loop, self.timeout_s = environment, row, loop, timeout_s
        self.rollout = _Rollout()
        self.said: list[Message] = []

    def start(self) -> str:
        self._task = asyncio.run_coroutine_threadsafe(self._run(), self.loop.loop)
        kind, value = self._next()
        if kind != "asked":
            raise LabError(f"the environment ended its rollout before the first turn: {value}")
        self.said = value
        if [message["content"] for message in value] != [message["content"] for message in self.row["prompt"]]:
            raise LabError("the environment of verifiers changes its prompt when a rollout begins; prompts are fixed")
        return ""

    def finish(self) -> float:
        """Nothing: a rubric scores whole rollouts, and this one is cancelled."""
        self.close()
        return 0.0

    def close(self) -> None:
        """Cancel the rollout."""
        self._task.cancel()

    def step(self, reply: str, *, is_last: bool) -> Step:
        assert self.rollout.reply is not None
        self.loop.loop.call_soon_threadsafe(self.rollout.reply.set_result, reply)
        kind, value = self._next()
        if kind == "ended":
            return Step(reward=value, done=True)
        before = [*self.said, Message(role="assistant", content=reply)]
        if [message["content"] for message in value[: len(before)]] != [message["content"] for message in before]:
            raise LabError("the environment of verifiers rewrites what was said before; episodes only grow")
        self.said = value
        if is_last:
            raise LabError("the environment of verifiers goes on behind data.max_turns; set its own max_turns below it")
        return Step(messages=value[len(before) :], done=False)

    async def _run(self) -> None:
        try:
            client = _waiting_client(self.rollout)
            row = {name: self.row[name] for name in ROW if self.row.get(name) is not None}
            state = await self.environment.rollout(row, client, "policy", {})
            if state.get("error") is not None:
                raise LabError(str(state["error"]))
            await self.environment.rubric.score_rollout(state)
            self.rollout.events.put(("ended", float(state["reward"] or 0.0)))
        except BaseException as error:  # whatever it is, the sampler waits for it
            self.rollout.events.put(("failed", error))

    def _next(self) -> tuple[str, Any]:
        try:
            kind, value = self.rollout.events.get(timeout=self.timeout_s)
        except queue.Empty:
            raise LabError(f"the environment of verifiers gave no answer within {self.timeout_s:.0f} s") from None
        if kind == "failed":
            raise LabError(f"the environment of verifiers failed: {type(value).__name__}: {value}") from value
        return kind, value


def _plain(message: Any) -> Message:
    """A message of the library, an object or a mapping, as the lab has it. Raises LabError for what is no text."""
    values = message if isinstance(message, Mapping) else message.model_dump()
    content = values.get("content") or ""
    if not isinstance(content, str):
        raise LabError("the environment of verifiers says something that is no text; images and parts are not read")
    return {"role": str(values["role"]), "content": content}


def _waiting_client(rollout: _Rollout) -> Any:
    """A client of the library whose replies are the policy's."""
    from verifiers.clients import Client
    from verifiers.types import Response, ResponseMessage

    class WaitingClient(Client):
        async def get_response(self, prompt: Any, model: str, *args: Any, **kwargs: Any) -> Any:
            text = await rollout.ask(prompt)
            message = ResponseMessage(role="assistant", content=text, finish_reason="stop", is_truncated=False)
            return Response(id="policy", created=int(time.time()), model=model, message=message)

    # The library's abstract methods speak to a service; `get_response` above replaces all that would call them.
    WaitingClient.__abstractmethods__ = frozenset()
    return WaitingClient(None)


def load(name: str, arguments: Mapping[str, Any]) -> Any:
    """The installed environment of this name. Raises MissingDependency without the library."""
    try:
        from verifiers import load_environment
    except ImportError:
        raise MissingDependency("data.style=verifiers", "'verifiers>=0.1.14,<0.2'") from None
    return load_environment(name, **arguments)


def rows_of(environment: Any) -> dict[str, list[dict[str, Any]]]:
    """Split → rows. Where the environment has no held-out rows, the lab holds some out (see data/environment.py)."""
    has_test = getattr(environment, "eval_dataset", None) is not None
    train = [dict(row) for row in environment.get_dataset()]
    return {"train": train, "test": [dict(row) for row in environment.get_eval_dataset()] if has_test else []}


def opener(environment: Any, timeout_s: float) -> Callable[[Task, int], VerifiersSession]:
    """What makes a session of a task, whose facts are its row."""
    loop = _EventLoop()

    def open_session(task: Task, seed: int) -> VerifiersSession:
        del seed  # rollouts of the library know none
        return VerifiersSession(environment, task.facts, loop, timeout_s)

    return open_session
