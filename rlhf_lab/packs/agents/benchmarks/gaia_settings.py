"""Settings of GAIA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import Distinct, Ge, Le, NotEmpty
from rlhf_lab.packs.agents.benchmarks.web_settings import SearchName, WebChoices

LEVELS = (1, 2, 3)


@dataclass(frozen=True)
class GaiaChoices(WebChoices):
    """Selection of GAIA questions, and of the web that agents use.

    Args:
        source: set of questions. `mini` is a set of thirty built-in questions with a small offline web; `official`
            reads the questions in `path`.
        path: a copy of the official repository, its metadata file, or a hub id such as `gaia-benchmark/GAIA`.
        split: split of the official set: `validation`, or `test`, whose answers are secret, so that nothing is scored.
        levels: levels of difficulty to include, from 1 to 3.
        limit: maximum number of questions per level; the first ones are used, and 0 means all.
        search: `own` is the offline web of `mini`; `none` is no web; `tavily`, `brave` and `serper` are live services.
    """

    source: Literal["mini", "official"] = "mini"
    path: str = ""
    split: Literal["validation", "test"] = "validation"
    levels: Annotated[
        tuple[Annotated[int, Ge(1), Le(3)], ...], NotEmpty(hint="write some of 1, 2 and 3"), Distinct()
    ] = LEVELS
    limit: Annotated[int, Ge(0, hint="0 is all")] = 0
    search: SearchName = "own"

    def rules(self) -> tuple[Rule, ...]:
        # The rules refuse combinations of settings that contradict each other or have no effect.
        is_mini = self.source == "mini"
        return (
            *super().rules(),
            (is_mini or bool(self.path), "source=official needs path=DIR, FILE or a hub id (gaia-benchmark/GAIA)"),
            (
                not (is_mini and self.path),
                f"path={self.path} is only read with source=official; remove it or set source",
            ),
            (
                not (is_mini and self.search != "own"),
                f"search={self.search}: the questions of source=mini need their offline web; use search=own",
            ),
            (
                is_mini or self.search != "own",
                "search=own has no pages for the official questions; use search=none, tavily, brave or serper",
            ),
        )
