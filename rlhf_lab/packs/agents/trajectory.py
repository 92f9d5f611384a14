"""What an agent did with a task, turn by turn: the currency of agent evaluations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlhf_lab.core.tools import Call

TrajectoryStop = Literal["answered", "refused", "turn_limit", "call_limit", "truncated", "failed"]
"""Why an agent ended: it gave an answer; the model declined in the service's sense; its turns or calls ran out; a turn
was cut at its longest length; the agent itself raised an error, which is no fault of the infrastructure."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a model.

    Attributes:
        agent: who spoke, where an agent has several parts: planner, executor, …
        prompt: what the model read, as a transcript (`data/transcript.py`); later turns may quote it.
        text: what it said.
        calls: the tools that it called, with their results.
        input_tokens, output_tokens: as the model or the service counts them.
        cost_usd: of its answer when it was asked, whether for this attempt or by an earlier run.
        stored: whether the answer came from the store of an earlier run, and cost nothing now.
        latency_s: seconds until the answer was there, also where it came from the store; 0 where it is not known.
    """

    agent: str
    prompt: str
    text: str
    calls: tuple[Call, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    stored: bool = False
    latency_s: float = 0.0

    @property
    def paid_usd(self) -> float:
        """What was paid for it now."""
        return 0.0 if self.stored else self.cost_usd


@dataclass(frozen=True, slots=True)
class AgentTrajectory:
    """One attempt of an agent at a task.

    Attributes:
        answer: what it says the answer is; None where it gave none.
        turns: in order; parts that ran beside each other follow one another.
        wall_s: seconds it took, the time it shared with others included.
        error: of a run that failed.
    """

    answer: str | None
    turns: tuple[Turn, ...] = ()
    stop: TrajectoryStop = "answered"
    wall_s: float = 0.0
    error: str = ""

    @property
    def calls(self) -> tuple[Call, ...]:
        """All calls of tools, in order."""
        return tuple(call for turn in self.turns for call in turn.calls)

    @property
    def input_tokens(self) -> int:
        return sum(turn.input_tokens for turn in self.turns)

    @property
    def output_tokens(self) -> int:
        return sum(turn.output_tokens for turn in self.turns)

    @property
    def cost_usd(self) -> float:
        """What the attempt would have cost with nothing in the store."""
        return sum(turn.cost_usd for turn in self.turns)

    @property
    def paid_usd(self) -> float:
        """What was paid while it was made; what an interrupted command paid for it before is not in it."""
        return sum(turn.paid_usd for turn in self.turns)
