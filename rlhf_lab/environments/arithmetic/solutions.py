"""Worked solutions of arithmetic problems: writing them, with or without a slip, and parsing any response as one.

A solution has GSM8K's form without its `<<…>>` annotations, which would double its tokens: one step per line, then the
answer.

    5 + 3 = 8
    8 * 2 = 16
    16 - 4 = 12
    #### 12

A step can be right in two senses. It `computes` if its own operands give its result. It is `right` if it is the step
that the problem requires at this position: the true total, the operation and operand of the story, the true result. A
slip makes its own step and all later steps wrong in the second sense, because they continue from a wrong total. Whether
the step still computes depends on the slip. `right` is the label of a process reward model (arXiv:2305.20050).
Not supported: other derivations, such as adding the gifts up first, are not `right`, although their answer may be.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rlhf_lab.environments.arithmetic.problems import OPERATIONS, Problem
from rlhf_lab.environments.maths.answers import final_answer, states_answer
from rlhf_lab.environments.maths.chains import step_lines

SLIPS = {"result": 0.5, "operation": 0.25, "operand": 0.25}
"""Probability of each kind of slip: a wrong result, + for − (or the reverse, or for *), a misread number."""

OFF_BY = (-2, -1, 1, 2)
"""Possible errors of a result or an operand."""
COMMUTES = "+*"
"""Operations whose operands may be written in either order."""


class Slip(NamedTuple):
    """A wrong step: at index `step`, `operation` and `operand` are used, and `error` is added to the result."""

    step: int
    operation: str
    operand: int
    error: int


@dataclass(frozen=True, slots=True)
class SolutionStep:
    """One step of a response, as it is written.

    Attributes:
        text: line of the step, stripped.
        end: position in the response after the last character of the line, where a process reward model scores it.
        left: first number of "left operation operand = result".
        operand: second number.
        result: number after the equals sign.
        computes: True if "left operation operand" equals the result.
        right: True if it computes and is the step that the problem requires here.
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
class ParsedSolution:
    """A response parsed as the solution of a problem.

    Attributes:
        steps: lines that are steps, in order.
        answer: number after "####", or the one that the lenient method finds, as text; None if there is none.
        correct: True if the answer is the problem's.
        garbled: lines that are neither a step nor the answer, and all lines after the answer.
    """

    steps: tuple[SolutionStep, ...]
    answer: str | None
    correct: bool
    garbled: tuple[str, ...]

    @property
    def labels(self) -> list[int]:
        """Labels of the steps: 1 for each right step, 0 for each wrong one."""
        return [int(step.right) for step in self.steps]


_LINE = re.compile(r"([0-9]{1,9}) ([-+*]) ([0-9]{1,9}) = ([0-9]{1,9})")  # "12 + 5 = 17"
_ANSWER = re.compile(r"#### ?[0-9]{1,9}")  # "#### 17"; a space may be missing


def read_solution(problem: Problem, response: str, *, lenient: bool = False) -> ParsedSolution:
    """Parse any text into its steps, judged against the problem, and its answer. Empty lines are ignored.

    Args:
        problem: the problem that the response answers.
        response: any text.
        lenient: method of reading the answer; see `final_answer`.
    """
    steps: list[SolutionStep] = []
    garbled: list[str] = []
    line_end = 0
    answered = False
    for line in response.splitlines(keepends=True):
        # `splitlines(keepends=True)` keeps newlines, so the lengths add up to positions in the response
        line_start, line_end = line_end, line_end + len(line)
        text = line.strip()
        if not text:
            continue
        equation = _LINE.fullmatch(text)
        # the first answer ends the solution: nothing after it counts
        if answered or not (equation or _ANSWER.fullmatch(text)):
            garbled.append(text)
        elif equation:
            end = line_start + len(line.rstrip())
            steps.append(_read_step(problem, len(steps), equation, end))
        else:
            answered = True
    answer = final_answer(response, lenient=lenient)
    correct = states_answer(response, str(problem.answer), lenient=lenient)
    return ParsedSolution(tuple(steps), answer, correct, tuple(garbled))


