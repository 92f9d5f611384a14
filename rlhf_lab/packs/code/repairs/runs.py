"""Responses of an agent, the answers of the world, and demonstrations.

A response contains new versions of the lines to change. All other lines are those of the prompt, regardless of earlier
attempts:

    line 2 : if d > b : d = d - 3

or `done`. The answer to a response is `line 2 : f is not defined`, `gives 12 , 2 too low`, or `passes`. A demonstration
repairs a program at once, or after wrong attempts and their answers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from rlhf_lab.core.messages import Message
from rlhf_lab.packs.code.repairs.bugs import BuggyProgram, slots_of
from rlhf_lab.packs.code.repairs.interpreter import ProgramError, run
from rlhf_lab.packs.code.repairs.programs import Line, number_as_words, numbered

DONE = "done"
PASSES = "passes"
UNREADABLE = "error : write done , or lines as in line 2 : c = a + 3"
WRITTEN_LINE = re.compile(r"line (\d{1,3}) : (.+)")  # "line 2 : c = a + 3"

MOST_TRIES = 3
"""Maximum number of wrong attempts in a demonstration."""
DRAWS = 20
"""Maximum number of draws to find a wrong attempt that fails the example. After these, the demonstration has no further
wrong attempt."""

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


@dataclass(frozen=True)
class RepairDemonstration:
    """A demonstration of one task.

    Attributes:
        tries: wrong changes in order; each is answered with its result.
        messages: conversation after the prompt.
        learn_from: index in `messages` of the repair, the first message to imitate; wrong attempts are only context.
    """

    tries: tuple[dict[int, Line], ...]
    messages: list[Message]
    learn_from: int


def demonstrate(task: BuggyProgram, rng: Random, revise: float) -> RepairDemonstration:
    """Generate a demonstration of a task.

    Args:
        revise: probability of a wrong attempt before the repair, and of a further one after each wrong attempt.
    """
    tries: list[dict[int, Line]] = []
    messages: list[Message] = []
    while len(tries) < MOST_TRIES and rng.random() < revise:
        changes = wrong_try(task, rng)
        if changes is None:
            break
        tries.append(changes)
        messages += _exchange(task, changes)
    learn_from = len(messages)
    messages += [*_exchange(task, task.repair()), {"role": "assistant", "content": DONE}]
    return RepairDemonstration(tuple(tries), messages, learn_from)


def wrong_try(task: BuggyProgram, rng: Random) -> dict[int, Line] | None:
    """Sample a change that fails the example: another word at the bug, or a wrong word of the same kind elsewhere.

    Returns None if no such change is found in `DRAWS` draws.
    """
    is_name = task.slots[0].kind == "name"
    positions = [slot for slot in slots_of(task.right) if (slot.kind == "name") == is_name]
    for _ in range(DRAWS):
        slot = task.slots[0] if rng.random() < 0.5 else rng.choice(positions)
        changes = {slot.line: slot.put(task.right.lines[slot.line], rng.choice(slot.words))}
        if answer_to(task, changes) != PASSES:
            return changes
    return None


def _exchange(task: BuggyProgram, changes: dict[int, Line]) -> list[Message]:
    return [
        {"role": "assistant", "content": write_changes(changes)},
        {"role": "tool", "content": answer_to(task, changes)},
    ]
