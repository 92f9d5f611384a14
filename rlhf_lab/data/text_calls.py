r"""Calls of tools as text, for models whose chat template knows no tools.

    Thought: the capital first
    Action: search[Velmora ; capital]

ends a turn; what the tool gives back is the next message. A turn that ends the task says

    Answer: Ossin

Arguments stand in the order of the tool's parameters, divided by ";", or as a JSON object:
`search {"entity": "Velmora"}`. The first Action or Answer of a turn counts: what a model writes behind its own action
is not what the tool said. Either word may be emphasised (`**Answer:** Ossin`), and an answer may stand one line below.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_lab.core.files import parse_json
from rlhf_lab.core.tools import Tool

THOUGHT, ACTION, ANSWER = "Thought:", "Action:", "Answer:"
DIVIDER = " ; "
EMPHASIS = "*_"
MOVE = re.compile(
    rf"^[ \t]*(?P<emphasis>[{EMPHASIS}]+)?(?P<word>Action|Answer)"
    rf"(?(emphasis)[{EMPHASIS}]*):(?(emphasis)[{EMPHASIS}]*)[ \t]*",
    re.MULTILINE,
)
BRACKETS = re.compile(r"(\w+)[ \t]*\[(.*)\]", re.DOTALL)
BRACES = re.compile(r"(\w+)[ \t]*(\{.*\})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Move:
    """What a turn of a model does.

    Attributes:
        thought: what stands before its action or answer.
        answer: the answer it gives; None where it gives none.
        name, arguments: of the tool it calls; "" where it calls none.
        problem: why it is neither: the model reads it.
    """

    thought: str = ""
    answer: str | None = None
    name: str = ""
    arguments: Mapping[str, Any] | None = None
    problem: str = ""


def write_call(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as a model is shown it: `search[Velmora ; capital]`."""
    return f"{name}[{DIVIDER.join(str(value) for value in arguments.values())}]"


def read_move(turn: str, tools: Mapping[str, Tool]) -> Move:
    """The first action or answer of a turn."""
    found = MOVE.search(turn)
    if found is None:
        return Move(turn.strip(), problem=f"error: write {ACTION} tool[arguments], or {ANSWER} and the answer")
    thought = turn[: found.start()].strip()
    if found["word"] == "Answer":
        # an answer is one line: models go on with a new question behind it
        line, _, behind = turn[found.end() :].partition("\n")
        if found["emphasis"]:
            line = unemphasised(line)
        return Move(thought, answer=line.strip() or answer_below(behind))
    action = turn[found.end() :]
    next_line = MOVE.search(action)
    if next_line:
        action = action[: next_line.start()]
    return _read_call(thought, action.strip(), tools)


def answer_below(text: str) -> str:
    """The first line of what stands below a bare `Answer:`; "" where that is an action or another answer."""
    line = text.strip().partition("\n")[0]
    return "" if MOVE.match(line) else unemphasised(line)


def unemphasised(line: str) -> str:
    return line.strip(f" \t\r{EMPHASIS}")


def _read_call(thought: str, action: str, tools: Mapping[str, Tool]) -> Move:
    braces = BRACES.match(action)
    if braces:
        try:
            arguments = parse_json(braces[2])
        except ValueError:
            arguments = None
        if isinstance(arguments, dict):
            return Move(thought, name=braces[1], arguments=arguments)
    line = action.partition("\n")[0]
    brackets = BRACKETS.match(line) or BRACKETS.match(action)
    if brackets is None:
        return Move(thought, problem=f"error: {line[:80]!r} is no call; write {ACTION} tool[arguments]")
    name = brackets[1]
    expected = tools[name].argument_names if name in tools else ()
    values = _split(brackets[2], len(expected))
    # names for arguments that are too many, so that the tool says what it takes
    names = [*expected, *(f"argument {number}" for number in range(len(expected) + 1, len(values) + 1))]
    return Move(thought, name=name, arguments=dict(zip(names, values, strict=False)))


def _split(text: str, count: int) -> list[str]:
    """The arguments between the brackets; of a tool with one argument, all of it."""
    if not text.strip():
        return []
    if count == 1:
        return [text.strip()]
    return [value.strip() for value in text.split(";")]
