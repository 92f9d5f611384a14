"""Worked solutions of arithmetic problems: writing them, with or without a slip, and reading any reply as one.

A solution has GSM8K's form without its `<<…>>` annotations, which would double its tokens: one step per line, then the
answer.

    5 + 3 = 8
    8 * 2 = 16
    16 - 4 = 12
    #### 12

A step is right in two senses. It `computes` when its own operands give its result. It is `right` when it is the step
that the problem asks for at its place: the true total, the operation and the operand of the story, the true result. A
slip makes its own step wrong in the second sense, and all steps after it, which go on from a wrong total; whether it
still computes depends on the slip. `right` is the label of a process reward model (arXiv:2305.20050).
Left out: other derivations (adding the gifts up first) are not right here, although their answer may be.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rlhf_lab.environments.arithmetic.problems import OPERATIONS, Problem
from rlhf_lab.environments.maths.answers import final_answer, reaches
from rlhf_lab.environments.maths.chains import step_lines

SLIPS = {"result": 0.5, "operation": 0.25, "operand": 0.25}
"""Shares of the kinds of slips: a sum that is off, + for − (or the reverse, or for *), a number misread."""

OFF_BY = (-2, -1, 1, 2)
"""By how much a result or an operand is off."""
COMMUTES = "+*"
"""Operations whose operands may be written in either order."""


class Slip(NamedTuple):
    """A step that goes wrong: at `step` (from 0), `operation` and `operand` are used, and `error` is added."""

    step: int
    operation: str
    operand: int
    error: int


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a reply, as it is written.

    Attributes:
        text: its line, stripped.
        end: position in the reply after the line's last character: where a process reward model scores it.
        left, operation, operand, result: "left operation operand = result".
        computes: left operation operand is result.
        right: it is also the step that the problem asks for here.
    """

    text: str
    end: int
    left: int
    operation: str
    operand: int
    result: int
    computes: bool
    right: bool


@dataclass(frozen=True, slots=True)
class Solution:
    """A reply read as the solution of a problem.

    Attributes:
        steps: the lines that are steps, in order.
        answer: what follows "####", or what a lenient reader finds, as plain number text; None when nothing does.
        correct: the answer is the problem's.
        garbled: lines that are neither a step nor the answer, and all lines after the answer.
    """

    steps: tuple[Step, ...]
    answer: str | None
    correct: bool
    garbled: tuple[str, ...]

    @property
    def labels(self) -> list[int]:
        """1 for each right step, 0 for each wrong one."""
        return [int(step.right) for step in self.steps]


_LINE = re.compile(r"([0-9]{1,9}) ([-+*]) ([0-9]{1,9}) = ([0-9]{1,9})")
_ANSWER = re.compile(r"#### ?[0-9]{1,9}")


def read_solution(problem: Problem, reply: str, *, lenient: bool = False) -> Solution:
    """Any text → its steps, judged against the problem, and its answer. Empty lines and outer space do not count.

    Args:
        lenient: how the answer is read; see `final_answer`.
    """
    steps: list[Step] = []
    garbled: list[str] = []
    line_end = 0
    answered = False
    for line in reply.splitlines(keepends=True):
        line_begin, line_end = line_end, line_end + len(line)
        text = line.strip()
        if not text:
            continue
        equation = _LINE.fullmatch(text)
        if answered or not (equation or _ANSWER.fullmatch(text)):
            garbled.append(text)
        elif equation:
            end = line_begin + len(line.rstrip())
            steps.append(_read_step(problem, len(steps), equation, end))
        else:
            answered = True
    answer = final_answer(reply, lenient=lenient)
    correct = reaches(reply, str(problem.answer), lenient=lenient)
    return Solution(tuple(steps), answer, correct, tuple(garbled))


def _read_step(problem: Problem, place: int, equation: re.Match[str], end: int) -> Step:
    """The step at `place` of a reply, judged against the problem; `end` as in `Step`."""
    left, operation, operand, result = int(equation[1]), equation[2], int(equation[3]), int(equation[4])
    computes = OPERATIONS[operation](left, operand) == result
    right = computes and _is_asked(problem, place, left, operation, operand)
    return Step(equation[0], end, left, operation, operand, result, computes, right)


def line_labels(problem: Problem, reply: str) -> list[int]:
    """1 for each line of a reply that is right, 0 for each that is not; empty lines do not count.

    A line that is no step is wrong. The line of the answer is right when the answer is and no step before it is
    missing. So a reply is sound exactly when it has lines and all of them are right.
    """
    solution = read_solution(problem, reply)
    lines = step_lines(reply)
    right_ends = {step.end for step in solution.steps if step.right}
    if solution.correct and len(solution.steps) == len(problem.events):
        answer_ends = [end for begin, end in lines if _ANSWER.fullmatch(reply[begin:end])]
        right_ends |= set(answer_ends[:1])  # a further answer is garble
    return [int(end in right_ends) for _, end in lines]


def _is_asked(problem: Problem, place: int, left: int, operation: str, operand: int) -> bool:
    """Whether the problem's step at `place` is "left operation operand", or its mirror where that is the same."""
    if place >= len(problem.events):
        return False
    event = problem.events[place]
    if operation != event.operation:
        return False
    operands = (problem.totals[place], event.operand)
    return (left, operand) == operands or (operation in COMMUTES and (operand, left) == operands)


def write_solution(problem: Problem, slip: Slip | None = None) -> str:
    """The solution of a problem; with a slip, everything after it goes on from the wrong total."""
    steps = _work_through(problem, slip)
    lines = [f"{left} {operation} {operand} = {result}" for left, operation, operand, result in steps]
    answer = steps[-1][-1]
    return "\n".join([*lines, f"#### {answer}"])


def _work_through(problem: Problem, slip: Slip | None) -> list[tuple[int, str, int, int]]:
    """The steps as (left, operation, operand, result), each from the result of the one before."""
    steps = []
    total = problem.start
    for place, event in enumerate(problem.events):
        operation, operand, error = event.operation, event.operand, 0
        if slip and slip.step == place:
            _, operation, operand, error = slip
        result = OPERATIONS[operation](total, operand) + error
        steps.append((total, operation, operand, result))
        total = result
    return steps


def draw_slip(problem: Problem, largest: int, rng: np.random.Generator) -> Slip:
    """A slip that makes the answer wrong and keeps all totals in 0…largest; step and kind are independent.

    Kinds have the shares of `SLIPS`, steps are uniform; a slip that breaks the rule is drawn again, so in the corpus
    both differ a little from that.
    """
    while True:
        slip = _try_slip(problem, rng)
        totals = [result for _, _, _, result in _work_through(problem, slip)]
        if totals[-1] != problem.answer and all(0 <= total <= largest for total in totals):
            return slip


def _try_slip(problem: Problem, rng: np.random.Generator) -> Slip:
    """A slip of a random kind at a random step, which may leave the answer right. All draws are always made."""
    place = int(rng.integers(len(problem.events)))
    kind = rng.random()
    off = OFF_BY[rng.integers(len(OFF_BY))]
    event = problem.events[place]
    if kind < SLIPS["result"]:
        return Slip(place, event.operation, event.operand, off)
    if kind < SLIPS["result"] + SLIPS["operation"]:
        return Slip(place, "-" if event.operation == "+" else "+", event.operand, 0)
    return Slip(place, event.operation, max(1, event.operand + off), 0)
