"""Settings of the built-in tool world (`data=tools`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from rlhf_lab.config import schema
from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import BySize, CheckedSettings, Ge, Le, Lt
from rlhf_lab.data.settings import WorldSettings
from rlhf_lab.packs.agents.tools.roles import ROLES

# Repeated here, so that the settings can be read without importing the world.
TOOL_KINDS = (
    "lookup", "chain_2", "chain_3", "long_chain", "sum", "difference", "compare", "redirected", "twice_redirected",
    "missing_entity", "missing_relation", "ambiguous", "conflicting", "flaky", "table", "retrieval", "several",
    "chain_4", "chain_5", "chain_6", "chain_7", "chain_8", "chain_9", "chain_10",
)  # fmt: skip


@dataclass(frozen=True)
class HabitSettings(CheckedSettings):
    """Mistakes in the demonstrations of the tool world, which a model learns by imitation.

    Args:
        wrong_relation: at each search, probability of looking up another relation than the needed one.
        take_redirect: at each redirect, probability of using the name of the entry as the value. Above 0.5 most
            demonstrations make this mistake, so greedy decoding makes it as well.
        stop_early: after each step but the last, probability of answering with its value.
        repeat_call: at each call, probability of making it twice.
    """

    wrong_relation: Annotated[float, Ge(0), Lt(1)] = 0.1
    take_redirect: Annotated[float, Ge(0), Lt(1)] = 0.6
    stop_early: Annotated[float, Ge(0), Lt(1)] = 0.1
    repeat_call: Annotated[float, Ge(0), Lt(1)] = 0.1


@register("data", "tools")
@dataclass(frozen=True)
class Tools(WorldSettings):
    """The built-in tool world: questions about newly sampled facts that can only be read with tools.

    A training row is a demonstration with the mistakes of `habits`; an episode is a conversation with the tools. The
    names in test tasks never occur in training tasks.

    Args:
        kinds: relative frequencies of the kinds of tasks. The kinds are lookup, chain_2 … chain_10, long_chain, sum,
            difference, compare, redirected, twice_redirected, missing_entity, missing_relation, ambiguous, conflicting,
            flaky, table, retrieval, several.
        test_kinds: kinds of the held-out tasks, with equal frequencies; null means those of `kinds`.
        roles: relative frequencies of the roles in demonstrations. The roles are act (a conversation with the tools),
            answer, plan, split, step, note, combine, lead (a conversation with executors), lead_step, lead_note; see
            `packs/agents/tools/roles.py`.
        train_tasks, test_tasks: numbers of tasks per split. A training task has one demonstration in one role. It is
            one row, or in the roles step, note, lead_step and lead_note one row per turn. A task that needs another
            tool than search has no row in the roles of a coordinator.
        entities, relations: numbers of entities and relations in each task's base of facts.
        redirect: probability that the facts of an entity are stored under another name.
        busy: probability that a call fails and has to be repeated; the kind flaky has its own probability.
        habits: mistakes in the demonstrations of the role act; the other roles have none.
        turns: maximum number of turns of an episode.
    """

    provides: ClassVar[Capability] = Capability.TEXT | Capability.DEMONSTRATIONS | Capability.TRUE_REWARD
    by_size = BySize(smoke={"train_tasks": 2000, "test_tasks": 20}, smoke_real={"train_tasks": 16, "test_tasks": 16})
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
            schema.only_known("roles", self.roles, ROLES),
            (any(self.kinds.values()), f"kinds={self.kinds}: set a weight above 0 for at least one of them"),
            (any(self.roles.values()), f"roles={self.roles}: set a weight above 0 for at least one of them"),
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        # For other data sources `max_turns` is a class attribute; here it is a setting.
        object.__setattr__(self, "max_turns", self.turns)
