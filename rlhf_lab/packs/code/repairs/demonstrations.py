"""Demonstrations of repairs: immediate repairs, or repairs after wrong attempts and their answers."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from rlhf_lab.core.messages import Message
from rlhf_lab.packs.code.repairs.bugs import BuggyProgram, Slot, slots_of
from rlhf_lab.packs.code.repairs.programs import Line
from rlhf_lab.packs.code.repairs.runs import DONE, answer_to, is_shown_wrong, write_changes

MOST_TRIES = 3
"""Maximum number of wrong attempts in a demonstration."""
DRAWS = 20
"""Maximum number of draws to find a wrong attempt that fails the example. After these, the demonstration has no further
wrong attempt."""


@dataclass(frozen=True)
class RepairDemonstration:
    """A demonstration of one task.

    Attributes:
        tries: wrong changes in order; each is answered with its result.
        messages: conversation after the prompt.
        learn_from: index in `messages` of the repair, the first message to imitate. Wrong attempts are only context.
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
        # half of the draws try another word at the position of the bug
        slot = task.slots[0] if rng.random() < 0.5 else rng.choice(positions)
        changes = {slot.line: _miswritten(task, slot, rng)}
        if is_shown_wrong(task, changes):
            return changes
    return None


def _miswritten(task: BuggyProgram, slot: Slot, rng: Random) -> Line:
    return slot.put(task.right.lines[slot.line], rng.choice(slot.words))


def _exchange(task: BuggyProgram, changes: dict[int, Line]) -> list[Message]:
    return [
        {"role": "assistant", "content": write_changes(changes)},
        {"role": "tool", "content": answer_to(task, changes)},
    ]
