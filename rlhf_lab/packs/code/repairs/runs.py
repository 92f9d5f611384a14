"""What an agent writes and what running it says.

A reply has the lines that should change, anew; all others stay as they were given, whatever was tried before:

    line 2 : if d > b : d = d - 3

or `done`. The answer to a reply is `line 2 : f is not defined`, `gives 12 , 2 too low`, or `passes`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from rlhf_lab.packs.code.repairs.bugs import BuggyProgram
from rlhf_lab.packs.code.repairs.interpreter import ProgramError, run
from rlhf_lab.packs.code.repairs.programs import Line, numbered, spell

DONE = "done"
PASSES = "passes"
UNREADABLE = "error : write done , or lines as in line 2 : c = a + 3"
WRITTEN_LINE = re.compile(r"line (\d{1,3}) : (.+)")

Changes = Mapping[int, Line]
"""Line, counted from 0 → what it should be."""


def read_changes(reply: str, lines: int) -> dict[int, Line] | None:
    """The changes of a reply to a program of so many lines; None where it has none that can be read."""
    changes = {}
    for text in filter(None, (line.strip() for line in reply.splitlines())):
        written = WRITTEN_LINE.fullmatch(text)
        if written is None or not 1 <= int(written[1]) <= lines:
            return None
        changes[int(written[1]) - 1] = tuple(written[2].split())
    return changes or None


def write_changes(changes: Changes) -> str:
    """A reply that `read_changes` reads."""
    return "\n".join(numbered(number, line) for number, line in changes.items())


def answer_to(task: BuggyProgram, changes: Changes) -> str:
    """What the example says of the program with these changes."""
    try:
        result = run(task.buggy.replaced(changes), task.example)
    except ProgramError as error:
        return str(error)
    if result == task.expected:
        return PASSES
    if not isinstance(result, (int, float)):
        return "gives a list"
    difference = result - task.expected
    return f"gives {spell(result)} , {spell(abs(difference))} too {'high' if difference > 0 else 'low'}"


def is_shown_wrong(task: BuggyProgram, changes: Changes) -> bool:
    return answer_to(task, changes) != PASSES
