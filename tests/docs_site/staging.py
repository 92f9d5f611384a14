"""Writes the source of the site: a directory with mkdocs.yml and all pages, which `mkdocs build` turns into HTML.

Committed pages are those of docs/ and the Markdown files of `links.MOVED`. Generated pages exist only here. The
navigation is that of docs/mkdocs.yml, where an entry that ends in a slash stands for every page of that directory.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from docs_site import commands, links, metrics, papers, python_api, results, settings, tutorials
from docs_site.page import ROOT, Page

CONFIG = ROOT / "docs" / "mkdocs.yml"
SHOWN_AS_THEY_ARE = (".svg", ".png", ".css", ".csv", ".json")
PACKS = ("agents", "code", "judging", "speech")
"""Directories of docs/ that exist only with their pack."""


def committed() -> list[Page]:
    """Return the pages that are files of the repository. Guides to algorithms are parts of generated pages."""
    elsewhere = [name for name in links.MOVED if name.endswith(".md") and (ROOT / name).is_file()]
    pages_of_docs = [path for path in sorted((ROOT / "docs").rglob("*.md")) if path.parent != settings.GUIDES]
    inside = [path.relative_to(ROOT).as_posix() for path in pages_of_docs]
    topics = design_topics()
    pages = []
    for file in dict.fromkeys([*elsewhere, *inside]):
        text = (ROOT / file).read_text(encoding="utf-8")
        title = Path(file).stem if file.startswith("docs/results/") else text.partition("\n")[0].lstrip("# ")
        pages.append(Page(links.home(file), title, text, topics.get(file, ""), posixpath.dirname(file)))
    return [*pages, *tutorials.pages()]


def design_topics() -> dict[str, str]:
    """Return file of a design note → its topic, from the table of docs/code.md."""
    text = (ROOT / "docs" / "code.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| (\[\d{3}.*) \|$", text, re.M)
    return {f"docs/{note}": topic for topic, notes in rows for note in re.findall(r"\]\((design/\S+?\.md)\)", notes)}


def generated() -> list[Page]:
    """Return the pages that exist only on the site."""
    recipes = [results.recipe_page(recipe) for recipe in results.recipes().values()]
    single = [papers.page(), commands.page(), metrics.page(), python_api.page()]
    return [*settings.algorithm_pages(), *settings.group_pages(), *recipes, *single]


def stage(directory: Path) -> None:
    """Write mkdocs.yml and the pages into a directory, which is emptied first."""
    shutil.rmtree(directory, ignore_errors=True)
    pages = {page.path: page for page in (*generated(), *committed())}
    linked: set[str] = set()
    texts = {path: spaced_lists(links.rewritten(page, linked.add)) for path, page in pages.items()}
    for file in sorted(linked):
        if links.home(file).startswith("source/"):
            texts[links.home(file)] = links.source_page(file).text
    for path, text in texts.items():
        target = directory / "docs" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    for path in (ROOT / "docs").rglob("*"):
        if path.suffix in SHOWN_AS_THEY_ARE:
            shutil.copy(path, directory / "docs" / path.relative_to(ROOT / "docs"))
    config = {"INHERIT": os.path.relpath(CONFIG, directory), "nav": expanded(read_nav(), pages)}
    text = yaml.safe_dump(config, allow_unicode=True, sort_keys=False)
    (directory / "mkdocs.yml").write_text(text, encoding="utf-8")


def read_nav() -> list[Any]:
    """Return the navigation of docs/mkdocs.yml as written."""

    class Loader(yaml.SafeLoader):
        """Reads the settings of mkdocs, of which some name Python functions."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)
    nav: list[Any] = yaml.load(CONFIG.read_text(encoding="utf-8"), Loader)["nav"]
    return nav


def expanded(entries: Sequence[Any], pages: Mapping[str, Page]) -> list[Any]:
    """Return the navigation with a line for each page of a named directory, and without pages of absent packs."""
    return [line for entry in entries for line in _lines(entry, pages)]


def _lines(entry: Any, pages: Mapping[str, Page]) -> Iterator[Any]:
    if isinstance(entry, dict):
        ((title, content),) = entry.items()
        if isinstance(content, list):
            yield {title: expanded(content, pages)}
        elif content.endswith("/"):
            yield {title: list(_lines(content, pages))}
        elif not _is_of_absent_pack(content):
            yield entry
    elif entry.endswith("/"):
        members = [page for page in pages.values() if posixpath.dirname(page.path) == entry.rstrip("/")]
        for section in dict.fromkeys(page.section for page in members):
            lines = [{page.title: page.path} for page in members if page.section == section]
            yield from [{section: lines}] if section else lines
    elif not _is_of_absent_pack(entry):
        yield entry


def _is_of_absent_pack(path: str) -> bool:
    directory = path.partition("/")[0]
    return directory in PACKS and not (ROOT / "docs" / directory).is_dir()


def spaced_lists(text: str) -> str:
    """Return Markdown with an empty line before each list, which Python-Markdown needs and GitHub does not."""
    pieces = re.split(r"(^```.*?^```)", text, flags=re.S | re.M)
    return "".join(piece if piece.startswith("```") else _with_spaced_lists(piece) for piece in pieces)


def _with_spaced_lists(text: str) -> str:
    lines = text.split("\n")
    spaced: list[str] = []
    in_list = False
    for line in lines:
        is_item = bool(re.match(r"(-|\d+\.) ", line))
        if is_item and not in_list and spaced and spaced[-1].strip():
            spaced.append("")
        # Indented lines continue an item; any other text ends the list.
        in_list = is_item or (in_list and (line.startswith(" ") or not line))
        spaced.append(line)
    return "\n".join(spaced)
