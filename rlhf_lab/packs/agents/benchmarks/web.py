"""Web access for the agents of a benchmark: the search provider, and tools for web search."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rlhf_lab.core.episodes import Task
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.tools import Tool
from rlhf_lab.packs.agents.benchmarks.attempts import BenchmarkQuestion
from rlhf_lab.packs.agents.benchmarks.settings import WebChoices
from rlhf_lab.packs.agents.benchmarks.web_search import SERVICES, WebSearch
from rlhf_lab.packs.agents.gaia.mini import PAGES, fixture_digests, mini_index
from rlhf_lab.packs.agents.gaia.search import SearchProvider
from rlhf_lab.packs.agents.gaia.tools import web_tools

WEB_SEARCH = "web_search"
"""Name of the web search tool. It is not `search`, because the tools of a task often include one with that name."""


def search_provider(settings: WebChoices, store: Path) -> SearchProvider | None:
    """Return the web search provider of a run; None with `search=none`. Raise ConfigError if a live service has no key.

    Args:
        settings: the choice of the web.
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


def offline_pages(settings: WebChoices) -> str:
    """Return the digest of the offline web; "" for a live web, whose pages are unknown before they are read."""
    return fixture_digests()[PAGES] if settings.search == "own" else ""


def with_web(
    questions: Sequence[BenchmarkQuestion], provider: SearchProvider, settings: WebChoices
) -> list[BenchmarkQuestion]:
    """Return the questions with the tools `web_search` and `open_page` added. The web's settings become part of the
    identity of attempts.
    """
    web = {"search": settings.search, "results": settings.search_results, "pages": offline_pages(settings)}
    search, open_page = web_tools(provider)
    added = [replace(search, name=WEB_SEARCH), open_page]

    def extended(question: BenchmarkQuestion) -> BenchmarkQuestion:
        def make_tools(task: Task, seed: int) -> list[Tool]:
            return [*question.make_tools(task, seed), *added]

        return replace(question, make_tools=make_tools, known=[question.known, web])

    return [extended(question) for question in questions]
