"""Responses of an agent, and the answers of the world.

A response contains new versions of the lines to change. All other lines are those of the prompt, regardless of earlier
attempts:

    line 2 : if d > b : d = d - 3

or `done`. The answer to a response is `line 2 : f is not defined`, `gives 12 , 2 too low`, or `passes`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from rlhf_lab.packs.code.repairs.bugs import BuggyProgram
from rlhf_lab.packs.code.repairs.interpreter import ProgramError, run
from rlhf_lab.packs.code.repairs.programs import Line, number_as_words, numbered

DONE = "done"
PASSES = "passes"
UNREADABLE = "error : write done , or lines as in line 2 : c = a + 3"
WRITTEN_LINE = re.compile(r"line (\d{1,3}) : (.+)")  # "line 2 : c = a + 3"

Changes = Mapping[int, Line]
"""New lines by index, from 0."""


def read_changes(response: str, lines: int) -> dict[int, Line] | None:
    """Parse the changes in a response; None if it has no changes or an unreadable line.

    Args:
        lines: number of lines of the program.
    """
    changes = {}
    for text in response.splitlines():
        if not text.strip():
            continue
        written = WRITTEN_LINE.fullmatch(text.strip())
        if written is None or not 1 <= int(written[1]) <= lines:
            return None
        changes[int(written[1]) - 1] = tuple(written[2].split())
    return changes or None


def write_changes(changes: Changes) -> str:
    """Format changes as a response that `read_changes` can parse."""
    return "\n".join(numbered(number, line) for number, line in changes.items())


def answer_to(task: BuggyProgram, changes: Changes) -> str:
    """Run the example on the program with these changes, and return the answer of the world."""
    try:
        result = run(task.buggy.replaced(changes), task.example)
    except ProgramError as error:
        return str(error)
    if result == task.expected:
        return PASSES
    if not isinstance(result, (int, float)):
        return "gives a list"
    difference = result - task.expected
    direction = "high" if difference > 0 else "low"
    return f"gives {number_as_words(result)} , {number_as_words(abs(difference))} too {direction}"


def is_shown_wrong(task: BuggyProgram, changes: Changes) -> bool:
    """Return True if the program with these changes fails the example."""
    return answer_to(task, changes) != PASSES
