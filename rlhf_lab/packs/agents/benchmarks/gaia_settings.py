"""Settings of GAIA."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import CheckedSettings, Distinct, Ge, Le, NotEmpty
from rlhf_lab.packs.agents.benchmarks.web_search import SERVICES

LEVELS = (1, 2, 3)
SAFE_URL = re.compile(r"https://\S+|http://(?:localhost|127\.0\.0\.1|\[::1\])(?::\d+)?(?:/\S*)?")


@dataclass(frozen=True)
class GaiaChoices(CheckedSettings):
    """Which questions of GAIA are asked, and which web there is.

    Args:
        source: `mini`: the thirty questions of our own over their own small web; `official`: those in `path`.
        path: a copy of the official repository, its metadata file, or a hub id such as `gaia-benchmark/GAIA`.
        split: of the official set: `validation`, or `test`, whose answers are kept back, so that nothing is scored.
        levels: which of the levels 1, 2 and 3.
        limit: questions per level at most, the first ones; 0 takes all.
        search: `own` is the small web of `mini`; `none`; or a live service: `tavily`, `brave`, `serper`.
        search_key_env: environment variable with the key of the service; empty is the service's usual one.
        search_url: address of the service; empty is its own.
        search_results: results per search.
    """

    source: Literal["mini", "official"] = "mini"
    path: str = ""
    split: Literal["validation", "test"] = "validation"
    levels: Annotated[
        tuple[Annotated[int, Ge(1), Le(3)], ...], NotEmpty(hint="write some of 1, 2 and 3"), Distinct()
    ] = LEVELS
    limit: Annotated[int, Ge(0, hint="0 is all")] = 0
    search: Literal["own", "none", "tavily", "brave", "serper"] = "own"
    search_key_env: str = ""
    search_url: str = ""
    search_results: Annotated[int, Ge(1), Le(20)] = 5

    def rules(self) -> tuple[Rule, ...]:
        is_mini = self.source == "mini"
        is_live = self.search in SERVICES
        return (
            *super().rules(),
            (is_mini or bool(self.path), "source=official needs path=FOLDER, FILE or a hub id (gaia-benchmark/GAIA)"),
            (not (is_mini and self.path), f"path={self.path} is read with source=official only"),
            (
                not (is_mini and self.search != "own"),
                f"search={self.search}: the questions of source=mini are answered by their own web; use search=own",
            ),
            (
                is_mini or self.search != "own",
                "search=own knows nothing of the official questions; use search=none, tavily, brave or serper",
            ),
            (
                is_live or not (self.search_key_env or self.search_url),
                f"search_key_env and search_url belong to a live service; search={self.search} has none",
            ),
            (
                not self.search_url or SAFE_URL.fullmatch(self.search_url) is not None,
                f"search_url={self.search_url}: the key goes there, so use https, or http on this machine",
            ),
        )
