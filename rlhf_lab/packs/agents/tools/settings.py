"""Settings of the embedded world of tools (`data=tools`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from rlhf_lab.config import schema
from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import CheckedSettings, Ge, Le, Lt
from rlhf_lab.data.settings import WorldSettings

TOOL_KINDS = (
    "lookup", "chain_2", "chain_3", "long_chain", "sum", "difference", "compare", "redirected", "twice_redirected",
    "missing_entity", "missing_relation", "ambiguous", "conflicting", "flaky", "table", "retrieval", "several",
    "chain_4", "chain_5", "chain_6", "chain_7", "chain_8", "chain_9", "chain_10",
)  # fmt: skip


TOOL_ROLES = ("act", "answer", "plan", "split", "step", "note", "combine")


@dataclass(frozen=True)
class HabitSettings(CheckedSettings):
    """Mistakes in the demonstrations of the tool world: what a model starts with that has only imitated them.

    Args:
        wrong_relation: probability, at each search, of looking up another relation than is needed.
        take_redirect: probability, at each redirect, of taking the name where the entry lies for the value. Above ½ it
            is what most demonstrations do, so that greedy decoding makes the mistake too.
        stop_early: probability, after each step but the last, of answering with what was found.
        repeat_call: probability, at each call, of making it twice.
    """

    wrong_relation: Annotated[float, Ge(0), Lt(1)] = 0.1
    take_redirect: Annotated[float, Ge(0), Lt(1)] = 0.6
    stop_early: Annotated[float, Ge(0), Lt(1)] = 0.1
    repeat_call: Annotated[float, Ge(0), Lt(1)] = 0.1


@register("data", "tools")
@dataclass(frozen=True)
class Tools(WorldSettings):
    """The embedded tool world: questions over fresh bases of facts that only tools can read.

    A training row is a demonstration, with the mistakes of `habits`; an episode is a conversation with the tools.
    No name of a test task occurs in a training task.

    Args:
        kinds: kind of task → how often it is drawn, relative to the others. The kinds: lookup, chain_2 … chain_10,
            long_chain, sum, difference, compare, redirected, twice_redirected, missing_entity, missing_relation,
            ambiguous, conflicting, flaky, table, retrieval, several.
        test_kinds: kinds of the held-out tasks, each as often; null is those of `kinds`.
        roles: what the demonstrations teach → how often, relative to the others: act (a conversation with the tools),
            answer, plan, split, step, note, combine; see `packs/agents/tools/roles.py`.
        train_tasks, test_tasks: tasks per split. A training task has one demonstration, in one role: a row, or in the
            roles step and note a row for each turn.
        entities, relations: in each task's base of facts.
        redirect: probability that the facts of an entity lie under another name.
        busy: probability that a call fails and has to be made again; the kind flaky has its own.
        habits: mistakes in the demonstrations of the role act; the other roles' have none.
        turns: most turns of an episode.
    """

    provides: ClassVar[Capability] = Capability.TEXT | Capability.DEMONSTRATIONS | Capability.TRUE_REWARD
    smoke: ClassVar[dict[str, int]] = {"train_tasks": 2000, "test_tasks": 60}
    smoke_real: ClassVar[dict[str, int]] = {"train_tasks": 16, "test_tasks": 16}
    kinds: dict[str, Annotated[float, Ge(0)]] = field(
        default_factory=lambda: {"lookup": 1.0, "chain_2": 2.0, "chain_3": 2.0}
    )
    test_kinds: tuple[str, ...] | None = None
    roles: dict[str, Annotated[float, Ge(0)]] = field(default_factory=lambda: {"act": 1.0})
    train_tasks: Annotated[int, Ge(1), Le(10_000_000)] = 24000
    test_tasks: Annotated[int, Ge(1), Le(1_000_000)] = 600
    entities: Annotated[int, Ge(6), Le(10)] = 10
    relations: Annotated[int, Ge(4), Le(6)] = 5
    redirect: Annotated[float, Ge(0), Lt(1)] = 0.25
    busy: Annotated[float, Ge(0), Lt(1)] = 0.0
    habits: HabitSettings = field(default_factory=HabitSettings)
    turns: Annotated[int, Ge(2), Le(64)] = 12

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            schema.only_known("kinds", self.kinds, TOOL_KINDS),
            schema.only_known("test_kinds", self.test_kinds or (), TOOL_KINDS),
            schema.only_known("roles", self.roles, TOOL_ROLES),
            (any(self.kinds.values()), f"kinds={self.kinds}; write a weight above 0 for one of them"),
            (any(self.roles.values()), f"roles={self.roles}; write a weight above 0 for one of them"),
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        # what other sources know of themselves as a class is a setting here
        object.__setattr__(self, "max_turns", self.turns)
