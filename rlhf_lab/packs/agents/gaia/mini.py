"""GAIA-Mini: thirty built-in questions over a small invented web, ten of each level, with the annotator's steps.

The content is invented, so no model knows it, and it never changes. `solve` executes the steps with the tools. They
lead to the gold answer, which shows that every question can be answered with these tools.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from rlhf_lab.core.errors import ArtifactError
from rlhf_lab.core.files import file_digest
from rlhf_lab.core.tools import Call, call_tool
from rlhf_lab.core.yaml_files import read_yaml
from rlhf_lab.packs.agents.gaia.questions import GaiaQuestion
from rlhf_lab.packs.agents.gaia.search import PageIndex, WebPage
from rlhf_lab.packs.agents.gaia.tools import question_tools

FIXTURES = Path(__file__).parent / "fixtures"
PAGES = "pages.yml"
SLOT = re.compile(r"<<(\w+)>>")  # a value of an earlier step: <<population>>


@cache
def mini_questions() -> tuple[GaiaQuestion, ...]:
    return tuple(_question(entry) for entry in _entries().values())


@cache
def mini_index(results: int = 5) -> PageIndex:
    """Return the search provider for the invented web of the questions."""
    pages = _read(PAGES).items()
    return PageIndex([WebPage(url, page["title"], page["text"].strip()) for url, page in pages], results)


def mini_file(name: str) -> bytes:
    # All attachments are text files, so one YAML file contains them.
    content: str = _read("files.yml")[name]
    return content.encode()


def fixture_digests() -> dict[str, str]:
    """Return the SHA-256 digest of each fixture file by its name."""
    files = sorted(FIXTURES.glob("*.yml"))
    return {file.name: file_digest(file) for file in files}


def solve(question: GaiaQuestion, run_code: Callable[[str], str] | None) -> tuple[list[Call], str | None]:
    """Execute the annotator's steps of one of the thirty questions.

    Return the calls with their results, and the answer, which is None if it depends on a step that was skipped.

    Args:
        question: the question.
        run_code: runs Python; None skips the steps that run code.
    Raises:
        ArtifactError: a step fails, or its result lacks the value that a later step needs.
    """
    entry = _entries()[question.id]
    tools_of_question = question_tools(
        provider=mini_index(), files=list(question.files), read=mini_file, run_code=run_code
    )
    tools = {tool.name: tool for tool in tools_of_question}
    values: dict[str, str] = {}
    calls = []
    for step in entry["steps"]:
        arguments = {name: _fill(text, values) for name, text in step["arguments"].items()}
        if step["tool"] == "python" and run_code is None:  # its result is unknown, and so is all that depends on it
            calls.append(Call("python", arguments))
            continue
        call = call_tool(tools, step["tool"], arguments)
        if call.failed:
            raise ArtifactError(f"{question.id}: {call.name} {arguments} failed: {call.result}")
        calls.append(call)
        for name, pattern in step.get("take", {}).items():
            # Values are inserted into a regular expression, so they are escaped.
            escaped = {known: re.escape(value) for known, value in values.items()}
            values[name] = _taken(question.id, call, _fill(pattern, escaped))
    gold = entry["gold"]
    is_complete = all(name in values for name in SLOT.findall(gold))
    return calls, _fill(gold, values) if is_complete else None


def _question(entry: Mapping[str, Any]) -> GaiaQuestion:
    files = {name: name for name in entry.get("files", ())}
    question = GaiaQuestion(entry["id"], entry["question"], entry["level"], entry["answer"], files)
    calls, _ = solve(question, None)
    return replace(question, steps=tuple({"tool": call.name, "arguments": dict(call.arguments)} for call in calls))


def _fill(text: str, values: Mapping[str, str]) -> str:
    return SLOT.sub(lambda slot: values[slot[1]], text)


def _taken(question: str, call: Call, pattern: str) -> str:
    """Search a tool's result for a pattern. Return the match of its last group, or the entire match without groups."""
    match = re.search(pattern, call.result)
    if match is None:
        made = f"{call.name} {dict(call.arguments)}"
        raise ArtifactError(f"{question}: the result of {made} does not match {pattern!r}")
    return match[match.lastindex or 0]


@cache
def _entries() -> dict[str, dict[str, Any]]:
    return {entry["id"]: entry for entry in _read("questions.yml")}


def _read(name: str) -> Any:
    return read_yaml(FIXTURES / name)
