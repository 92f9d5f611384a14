"""GAIA-Mini: thirty questions of our own over a small invented web, ten of each level, with the annotator's steps.

The facts are invented, so that no model knows them, and do not change. `solve` carries the steps out through the tools:
what they lead to is the gold answer, so that every question can be answered with what there is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rlhf_lab.core.errors import ArtifactError
from rlhf_lab.core.files import file_digest
from rlhf_lab.core.tools import Call, call_tool
from rlhf_lab.packs.agents.gaia.questions import GaiaQuestion
from rlhf_lab.packs.agents.gaia.search import Page, PageIndex
from rlhf_lab.packs.agents.gaia.tools import question_tools

FIXTURES = Path(__file__).parent / "fixtures"
PAGES = "pages.yml"
SLOT = re.compile(r"<<(\w+)>>")


class Solution(NamedTuple):
    """What the annotator's steps lead to.

    Attributes:
        calls: with their results.
        answer: None where a step was left out whose result it takes.
    """

    calls: tuple[Call, ...]
    answer: str | None


@cache
def mini_questions() -> tuple[GaiaQuestion, ...]:
    """The thirty questions in the order of their levels."""
    return tuple(_with_steps(_question(entry)) for entry in _entries().values())


@cache
def mini_index(results: int = 5) -> PageIndex:
    """The web of the questions."""
    pages = _read(PAGES)
    return PageIndex([Page(url, page["title"], page["text"].strip()) for url, page in pages.items()], results)


def mini_file(name: str) -> bytes:
    """An attachment."""
    return _files()[name].encode()


def fixture_digests() -> dict[str, str]:
    """File of the fixtures → SHA-256 of its content."""
    return {file.name: file_digest(file) for file in sorted(FIXTURES.glob("*.yml"))}


def solve(question: GaiaQuestion, run_code: Callable[[str], str] | None) -> Solution:
    """Carry out the annotator's steps of one of the thirty.

    Args:
        run_code: runs Python; without it these steps have no result.
    Raises:
        ArtifactError: a step fails, or its result does not hold what is taken from it.
    """
    entry = _entries()[question.id]
    made = question_tools(provider=mini_index(), files=list(question.files), read=mini_file, run_code=run_code)
    tools = {tool.name: tool for tool in made}
    values: dict[str, str] = {}
    calls = []
    for step in entry["steps"]:
        arguments = {name: _fill(text, values) for name, text in step["arguments"].items()}
        if step["tool"] == "python" and run_code is None:
            calls.append(Call("python", arguments))
            continue
        call = call_tool(tools, step["tool"], arguments)
        if call.failed:
            raise ArtifactError(f"{question.id}: {call.name} {arguments} failed: {call.result}")
        calls.append(call)
        for name, pattern in step.get("take", {}).items():
            escaped = {known: re.escape(value) for known, value in values.items()}
            values[name] = _taken(question.id, call, _fill(pattern, escaped))
    is_complete = all(name in values for name in SLOT.findall(entry["gold"]))
    return Solution(tuple(calls), _fill(entry["gold"], values) if is_complete else None)


def _question(entry: Mapping[str, Any]) -> GaiaQuestion:
    tools = dict.fromkeys(step["tool"] for step in entry["steps"])
    files = {name: name for name in entry.get("files", ())}
    return GaiaQuestion(entry["id"], entry["question"], entry["level"], entry["answer"], files, tools=tuple(tools))


def _with_steps(question: GaiaQuestion) -> GaiaQuestion:
    calls = solve(question, None).calls
    return replace(question, steps=tuple({"tool": call.name, "arguments": dict(call.arguments)} for call in calls))


def _fill(text: str, values: Mapping[str, str]) -> str:
    return SLOT.sub(lambda slot: values[slot[1]], text)


def _taken(question: str, call: Call, pattern: str) -> str:
    """What a pattern finds in a result: its group, or all of it."""
    match = re.search(pattern, call.result)
    if match is None:
        raise ArtifactError(f"{question}: {call.name} {dict(call.arguments)} gave nothing that fits {pattern!r}")
    return match[match.lastindex or 0]


@cache
def _entries() -> dict[str, dict[str, Any]]:
    return {entry["id"]: entry for entry in _read("questions.yml")}


@cache
def _files() -> dict[str, str]:
    files: dict[str, str] = _read("files.yml")
    return files


def _read(name: str) -> Any:
    return yaml.safe_load((FIXTURES / name).read_text(encoding="utf-8"))
