"""Search provider for the agents of GAIA."""

from __future__ import annotations

import os
from pathlib import Path

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.packs.agents.benchmarks.settings import Gaia
from rlhf_lab.packs.agents.benchmarks.web_search import SERVICES, WebSearch
from rlhf_lab.packs.agents.gaia.mini import PAGES, fixture_digests, mini_index
from rlhf_lab.packs.agents.gaia.search import SearchProvider


def search_provider(settings: Gaia, store: Path) -> SearchProvider | None:
    """Return the web search provider of a run; None with `search=none`. Raise ConfigError if a live service has no key.

    Args:
        store: directory that stores the results of a live service, so that no search is paid twice.
    """
    if settings.search == "none":
        return None
    if settings.search == "own":
        return mini_index(settings.search_results)
    variable = settings.search_key_env or SERVICES[settings.search].key_env
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ConfigError(
            f"algorithm.search={settings.search}: the environment variable {variable} contains no key; set it "
            f"(export {variable}=…), or name another variable with algorithm.search_key_env"
        )
    return WebSearch(settings.search, key, store, url=settings.search_url, results=settings.search_results)


def offline_pages(settings: Gaia) -> str:
    """Return the digest of the offline web; "" for a live web, whose pages are unknown before they are read."""
    return fixture_digests()[PAGES] if settings.search == "own" else ""
