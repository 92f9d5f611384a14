"""Settings of the world of repairs (`data=repairs`). Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import BySize, Ge, Le, Lt
from rlhf_lab.data.settings import WorldSettings


@register("data", "repairs")
@dataclass(frozen=True)
class Repairs(WorldSettings):
    """Built-in world of repairs: small programs with planted bugs, each with a failing example.

    A training row is a demonstration. In an episode the agent rewrites lines, reads the result of the program, and may
    rewrite lines again. Bugs have three tiers: (1) an undefined name; (2) a wrong number, operator or comparison; (3)
    two bugs as in tier 2, of which the example reveals one.

    Args:
        train_tasks, test_tasks: number of tasks per split; tasks cycle through the tiers. A training task has one
            demonstration.
        min_lines, max_lines: minimum and maximum number of lines of a program, without the return statement.
        told: probability that a line has a comment with its correct operation. Without a comment, only the result of
            the program reveals it.
        revise: probability that a demonstration has a wrong attempt before its repair, and a further one after each
            wrong attempt. Wrong attempts are context and not learned; with 0 there are none.
        shown_run: `own` answers with the result of the agent's program. `other` is a control: a failing program is
            answered with the result of a failing program of another task, so success cannot come from reading it.
        turns: maximum number of turns of an episode, including the final `done`.
    """

    provides: ClassVar[Capability] = Capability.TEXT | Capability.DEMONSTRATIONS | Capability.TRUE_REWARD
    by_size = BySize(smoke={"train_tasks": 2000, "test_tasks": 20}, smoke_real={"train_tasks": 16, "test_tasks": 16})
    train_tasks: Annotated[int, Ge(1), Le(10_000_000)] = 24000
    test_tasks: Annotated[int, Ge(1), Le(1_000_000)] = 600
    min_lines: Annotated[int, Ge(2), Le(4)] = 2
    max_lines: Annotated[int, Ge(2), Le(4)] = 3  # `programs.NAMES` has names for four lines
    told: Annotated[float, Ge(0), Le(1)] = 0.7
    revise: Annotated[float, Ge(0), Lt(1)] = 0.5
    shown_run: Literal["own", "other"] = "own"
    turns: Annotated[int, Ge(2), Le(64)] = 7

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                self.min_lines <= self.max_lines,
                f"min_lines={self.min_lines} must not exceed max_lines={self.max_lines}",
            ),
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        # `max_turns` is a class attribute of other data settings; here it depends on a setting
        object.__setattr__(self, "max_turns", self.turns)
