"""Settings of the world of repairs (`data=repairs`). Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import Ge, Le, Lt
from rlhf_lab.data.settings import WorldSettings


@register("data", "repairs")
@dataclass(frozen=True)
class Repairs(WorldSettings):
    """The embedded world of repairs: small programs with planted bugs, each with an example that fails.

    A training row is a demonstration; an episode writes lines anew, reads what running the program gives, and writes
    again. Bugs have three tiers: 1, a name that is not defined; 2, a wrong number, operator or comparison; 3, two such
    words, of which the example shows one.

    Args:
        train_tasks, test_tasks: tasks per split, the tiers in turn. A training task has one demonstration.
        min_lines, max_lines: of a program, without the one that returns.
        told: probability that a comment says what a line should do. What no comment tells only running the program can.
        revise: probability that a demonstration has a wrong try before its repair, and another behind each of them.
            Wrong tries are read, and not learned; with 0 there is nothing to read.
        shown_run: `own`, what running the program gave; `other`, of a program that fails, what a failing program of
            another task gave: what is left of success then is not due to reading.
        turns: most turns of an episode, with the one that says that it is done.
    """

    provides: ClassVar[Capability] = Capability.TEXT | Capability.DEMONSTRATIONS | Capability.TRUE_REWARD
    smoke: ClassVar[dict[str, int]] = {"train_tasks": 2000, "test_tasks": 60}
    smoke_real: ClassVar[dict[str, int]] = {"train_tasks": 16, "test_tasks": 16}
    train_tasks: Annotated[int, Ge(1), Le(10_000_000)] = 24000
    test_tasks: Annotated[int, Ge(1), Le(1_000_000)] = 600
    min_lines: Annotated[int, Ge(2), Le(4)] = 2
    max_lines: Annotated[int, Ge(2), Le(4)] = 3  # there are names for four lines
    told: Annotated[float, Ge(0), Le(1)] = 0.7
    revise: Annotated[float, Ge(0), Lt(1)] = 0.5
    shown_run: Literal["own", "other"] = "own"
    turns: Annotated[int, Ge(2), Le(64)] = 7

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (self.min_lines <= self.max_lines, f"min_lines={self.min_lines} is above max_lines={self.max_lines}"),
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        # what other sources know of themselves as a class is a setting here
        object.__setattr__(self, "max_turns", self.turns)
