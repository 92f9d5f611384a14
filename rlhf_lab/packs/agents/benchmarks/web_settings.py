"""Settings of the web that agents of a benchmark use. This module imports no torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import CheckedSettings, Ge, Le
from rlhf_lab.packs.agents.benchmarks.web_search import SERVICES

# http is allowed on this machine only, because the key must not cross a network unencrypted.
SAFE_URL = re.compile(r"https://\S+|http://(?:localhost|127\.0\.0\.1|\[::1\])(?::\d+)?(?:/\S*)?")
SearchName = Literal["own", "none", "tavily", "brave", "serper"]


@dataclass(frozen=True)
class WebChoices(CheckedSettings):
    """The web that agents use.

    Args:
        search: `none` is no web; `own` is the offline web of GAIA-Mini; `tavily`, `brave` and `serper` are live
            services.
        search_key_env: environment variable with the key of the service; empty means the service's usual variable.
        search_url: address of the service; empty means its official address.
        search_results: number of results per search.
    """

    search: SearchName = "none"
    search_key_env: str = ""
    search_url: str = ""
    search_results: Annotated[int, Ge(1), Le(20)] = 5

    def rules(self) -> tuple[Rule, ...]:
        is_live = self.search in SERVICES
        return (
            *super().rules(),
            (
                is_live or not (self.search_key_env or self.search_url),
                f"search_key_env and search_url need a live service, but search={self.search} is none; leave them out",
            ),
            (
                not self.search_url or SAFE_URL.fullmatch(self.search_url) is not None,
                f"search_url={self.search_url}: the key is sent there, so use https, or http on this machine",
            ),
        )
