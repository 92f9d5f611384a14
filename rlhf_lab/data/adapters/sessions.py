"""An environment whose episodes are sessions of something else: an object, a connection, a rollout elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rlhf_lab.core.arrays import FloatArray
from rlhf_lab.core.episodes import Episode, Step, Task
from rlhf_lab.core.errors import LabError

OPENING = "opening"
"""The fact of a task that holds what its session said at the start; the prompt ends with it."""


class Session(Protocol):
    """One episode."""

    def start(self) -> str:
        """What is said before the first turn; "" for nothing. Called once, first."""
        ...

    def step(self, reply: str, *, is_last: bool) -> Step:
        """Answer a reply. Behind the last turn that the policy gets, the session is over whatever it answers."""
        ...

    def finish(self) -> float:
        """End it where `step` was not done, because the policy has no room to go on; its reward as it stands."""
        ...

    def close(self) -> None:
        """End it before its first turn."""
        ...


@dataclass
class _Episode:
    session: Session
    turns: int = 0


class SessionEnvironment:
    """`core.episodes.Environment` over sessions.

    Args:
        tasks: of each split. A fact `opening` is what the session of the task said when the prompt was made.
        open_session: (task, seed) → a new session.
        tools: definitions of the tools that every session has; empty where calls are no concern of the environment.
        max_turns: most turns of the policy in an episode.
    """

    def __init__(
        self,
        tasks: Mapping[str, Sequence[Task]],
        open_session: Callable[[Task, int], Session],
        *,
        max_turns: int,
        tools: Sequence[Mapping[str, Any]] = (),
    ):
        self._tasks, self._open, self.max_turns, self._tools = tasks, open_session, max_turns, tools

    def tasks(self, split: str) -> Sequence[Task]:
        return self._tasks[split]

    def definitions(self, task: Task) -> Sequence[Mapping[str, Any]]:
        """See `core.episodes.Offering`."""
        return self._tools

    def reset(self, task: Task, seed: int) -> _Episode:
        """Raises LabError where the session begins otherwise than the prompt, which was made from an earlier one."""
        session = self._open(task, seed)
        opening = session.start()
        expected = task.facts.get(OPENING, "")
        if opening != expected:
            raise LabError(
                f"the environment begins one task in two ways, {expected[:60]!r} and {opening[:60]!r}; it must say the "
                "same each time, because prompts are made before sampling"
            )
        return _Episode(session)

    def step(self, state: _Episode, reply: str) -> Step:
        state.turns += 1
        return state.session.step(reply, is_last=state.turns == self.max_turns)

    def finish(self, state: _Episode) -> float:
        """See `core.episodes.Finishing`."""
        return state.session.finish()

    def grade(self, episodes: Sequence[Episode]) -> Mapping[str, FloatArray]:
        """Nothing: what these environments say of an episode is its reward."""
        return {}
