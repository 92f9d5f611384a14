"""A page of the site, and the Markdown that several kinds of generated pages contain."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECTION = r"(?:Args|Attributes|Returns|Raises|Yields):"
"""Heading of a section of a docstring."""


@dataclass(frozen=True)
class Page:
    """Page of the site.

    Links of its text are relative to `base`. They may also start at the root of the repository (`/docs/numbers.md`) or
    of the site (`@reference/cli.md`); see `links.py`.

    Attributes:
        path: file in the source of the site, such as `reference/cli.md`.
        title: title in the navigation.
        text: Markdown.
        section: heading above the page where the navigation lists its directory; empty if there is none.
        base: directory of the repository that has the page; "" for the root and for generated pages.
    """

    path: str
    title: str
    text: str
    section: str = ""
    base: str = ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table. Line breaks in cells become spaces and `|` is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(map(_cell, line)) + " |\n" for line in lines)


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


def code(text: str) -> str:
    """Return text as inline code, also if it contains backticks; nothing for no text."""
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}" if text else ""


def plain(text: str) -> str:
    """Return text of a docstring or comment as Markdown: characters that would be markup are escaped, code stays."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(part if part.startswith("`") else _escaped(part) for part in parts)


def _escaped(text: str) -> str:
    text = re.sub(r"([*_\[\]])", r"\\\1", text.replace("<", "&lt;").replace(">", "&gt;"))
    return re.sub(r"arXiv:(\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", text)


def paragraphs(documentation: str) -> str:
    """Return a docstring as Markdown: its paragraphs, and a list for each section such as `Args:`."""
    blocks: list[str] = []
    # A section may follow another one without an empty line.
    text = re.sub(rf"\n+(?={SECTION}\n)", "\n\n", inspect.cleandoc(documentation))
    for paragraph in text.split("\n\n"):
        lines = paragraph.splitlines()
        if re.fullmatch(SECTION, lines[0]):
            blocks += [f"**{lines[0]}**", _entries(lines[1:])]
        else:
            blocks.append(plain(" ".join(line.strip() for line in lines)))
    return "\n\n".join(blocks) + "\n"


def _entries(lines: Sequence[str]) -> str:
    """Return the entries of a section as a list: a line that is indented further continues an entry."""
    entries: list[str] = []
    for line in lines:
        if line.startswith(" " * 5) and entries:
            entries[-1] += f" {line.strip()}"
        else:
            entries.append(line.strip())
    named = [re.match(r"([\w, *]+): (.*)", entry) for entry in entries]
    items = [
        f"- {code(match[1])}: {plain(match[2])}" if match else f"- {plain(entry)}"
        for match, entry in zip(named, entries, strict=True)
    ]
    return "\n".join(items)
