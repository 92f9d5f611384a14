"""Tools of an agent on a GAIA question: search, open_page, read_file, calculator, python."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlhf_lab.core.tools import Tool, ToolError, text_tool
from rlhf_lab.packs.agents.gaia.files import file_text
from rlhf_lab.packs.agents.gaia.search import SearchProvider
from rlhf_lab.packs.agents.tools.knowledge import DECIMALS, calculate

PART_CHARACTERS = 8000
"""Number of characters of a page or file that a model reads in one call."""
PART = {"type": "string", "description": "1 for the beginning (default), 2 for what follows, …"}


def question_tools(
    *,
    provider: SearchProvider | None,
    files: Sequence[str],
    read: Callable[[str], bytes],
    run_code: Callable[[str], str] | None,
) -> list[Tool]:
    """Return the tools of one question.

    Args:
        provider: provider for `search` and `open_page`; without one, both are left out.
        files: names of the question's attachments; without any, `read_file` is left out.
        read: returns the content of an attachment by its name.
        run_code: runs a Python program and returns its output; without it, `python` is left out.
    """
    tools = []
    if provider is not None:
        tools += web_tools(provider)
    if files:
        tools.append(_read_tool(files, read))
    # The calculator needs no resources, so every question has it.
    description = f"Evaluate an expression of numbers, + - * / and parentheses, exactly; to {DECIMALS} decimals."
    tools.append(text_tool("calculator", description, {"expression": "such as (12 + 3) * 4 / 5"}, calculate))
    if run_code is not None:
        description = "Run a Python program and read what it prints. Nothing is kept between calls."
        tools.append(text_tool("python", description, {"code": "the whole program"}, lambda code: run_code(code)))
    return tools


def web_tools(provider: SearchProvider) -> list[Tool]:
    return [_search_tool(provider), _open_tool(provider)]


def _search_tool(provider: SearchProvider) -> Tool:
    def search(query: str) -> str:
        if not str(query).strip():
            raise ToolError("error: the query is empty; write a few words to search for")
        hits = provider.search(str(query))
        if not hits:
            return "no results"
        entries = [f"{rank}. {hit.title}\n   {hit.url}\n   {hit.snippet}" for rank, hit in enumerate(hits, start=1)]
        return "\n".join(entries)

    description = "Search the web. Gives title, address and a snippet of each result."
    return text_tool("search", description, {"query": "a few words"}, search)


def _open_tool(provider: SearchProvider) -> Tool:
    def open_page(url: str, part: str = "1") -> str:
        return _part(provider.open(str(url)), part, "page")

    parameters = {
        "type": "object",
        "properties": {"url": {"type": "string", "description": "address of a page"}, "part": PART},
        "required": ["url"],
    }
    return Tool("open_page", "Read a page of the web as text.", parameters, open_page)


def _read_tool(files: Sequence[str], read: Callable[[str], bytes]) -> Tool:
    def read_file(name: str, part: str = "1") -> str:
        if str(name) not in files:  # only exact names are accepted, so that no path leads out of the attachments
            raise ToolError(f"error: there is no attachment {str(name)!r}; there is {', '.join(files)}")
        return _part(file_text(str(name), read(str(name))), part, "file")

    parameters = {
        "type": "object",
        "properties": {"name": {"type": "string", "description": "name of an attachment"}, "part": PART},
        "required": ["name"],
    }
    return Tool("read_file", f"Read an attachment as text: {', '.join(files)}.", parameters, read_file)


def _part(text: str, part: str, noun: str) -> str:
    """Return one part of a long text, with a note if there are several parts."""
    count = max(-(-len(text) // PART_CHARACTERS), 1)  # rounded up; an empty text has one part
    # `part` was written by a model, so it may be anything.
    written = str(part)
    is_index = written.isdecimal() and len(written) < 9
    number = int(part) if is_index else 0
    if not 1 <= number <= count:
        plural = "s" if count > 1 else ""
        raise ToolError(f"error: part={part}: the {noun} has {count} part{plural}, from 1")
    shown = text[(number - 1) * PART_CHARACTERS : number * PART_CHARACTERS]
    return shown if count == 1 else f"{shown}\n[part {number} of {count}]"
