"""The navigation of the documentation site and the indexes of docs/ have every page."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docs_site import links, staging

ROOT = Path(__file__).resolve().parents[2]
COMMITTED = {page.path: page for page in staging.committed()}
GENERATED = ("algorithms/", "reference/", "results/")
"""Directories of the site with generated pages."""


def paths(entries: Any) -> Iterator[str]:
    """Yield the pages of a navigation."""
    if isinstance(entries, str):
        yield entries
    for entry in entries if isinstance(entries, list) else ():
        yield from paths(next(iter(entry.values())) if isinstance(entry, dict) else entry)


def test_the_navigation_has_every_page_once() -> None:
    listed = list(paths(staging.expanded(staging.read_nav(), COMMITTED)))
    assert not {path for path in listed if listed.count(path) > 1}
    # The table of recipes has its own entry, which is a committed page of a directory of generated ones.
    missing = set(COMMITTED) - set(listed)
    assert not missing, f"docs/mkdocs.yml does not list {sorted(missing)}"
    unknown = [path for path in set(listed) - set(COMMITTED) if not path.startswith(GENERATED)]
    assert not unknown, f"docs/mkdocs.yml lists pages that do not exist: {sorted(unknown)}"


def test_the_page_on_the_code_has_every_design_note_once() -> None:
    notes = {f"docs/design/{path.name}" for path in (ROOT / "docs" / "design").glob("[0-9]*.md")}
    assert set(staging.design_topics()) == notes, "list each note in the table of docs/code.md"
    text = (ROOT / "docs" / "code.md").read_text(encoding="utf-8").partition("## Design notes by topic")[2]
    listed = re.findall(r"\]\((design/\d\S+)\)", text)
    assert len(listed) == len(set(listed))


def test_pages_that_move_are_there() -> None:
    files = [file for file in links.MOVED if posixpath.splitext(file)[1]]
    assert not [file for file in files if not (ROOT / file).is_file()]
