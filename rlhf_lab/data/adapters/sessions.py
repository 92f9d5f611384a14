"""Environment whose episodes are sessions of another library: an object, a connection, or a rollout of that library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rlhf_lab.core.arrays import FloatArray
from rlhf_lab.core.episodes import Episode, Step, Task
from rlhf_lab.core.errors import LabError

OPENING = "opening"
"""Metadata column of a task with the text that its session returned at the start. The prompt ends with this text."""


class EpisodeSession(Protocol):
    """One episode of an environment of another library."""

    def start(self) -> str:
        """Start the session and return its opening text, "" for none. It is called once, before any other method."""
        ...

    def step(self, response: str, *, is_last: bool) -> Step:
        """Answer a response of the policy. If `is_last`, the policy gets no further turn whatever the answer says."""
        ...

    def finish(self) -> float:
        """End an unfinished session because the policy's token limit is reached, and return its reward so far."""
        ...

    def close(self) -> None:
        """End the session before its first turn."""
        ...


@dataclass
class _Episode:
    session: EpisodeSession
    turns: int = 0


class SessionEnvironment:
    """Implementation of `core.episodes.Environment` over sessions.

    Args:
        tasks: split → its tasks. The metadata column `opening` of a task is the text that its session returned when the
            prompt was created.
        open_session: (task, seed) → a new session.
        tools: definitions of the tools that every session has; empty if the environment does not handle tool calls.
    """

    def __init__(
        self,
        tasks: Mapping[str, Sequence[Task]],
        open_session: Callable[[Task, int], EpisodeSession],
        *,
        max_turns: int,
        tools: Sequence[Mapping[str, Any]] = (),
    ):
        self._tasks = tasks
        self._open = open_session
        self.max_turns = max_turns
        self._tools = tools

    def tasks(self, split: str) -> Sequence[Task]:
        return self._tasks[split]

    def definitions(self, task: Task) -> Sequence[Mapping[str, Any]]:
        """Return the tool definitions of a task; see `core.episodes.Offering`."""
        return self._tools

    def reset(self, task: Task, seed: int) -> _Episode:
        """Open a session. Raise LabError if its opening text differs from the one in the prompt of the task."""
        session = self._open(task, seed)
        opening = session.start()
        expected = task.metadata.get(OPENING, "")
        # the prompt was created with the text of an earlier session of the same task
        if opening != expected:
            raise LabError(
                f"the environment starts the same task in two ways, {expected[:60]!r} and {opening[:60]!r}; make "
                "`reset` return the same text each time, because prompts are created before sampling"
            )
        return _Episode(session)

    def step(self, state: _Episode, response: str) -> Step:
        # the session may not know the limit of turns, so the environment counts them
        state.turns += 1
        return state.session.step(response, is_last=state.turns == self.max_turns)

    def finish(self, state: _Episode) -> float:
        """End the session and return its remaining reward; see `core.episodes.Finishing`."""
        return state.session.finish()

    def grade(self, episodes: Sequence[Episode]) -> Mapping[str, FloatArray]:
        """Return no measures: the reward is all that these environments report about an episode."""
        return {}
