"""Planted bugs: a word of a program is replaced by another word of the same kind.

| tier | replaced word | information in the example |
|---|---|---|
| 1 | the name of an operand, by a name that is not defined there | line and word |
| 2 | a number, an operator or a comparison | a wrong result |
| 3 | two words as in tier 2, in two lines | the wrong result of one bug |
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
    RepairProgram,
    draw_inputs,
    draw_program,
)

Tier = Literal[1, 2, 3]
Kind = Literal["name", "number", "operator", "comparison"]

HIDDEN_INPUTS = 10  # inputs on which a repair is tested and which the prompt does not show
LEAST_DIFFERENT = 2
"""Minimum number of hidden inputs on which a bug must change the result."""
LARGEST_RESULT = 99
"""Maximum absolute result of the correct program, so that each result is one token."""
MOST_DRAWS = 40
"""Maximum number of attempts to find example inputs. After these, another program is generated."""


@dataclass(frozen=True)
class Slot:
    """A word that a bug can replace.

    Attributes:
        line: index of the line, from 0.
        position: index of the word in the line, from 0.
        words: other words of the same kind.
    """

    line: int
    position: int
    kind: Kind
    words: tuple[str, ...]

    def put(self, line: Line, word: str) -> Line:
        """Return the line with this word in the slot."""
        return (*line[: self.position], word, *line[self.position + 1 :])


@dataclass(frozen=True)
class BuggyProgram:
    """A repair task before its text is written.

    Attributes:
        slots: slots of the bugs; the example reveals the first one.
        expected: result of the correct program for the example.
        hidden: inputs that determine if a program is correct.
    """

    tier: Tier
    right: RepairProgram
    buggy: RepairProgram
    slots: tuple[Slot, ...]
    example: Inputs
    expected: int
    hidden: tuple[Inputs, ...]

    def repair(self) -> dict[int, Line]:
        """Return the changed lines of the repair, in order."""
        changed = sorted(slot.line for slot in self.slots)
        return {line: self.right.lines[line] for line in changed}


def slots_of(program: RepairProgram) -> list[Slot]:
    """Return the words of a program that a bug can replace."""
    slots = []
    defined = list(PARAMETERS[:2])  # without `v`: using a list as a number would be a different kind of error
    for index, line in enumerate(program.lines):
        equals = line.index("=")
        for position, word in enumerate(line):
            kind = _kind_of(word)
            # the target of an assignment and the variable of a loop stay correct
            is_target = position == equals - 1
            is_loop_variable = line[max(0, position - 1)] == "for"
            if kind is None or is_target or is_loop_variable:
                continue
            # a name is replaced by one that is not defined yet, so that the bug raises a NameError
            undefined = [name for name in NAMES if name not in defined]
            words = {"name": undefined, "number": NUMBERS, "operator": OPERATORS, "comparison": COMPARISONS}[kind]
            others = tuple(other for other in words if other != word)
            slots.append(Slot(index, position, kind, others))
        defined.append(line[equals - 1])
    return slots


def draw_buggy_program(rng: Random, tier: Tier, lines: Sequence[int]) -> BuggyProgram:
    """Sample a program with bugs of a tier.

    Args:
        lines: minimum and maximum number of lines.
    """
    # rejection sampling: rejects programs with constant or large results, and bugs with too little or no visible effect
    while True:
        right = draw_program(rng, rng.randint(*lines))
        hidden = tuple(draw_inputs(rng) for _ in range(HIDDEN_INPUTS))
        results = [run(right, inputs) for inputs in hidden]
        if len(set(results)) == 1 or max(map(abs, results)) > LARGEST_RESULT:
            continue
        slots = _draw_slots(rng, right, tier)
        if slots is None:
            continue
        # each bug alone must change enough results, so that no bug is invisible to the hidden inputs
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


def is_right(program: RepairProgram, task: BuggyProgram) -> bool:
    """Return True if a program gives the correct result for all hidden inputs and for the example."""
    all_inputs = (task.example, *task.hidden)
    return all(_result(program, inputs) == run(task.right, inputs) for inputs in all_inputs)


def _draw_slots(rng: Random, right: RepairProgram, tier: Tier) -> list[Slot] | None:
    """Sample the slots of the bugs of a tier; None if the program has too few suitable words."""
    named = [slot for slot in slots_of(right) if slot.kind == "name"]
    others = [slot for slot in slots_of(right) if slot.kind != "name"]
    if tier == 1:
        return [rng.choice(named)]
    if tier == 2:
        return [rng.choice(others)] if others else None
    first = rng.choice(others) if others else None
    rest = [slot for slot in others if first is not None and slot.line != first.line]
    return [first, rng.choice(rest)] if first and rest else None


def _with_bug(right: RepairProgram, slot: Slot, word: str) -> RepairProgram:
    return right.replaced({slot.line: slot.put(right.lines[slot.line], word)})


def _draw_example(
    rng: Random, right: RepairProgram, buggy: RepairProgram, wrong: Sequence[RepairProgram]
) -> dict[str, Any] | None:
    """Sample inputs for which the first bug changes the result and the others do not; None if none are found.

    Args:
        buggy: program with all bugs; it is checked as well, because two bugs may cancel out.
        wrong: programs with one bug each.
    """
    for _ in range(MOST_DRAWS):
        inputs = draw_inputs(rng)
        expected = run(right, inputs)
        fails, first_is_visible, *others_are_visible = [
            _result(program, inputs) != expected for program in (buggy, *wrong)
        ]
        if not (fails and first_is_visible) or any(others_are_visible):
            continue
        if abs(expected) <= LARGEST_RESULT:
            return inputs
    return None


def _differing(program: RepairProgram, hidden: Sequence[Inputs], results: Sequence[int]) -> int:
    """Return the number of hidden inputs for which a program does not give the expected result."""
    outcomes = [_result(program, inputs) for inputs in hidden]
    return sum(outcome != expected for outcome, expected in zip(outcomes, results, strict=True))


def _result(program: RepairProgram, inputs: Inputs) -> Any:
    """Return the result of a program; None if it stops with an error."""
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
