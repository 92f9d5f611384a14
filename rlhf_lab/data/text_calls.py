r"""Tool calls as text, for models whose chat template does not support tools.

    Thought: the capital first
    Action: search[Velmora ; capital]

ends a turn, and the result of the tool is the next message. A turn that ends the task contains

    Answer: Ossin

Arguments are in the order of the tool's parameters, separated by ";", or a JSON object:
`search {"entity": "Velmora"}`. The first Action or Answer of a turn counts, because text after its own action is the
model's guess of the result. Both words may be emphasised (`**Answer:** Ossin`), and an answer may be one line below.
"Final Answer:" and "FINAL ANSWER:" begin an answer too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_lab.core.files import parse_json
from rlhf_lab.core.tools import Tool

THOUGHT, ACTION, ANSWER = "Thought:", "Action:", "Answer:"
DIVIDER = " ; "  # between arguments, which may contain commas
EMPHASIS = "*_"
ANSWER_WORDS = r"(?:Answer|(?:Final|FINAL)[ \t]+(?:[Aa]nswer|ANSWER))"
MOVE = re.compile(
    rf"^[ \t]*(?P<emphasis>[{EMPHASIS}]+)?(?P<word>Action|{ANSWER_WORDS})"
    rf"(?(emphasis)[{EMPHASIS}]*):(?(emphasis)[{EMPHASIS}]*)[ \t]*",
    re.MULTILINE,
)
BRACKETS = re.compile(r"(\w+)[ \t]*\[(.*)\]", re.DOTALL)  # search[Velmora ; capital]
BRACES = re.compile(r"(\w+)[ \t]*(\{.*\})", re.DOTALL)  # search{"entity": "Velmora"}, which models write too


@dataclass(frozen=True, slots=True)
class Move:
    """The action or answer of a turn of a model.

    Attributes:
        thought: text before the action or answer.
        name: name of the tool that the turn calls; "" if it calls none.
        problem: reason why the turn has neither action nor answer, for the model to read.
    """

    thought: str = ""
    answer: str | None = None
    name: str = ""
    arguments: Mapping[str, Any] | None = None
    problem: str = ""


def write_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Format a call as the model writes it: `search[Velmora ; capital]`."""
    return f"{name}[{DIVIDER.join(map(str, arguments.values()))}]"


def read_move(turn: str, tools: Mapping[str, Tool]) -> Move:
    """Parse the first action or answer of a turn."""
    found = MOVE.search(turn)
    if found is None:
        return Move(turn.strip(), problem=f"error: write {ACTION} tool[arguments], or {ANSWER} and the answer")
    thought = turn[: found.start()].strip()
    if found["word"] != "Action":
        # an answer is one line, because some models continue with a new question after it
        line, _, behind = turn[found.end() :].partition("\n")
        if found["emphasis"]:
            line = unemphasised(line)
        return Move(thought, answer=line.strip() or answer_below(behind))
    action = turn[found.end() :]
    # text after the first action is the model's guess of the result and of its next move
    next_line = MOVE.search(action)
    if next_line:
        action = action[: next_line.start()]
    return _read_call(thought, action.strip(), tools)


def answer_below(text: str) -> str:
    """Return the first line below an empty `Answer:`; "" if that line is an action or another answer."""
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
    # Prefer brackets that close on the same line. Otherwise the arguments span several lines, such as a program with a
    # list in its first line.
    line = action.partition("\n")[0]
    is_closed = line.count("[") <= line.count("]")
    brackets = (BRACKETS.match(line) if is_closed else None) or BRACKETS.match(action)
    if brackets is None:
        return Move(thought, problem=f"error: {line[:80]!r} is no call; write {ACTION} tool[arguments]")
    name = brackets[1]
    expected = tools[name].argument_names if name in tools else ()
    values = _split(brackets[2], len(expected))
    # surplus arguments get names as well, so that the tool's error message lists its parameters
    surplus = range(len(expected) + 1, len(values) + 1)
    names = [*expected, *(f"argument {number}" for number in surplus)]
    return Move(thought, name=name, arguments=dict(zip(names, values, strict=False)))


def _split(text: str, count: int) -> list[str]:
    """Split the text between the brackets into arguments. A tool with one argument gets the entire text."""
    if not text.strip():
        return []
    if count == 1:
        return [text.strip()]
    return [value.strip() for value in text.split(";")]