def _read_step(problem: Problem, position: int, equation: re.Match[str], end: int) -> SolutionStep:
    """Parse the step at `position` of a response and judge it against the problem; `end` as in `SolutionStep`."""
    left, operation, operand, result = int(equation[1]), equation[2], int(equation[3]), int(equation[4])
    computes = OPERATIONS[operation](left, operand) == result
    # both are needed: a requested operation with a wrong result is a wrong step
    right = computes and _is_requested(problem, position, left, operation, operand)
    return SolutionStep(equation[0], end, left, operation, operand, result, computes, right)


def line_labels(problem: Problem, response: str) -> list[int]:
    """Return 1 for each right line of a response, 0 for each wrong one; empty lines are ignored.

    A line that is no step is wrong. The line of the answer is right if the answer is right and no step before it is
    missing. A response is therefore sound exactly if it has lines and all of them are right.
    """
    solution = read_solution(problem, response)
    lines = step_lines(response)
    right_ends = {step.end for step in solution.steps if step.right}
    if solution.correct and len(solution.steps) == len(problem.events):
        answer_ends = [end for start, end in lines if _ANSWER.fullmatch(response[start:end])]
        right_ends |= set(answer_ends[:1])  # any further answer counts as garbled
    return [int(end in right_ends) for _, end in lines]


def _is_requested(problem: Problem, position: int, left: int, operation: str, operand: int) -> bool:
    """Return True if the problem's step at `position` is "left operation operand", or its mirror if they commute."""
    if position >= len(problem.events) or operation != problem.events[position].operation:
        return False
    event = problem.events[position]
    operands = (problem.totals[position], event.operand)
    mirrored = operation in COMMUTES and (operand, left) == operands
    return (left, operand) == operands or mirrored


def write_solution(problem: Problem, slip: Slip | None = None) -> str:
    """Write the solution of a problem. After a slip, all steps continue from the wrong total."""
    steps = _work_through(problem, slip)
    lines = [f"{left} {operation} {operand} = {result}" for left, operation, operand, result in steps]
    answer = steps[-1][-1]
    return "\n".join([*lines, f"#### {answer}"])


def _work_through(problem: Problem, slip: Slip | None) -> list[tuple[int, str, int, int]]:
    """Return the steps as (left, operation, operand, result), each starting from the result of the one before."""
    steps = []
    total = problem.start
    for position, event in enumerate(problem.events):
        operation = event.operation
        operand = event.operand
        error = 0
        if slip and slip.step == position:
            _, operation, operand, error = slip
        result = OPERATIONS[operation](total, operand) + error
        steps.append((total, operation, operand, result))
        total = result
    return steps


def draw_slip(problem: Problem, largest: int, rng: np.random.Generator) -> Slip:
    """Sample a slip that makes the answer wrong and keeps all totals in 0…largest.

    Step and kind are independent; kinds have the probabilities of `SLIPS`, steps are uniform. A slip that breaks a
    condition is rejected and sampled again, so the proportions in the corpus differ slightly.
    """
    while True:
        slip = _try_slip(problem, rng)
        totals = [result for _, _, _, result in _work_through(problem, slip)]
        is_plausible = min(totals) >= 0 and max(totals) <= largest
        # a slip may leave the answer right: 2 + 2 instead of 2 * 2
        if totals[-1] != problem.answer and is_plausible:
            return slip


def _try_slip(problem: Problem, rng: np.random.Generator) -> Slip:
    """Sample a slip of a random kind at a random step, which may leave the answer right.

    All random numbers are always used, so that the random stream does not depend on the kind.
    """
    position = int(rng.integers(len(problem.events)))
    kind = rng.random()
    off = OFF_BY[rng.integers(len(OFF_BY))]
    event = problem.events[position]
    if kind < SLIPS["result"]:
        return Slip(position, event.operation, event.operand, off)
    if kind < SLIPS["result"] + SLIPS["operation"]:
        return Slip(position, "-" if event.operation == "+" else "+", event.operand, 0)
    # operands are 1 or more, as in the problems
    return Slip(position, event.operation, max(1, event.operand + off), 0)
