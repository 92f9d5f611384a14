"""Settings of the store of stages. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from rlhf_lab.config import schema
from rlhf_lab.config.section import Section, section
from rlhf_lab.core.errors import Rule


@section("artifacts")
@dataclass(frozen=True)
class Artifacts(Section):
    """When a stage is taken from the store.

    Args:
        refresh: rebuild every stage of this run even when the store has it.
        code: `check` reuses a stored result only if the code that made it is the code that would make it now;
            `ignore` takes the latest result of the same settings by whatever code, and says so.
        distinct: sections that make a run another one although they do not decide its result, such as [sharding]: to
            compare what it costs. Stages before the run have none.
    """

    inherited: ClassVar[bool] = True
    refresh: bool = False
    code: Literal["check", "ignore"] = "check"
    distinct: list[str] = field(default_factory=list)

    def rules(self) -> tuple[Rule, ...]:
        return (*super().rules(), schema.only_known("distinct", self.distinct, ("sharding", "runtime")))
