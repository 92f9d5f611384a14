"""Record of an agent's attempt at a task, turn by turn: the input of all agent evaluations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlhf_lab.core.text import well_formed, well_formed_value
from rlhf_lab.core.tools import Call

TrajectoryStop = Literal["answered", "refused", "turn_limit", "call_limit", "truncated", "failed"]
"""Why an attempt finished: the agent answered; the model refused (as reported by the service); turns or calls ran out;
a turn reached its maximum length; or the agent itself raised an error that is not an infrastructure error."""


@dataclass(frozen=True, slots=True)
class ModelTurn:
    """One turn of a model.

    Attributes:
        agent: name of the part of the agent, such as planner or executor.
        prompt: input of the model, as a transcript (`data/transcript.py`).
        text: output of the model.
        calls: tool calls of the turn, with their results.
        input_tokens, output_tokens: token counts of the model or the service.
        cost_usd: original cost of the completion, even if this attempt got it from the store.
        stored: True if the completion came from the store of an earlier run and cost nothing now.
        latency_s: original time to the completion in seconds, even if it came from the store; 0 if unknown.
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

    def __post_init__(self) -> None:
        # Texts may contain lone surrogates, which cannot be stored. The class is frozen, so it is set this way.
        object.__setattr__(self, "prompt", well_formed(self.prompt))
        object.__setattr__(self, "text", well_formed(self.text))


@dataclass(frozen=True, slots=True)
class AgentTrajectory:
    """One attempt of an agent at a task.

    Attributes:
        answer: the answer; None if the agent gave none.
        turns: turns in order; parallel branches follow one another.
        stop: why the attempt finished.
        wall_s: duration in seconds, including time spent on other attempts in the same batch.
        error: error message of a failed attempt.
    """

    answer: str | None
    turns: tuple[ModelTurn, ...] = ()
    stop: TrajectoryStop = "answered"
    wall_s: float = 0.0
    error: str = ""

    def __post_init__(self) -> None:  # user code may produce text with lone surrogates, which cannot be stored
        object.__setattr__(self, "answer", well_formed_value(self.answer))
        object.__setattr__(self, "error", well_formed(self.error))

    @property
    def calls(self) -> tuple[Call, ...]:
        """All tool calls, in order."""
        return tuple(call for turn in self.turns for call in turn.calls)

    @property
    def input_tokens(self) -> int:
        return sum(turn.input_tokens for turn in self.turns)

    @property
    def output_tokens(self) -> int:
        return sum(turn.output_tokens for turn in self.turns)

    @property
    def cost_usd(self) -> float:
        """Cost of the attempt in USD as if no completion had been read from the store."""
        return sum(turn.cost_usd for turn in self.turns)
