"""Environments of the library `verifiers` (subclasses of its MultiTurnEnv, version 0.1).

Such an environment runs a rollout itself and requests each response from a client. Here the client is the sampler of
rlhf_lab: the rollout waits on an event loop in a separate thread until the policy's turn has been sampled. Stop
conditions, tools and rubric are therefore the environment's own code, unchanged.

Not supported: rewards of entire groups, native tool calls of a service, rollouts that rewrite earlier messages.
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
"""Columns of a row that are passed to its rollout."""


class _Rollout:
    """One rollout, as the sampler sees it: its next request, or how it ended."""

    def __init__(self) -> None:
        self.events: queue.Queue[tuple[str, Any]] = queue.Queue()
        self.response: asyncio.Future[str] | None = None

    async def ask(self, messages: Sequence[Mapping[str, Any]]) -> str:
        self.response = asyncio.get_running_loop().create_future()
        self.events.put(("asked", [_to_plain(message) for message in messages]))
        return await self.response


class VerifiersSession:
    """One episode: a rollout that waits for each response."""

    def __init__(self, environment: Any, row: Mapping[str, Any], loop: asyncio.AbstractEventLoop, timeout_s: float):
        self.environment = environment
        self.row = row
        self.loop = loop
        self.timeout_s = timeout_s
        self.rollout = _Rollout()
        # messages of the conversation so far, as the rollout sent them with its last request
        self.said: list[Message] = []

    def start(self) -> str:
        self._task = asyncio.run_coroutine_threadsafe(self._run(), self.loop)
        kind, value = self._next()
        if kind != "asked":
            raise LabError(f"the environment of verifiers ended its rollout before the first turn: {value}")
        self.said = value
        # the policy has been prompted with the fixed prompt
        if [message["content"] for message in value] != [message["content"] for message in self.row["prompt"]]:
            raise LabError(
                "the environment of verifiers changes its prompt when a rollout starts; this is not supported, because "
                "prompts are fixed before sampling"
            )
        return ""

    def finish(self) -> float:
        """Cancel the rollout and return 0: a rubric scores only complete rollouts."""
        self.close()
        return 0.0

    def close(self) -> None:
        """Cancel the rollout."""
        self._task.cancel()

    def step(self, response: str, *, is_last: bool) -> Step:
        assert self.rollout.response is not None
        # the future belongs to the event loop of the other thread, so its result has to be set there
        self.loop.call_soon_threadsafe(self.rollout.response.set_result, response)
        kind, value = self._next()
        if kind == "ended":
            return Step(reward=value, done=True)
        # the new request must repeat all earlier messages and the response
        before = [*self.said, Message(role="assistant", content=response)]
        repeated = value[: len(before)]
        # contents only: a library may add keys to the messages that it repeats
        if [message["content"] for message in repeated] != [message["content"] for message in before]:
            raise LabError(
                "the environment of verifiers rewrites earlier messages; this is not supported, because an episode may "
                "only add messages"
            )
        self.said = value
        if is_last:
            raise LabError(
                "the environment of verifiers continues after data.max_turns turns; set the environment's own "
                "max_turns to at most data.max_turns"
            )
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
        except BaseException as error:  # any exception has to reach the sampler, which waits for an event
            self.rollout.events.put(("failed", error))

    def _next(self) -> tuple[str, Any]:
        try:
            kind, value = self.rollout.events.get(timeout=self.timeout_s)
        except queue.Empty:
            raise LabError(
                f"the environment of verifiers did not answer within {self.timeout_s:.0f} s; raise data.timeout_s if "
                "it needs more time"
            ) from None
        if kind == "failed":
            raise LabError(f"the environment of verifiers failed: {type(value).__name__}: {value}") from value
        return kind, value


def _to_plain(message: Any) -> Message:
    """Convert a message of the library (object or mapping) into a `Message`. Raise LabError if it is not text."""
    values = message if isinstance(message, Mapping) else message.model_dump()
    content = values.get("content") or ""
    if not isinstance(content, str):
        raise LabError(
            "the environment of verifiers sends a message that is not text; images and parts are not supported"
        )
    return {"role": str(values["role"]), "content": content}


def _waiting_client(rollout: _Rollout) -> Any:
    """Return a client of the library that answers every request with a response of the policy."""
    # verifiers is optional, so it is imported only here
    from verifiers.clients import Client
    from verifiers.types import Response, ResponseMessage

    class WaitingClient(Client):
        async def get_response(self, prompt: Any, model: str, *args: Any, **kwargs: Any) -> Any:
            text = await rollout.ask(prompt)
            message = ResponseMessage(role="assistant", content=text, finish_reason="stop", is_truncated=False)
            return Response(id="policy", created=int(time.time()), model=model, message=message)

    # The library's abstract methods talk to a service; `get_response` above replaces every method that calls them.
    WaitingClient.__abstractmethods__ = frozenset()
    return WaitingClient(None)


def load(name: str, arguments: Mapping[str, Any]) -> Any:
    """Load the installed environment of this name. Raise MissingDependency if the library is not installed."""
    try:
        from verifiers import load_environment
    except ImportError:
        raise MissingDependency("data.style=verifiers", "'verifiers>=0.1.14,<0.2'") from None
    return load_environment(name, **arguments)


def rows_of(environment: Any) -> dict[str, list[dict[str, Any]]]:
    """Return split → rows. If the environment has no test rows, data/environment.py holds some out."""
    has_test = getattr(environment, "eval_dataset", None) is not None
    train = [dict(row) for row in environment.get_dataset()]
    test = [dict(row) for row in environment.get_eval_dataset()] if has_test else []
    return {"train": train, "test": test}


def opener(environment: Any, timeout_s: float) -> Callable[[Task, int], VerifiersSession]:
    """Return a function that opens a session of a task. The metadata of the task is its row."""
    # one event loop for all sessions, because a rollout waits most of the time
    loop = asyncio.new_event_loop()
    # a daemon thread: rollouts that still wait must not keep the process alive
    threading.Thread(target=loop.run_forever, daemon=True, name="verifiers").start()

    def open_session(task: Task, seed: int) -> VerifiersSession:
        del seed  # rollouts of the library do not accept a seed
        return VerifiersSession(environment, task.metadata, loop, timeout_s)

    return open_session
