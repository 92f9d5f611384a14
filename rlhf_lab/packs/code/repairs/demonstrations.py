"""How someone who knows the bug repairs a program: at once, or after wrong tries and a look at what came out."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from rlhf_lab.core.messages import Message
from rlhf_lab.packs.code.repairs.bugs import BuggyProgram, Slot, slots_of
from rlhf_lab.packs.code.repairs.programs import Line
from rlhf_lab.packs.code.repairs.runs import DONE, answer_to, is_shown_wrong, write_changes

MOST_TRIES = 3
"""Wrong tries in a demonstration."""
DRAWS = 20
"""Of a wrong try that the example shows to be wrong, before the demonstration goes without."""


@dataclass(frozen=True)
class Demonstration:
    """Attributes:
    tries: wrong changes, in order; each is answered by what came out of it.
    messages: the conversation behind the prompt.
    learn_from: of `messages`, the first that should be imitated: the repair. Wrong tries are read only.
    """

    tries: tuple[dict[int, Line], ...]
    messages: list[Message]
    learn_from: int


def demonstrate(task: BuggyProgram, rng: Random, revise: float) -> Demonstration:
    """One attempt.

    Args:
        revise: probability of a wrong try first, and of another behind each of them.
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
    return Demonstration(tuple(tries), messages, learn_from)


def wrong_try(task: BuggyProgram, rng: Random) -> dict[int, Line] | None:
    """A change that leaves the example wrong: another word in the place of the bug, or one of its kind elsewhere.

    None where none is drawn.
    """
    is_name = task.slots[0].kind == "name"
    places = [slot for slot in slots_of(task.right) if (slot.kind == "name") == is_name]
    for _ in range(DRAWS):
        slot = task.slots[0] if rng.random() < 0.5 else rng.choice(places)
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
