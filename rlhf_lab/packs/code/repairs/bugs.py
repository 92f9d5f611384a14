"""Bugs: a word of a program replaced by another of its kind.

| tier | what is replaced | what the example shows |
|---|---|---|
| 1 | an operand's name, by one that is not defined there | line and word |
| 2 | a number, an operator or a comparison | a wrong result |
| 3 | two such words of two lines | the result of one of them |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from rlhf_lab.packs.code.repairs.interpreter import ProgramError, run
from rlhf_lab.packs.code.repairs.programs import (
    COMPARISONS,
    LOOPED,
    NAMES,
    NUMBERS,
    OPERATORS,
    PARAMETERS,
    Inputs,
    Line,
    Program,
    draw_inputs,
    draw_program,
)

Tier = Literal[1, 2, 3]
Kind = Literal["name", "number", "operator", "comparison"]

HIDDEN_INPUTS = 10
LEAST_DIFFERENT = 2
"""Hidden inputs on which a bug must change the result."""
LARGEST_RESULT = 99
"""Results of the right program lie in -99…99: a token each."""
MOST_DRAWS = 40
"""Of inputs for an example, before another program is drawn."""


@dataclass(frozen=True)
class Slot:
    """A word that can be wrong.

    Attributes:
        line, place: where it stands, counted from 0.
        words: of its kind, other than itself.
    """

    line: int
    place: int
    kind: Kind
    words: tuple[str, ...]

    def put(self, line: Line, word: str) -> Line:
        """The line with this word in the slot."""
        return (*line[: self.place], word, *line[self.place + 1 :])


@dataclass(frozen=True)
class BuggyProgram:
    """A task before it is put into words.

    Attributes:
        right, buggy: the same program without and with its bugs.
        slots: of the bugs; the first is what the example shows.
        example: inputs.
        expected: result of the right program on them.
        hidden: inputs that decide whether a program is right.
    """

    tier: Tier
    right: Program
    buggy: Program
    slots: tuple[Slot, ...]
    example: Inputs
    expected: int
    hidden: tuple[Inputs, ...]

    def repair(self) -> dict[int, Line]:
        """The lines to change, in order."""
        return {line: self.right.lines[line] for line in sorted(slot.line for slot in self.slots)}


def slots_of(program: Program) -> list[Slot]:
    """The words of a program that can be wrong."""
    slots = []
    defined = list(PARAMETERS[:2])  # a list in place of a number would be another kind of error
    for number, line in enumerate(program.lines):
        equals = line.index("=")
        for place, word in enumerate(line):
            if (kind := _kind_of(word)) is None or place == equals - 1 or line[max(0, place - 1)] == "for":
                continue
            undefined = [name for name in NAMES if name not in defined]
            words = {"name": undefined, "number": NUMBERS, "operator": OPERATORS, "comparison": COMPARISONS}[kind]
            slots.append(Slot(number, place, kind, tuple(other for other in words if other != word)))
        defined.append(line[equals - 1])
    return slots


def draw_buggy_program(rng: Random, tier: Tier, lines: Sequence[int]) -> BuggyProgram:
    """A program with bugs of a tier, `lines` long at least and at most."""
    while True:
        right = draw_program(rng, rng.randint(*lines))
        hidden = tuple(draw_inputs(rng) for _ in range(HIDDEN_INPUTS))
        results = [run(right, inputs) for inputs in hidden]
        if len(set(results)) == 1 or max(map(abs, results)) > LARGEST_RESULT:
            continue
        slots = _draw_slots(rng, right, tier)
        if slots is None:
            continue
        wrong = [_with_bug(right, slot, rng.choice(slot.words)) for slot in slots]
        if any(_differing(program, hidden, results) < LEAST_DIFFERENT for program in wrong):
            continue
        buggy = right
        for program, slot in zip(wrong, slots, strict=True):
            buggy = buggy.replaced({slot.line: program.lines[slot.line]})
        example = _draw_example(rng, right, buggy, wrong)
        if example is None:
            continue
        return BuggyProgram(tier, right, buggy, tuple(slots), example, run(right, example), hidden)


def is_right(program: Program, task: BuggyProgram) -> bool:
    """Whether a program gives what the right one gives, on all hidden inputs and on the example."""
    return all(_result(program, inputs) == run(task.right, inputs) for inputs in (task.example, *task.hidden))


def _draw_slots(rng: Random, right: Program, tier: Tier) -> list[Slot] | None:
    """Where the bugs of a tier go; None where the program has no room for them."""
    named = [slot for slot in slots_of(right) if slot.kind == "name"]
    others = [slot for slot in slots_of(right) if slot.kind != "name"]
    if tier == 1:
        return [rng.choice(named)]
    if tier == 2:
        return [rng.choice(others)] if others else None
    first = rng.choice(others) if others else None
    rest = [slot for slot in others if first is not None and slot.line != first.line]
    return [first, rng.choice(rest)] if first and rest else None


def _with_bug(right: Program, slot: Slot, word: str) -> Program:
    return right.replaced({slot.line: slot.put(right.lines[slot.line], word)})


def _draw_example(rng: Random, right: Program, buggy: Program, wrong: Sequence[Program]) -> dict[str, Any] | None:
    """Inputs on which the first bug shows and the others do not.

    Args:
        buggy: the program with all bugs. Two of them may cancel out.
        wrong: the program with one bug each.
    """
    for _ in range(MOST_DRAWS):
        inputs = draw_inputs(rng)
        expected = run(right, inputs)
        fails, shown, *unseen = (_result(program, inputs) != expected for program in (buggy, *wrong))
        if fails and shown and not any(unseen) and abs(expected) <= LARGEST_RESULT:
            return inputs
    return None


def _differing(program: Program, hidden: Sequence[Inputs], results: Sequence[int]) -> int:
    return sum(_result(program, inputs) != expected for inputs, expected in zip(hidden, results, strict=True))


def _result(program: Program, inputs: Inputs) -> Any:
    """What a program returns; None where it stops."""
    try:
        return run(program, inputs)
    except ProgramError:
        return None


def _kind_of(word: str) -> Kind | None:
    if word in OPERATORS:
        return "operator"
    if word in COMPARISONS:
        return "comparison"
    if word.isdecimal():
        return "number"
    return "name" if word in (*NAMES, *PARAMETERS[:2], LOOPED) else None
