"""Settings of the stage store. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from rlhf_lab.config import schema
from rlhf_lab.config.section import Section, section
from rlhf_lab.core.errors import Rule


@section("artifacts")
@dataclass(frozen=True)
class Artifacts(Section):
    """Rules for reusing a stage from the store.

    Args:
        refresh: True to rebuild every stage of this run even if the store has it.
        code: `check` reuses a stored result only if the current code equals the code that produced it. `ignore` uses
            the latest result of the same settings by any code, and prints a note.
        distinct: sections that distinguish runs although they do not affect results, such as [sharding], to compare
            their costs. They do not apply to upstream stages.
    """

    inherited: ClassVar[bool] = True
    refresh: bool = False
    code: Literal["check", "ignore"] = "check"
    distinct: list[str] = field(default_factory=list)

    def rules(self) -> tuple[Rule, ...]:
        return (*super().rules(), schema.only_known("distinct", self.distinct, ("sharding", "runtime")))
