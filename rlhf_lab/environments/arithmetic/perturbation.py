"""Wrong solutions made from right ones: one step is changed, and every number that comes from it changes with it.

The kinds of change are the slips of `solutions.py`: a result that is off, + for − (or the reverse, or for *), a given
number misread. With `cancels`, a later step writes down the true result although its numbers no longer give it: a right
answer by wrong steps. Works on any chain that `chains.py` reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from rlhf_lab.environments.arithmetic.solutions import OFF_BY, SLIPS
from rlhf_lab.environments.maths.chains import NUMBERS, Calculation, Chain
from rlhf_lab.environments.maths.expressions import SIGNS, decimals_of, evaluate, tokens_of, value_of, written

TRIES = 24
"""Draws of a step and a change after which a solution counts as one that cannot be perturbed."""


@dataclass(frozen=True, slots=True)
class Perturbed:
    """A solution with one wrong step and what follows from it.

    Attributes:
        text: the whole solution.
        labels: 1 for each step that is as it was, 0 for each that is not; the first 0 is the mistake.
    """

    text: str
    labels: tuple[int, ...]


@dataclass
class _Change:
    """A planted change of a chain, before the numbers that follow from it are recomputed.

    Attributes:
        results: calculation → the result that is written there, whatever its operands are.
        operands: place in `Chain.numbers` → the number that is written there instead.
        operator: (begin, end) in the text → the sign that is written there instead.
        signed: the calculation whose sign changes, after which of its operands, and the new sign.
    """

    results: dict[int, Fraction] = field(default_factory=dict)
    operands: dict[int, Fraction] = field(default_factory=dict)
    operator: dict[tuple[int, int], str] = field(default_factory=dict)
    signed: tuple[int, int, str] | None = None


def perturb(
    chain: Chain, rng: np.random.Generator, *, largest: Fraction | None = None, cancels: bool = False
) -> Perturbed | None:
    """A wrong version of a right solution, or None when none was found.

    The step is drawn among those that the answer comes from. No number becomes negative or exceeds `largest`.

    Args:
        largest: the largest number that may be written; None is no limit.
        cancels: a second mistake, in a later step, brings the right answer back. Otherwise the answer is wrong.
    """
    answer = chain.answer
    if answer is None:
        return None
    relevant = sorted(_ancestors(chain, answer))
    for _ in range(TRIES):
        mistake = relevant[int(rng.integers(len(relevant)))]
        change = _draw_change(chain, mistake, rng)
        if change is None:
            continue
        results = _recompute(chain, change)
        if cancels and results is not None:
            # The second mistake: a later step that the first changed writes down its true result nevertheless.
            changed_later = [i for i in relevant if i > mistake and results[i] != chain.calculations[i].result]
            if not changed_later:
                continue
            repaired = changed_later[int(rng.integers(len(changed_later)))]
            change.results[repaired] = chain.calculations[repaired].result
            results = _recompute(chain, change)
        if results is None or not _is_usable(chain, results, largest, answer, cancels):
            continue
        try:
            return _write_perturbed(chain, change, results)
        except (OverflowError, ValueError):  # a number of hundreds of digits
            continue
    return None


def largest_number(solutions: Iterable[str]) -> Fraction:
    """The largest number in any of some solutions."""
    numbers = (match[0] for text in solutions for match in NUMBERS.finditer(text))
    return max((value_of(number) for number in numbers), default=Fraction(0))


def _ancestors(chain: Chain, index: int) -> set[int]:
    """A calculation and all that its result depends on."""
    ancestors = {index}
    pending = [index]
    while pending:
        new = chain.depends_on(pending.pop()) - ancestors
        ancestors |= new
        pending += new
    return ancestors


def _draw_change(chain: Chain, index: int, rng: np.random.Generator) -> _Change | None:
    """A change of one calculation with the shares of `SLIPS`; None where the drawn kind does not apply."""
    kind = rng.random()
    off = int(OFF_BY[rng.integers(len(OFF_BY))])
    calculation = chain.calculations[index]
    if kind < SLIPS["result"]:
        return _Change(results={index: calculation.result + Fraction(off, 10**calculation.decimals)})
    if kind < SLIPS["result"] + SLIPS["operation"]:
        return _change_sign(chain, index, rng)
    given = [k for k, place in enumerate(calculation.operands) if chain.numbers[place].source is None]
    if not given or _is_hidden(chain, calculation):
        return None
    k = given[int(rng.integers(len(given)))]
    number = chain.numbers[calculation.operands[k]]
    value = number.value + Fraction(off, 10 ** decimals_of(chain.text[number.begin : number.end]))
    if value <= 0:
        return None
    return _Change(operands={places[k]: value for places in (calculation.operands, calculation.copies) if places})


def _change_sign(chain: Chain, index: int, rng: np.random.Generator) -> _Change | None:
    """− for +, and + for − or *, between two neighbouring operands."""
    calculation = chain.calculations[index]
    if len(calculation.operands) < 2 or _is_hidden(chain, calculation):
        return None
    k = int(rng.integers(len(calculation.operands) - 1))
    spots = {}
    new_sign = ""
    for places in (calculation.operands, calculation.copies):
        if places:
            begin, end = chain.numbers[places[k]].end, chain.numbers[places[k + 1]].begin
            between = chain.text[begin:end]
            sign = between.translate(SIGNS).strip()
            if sign not in ("+", "-", "*"):  # a division, or a parenthesis
                return None
            new_sign = "-" if sign == "+" else "+"
            sign_begin = begin + len(between) - len(between.lstrip(" $"))
            spots[sign_begin, sign_begin + 1] = new_sign
    return _Change(operator=spots, signed=(index, k, new_sign))


def _is_hidden(chain: Chain, calculation: Calculation) -> bool:
    """Whether the operands stand in an annotation only, so that a change of them would not show in the prose."""
    annotated = chain.text.startswith("<<", calculation.begin - 2)
    return annotated and not calculation.copies


def _recompute(chain: Chain, change: _Change) -> list[Fraction] | None:
    """Results of all calculations after a change; None where one cannot be computed."""
    results: list[Fraction] = []
    for index, calculation in enumerate(chain.calculations):
        values = [_changed_value(chain, place, results, change.operands) for place in calculation.operands]
        same = values == [chain.numbers[place].value for place in calculation.operands]
        signed = change.signed is not None and change.signed[0] == index
        if index in change.results:
            results.append(change.results[index])
        elif same and not signed:
            results.append(calculation.result)  # as it was written, which may be rounded
        else:
            value = _evaluate_changed(chain, calculation, values, change.signed if signed else None)
            if value is None:
                return None
            results.append(round(value, max(2, calculation.decimals)))
    return results


def _changed_value(chain: Chain, place: int, results: Sequence[Fraction], operands: Mapping[int, Fraction]) -> Fraction:
    """The number at a place of the text after a change."""
    if place in operands:
        return operands[place]
    number = chain.numbers[place]
    if number.source is None or results[number.source] == chain.calculations[number.source].result:
        return number.value
    return abs(results[number.source])


def _evaluate_changed(
    chain: Chain, calculation: Calculation, values: Sequence[Fraction], signed: tuple[int, int, str] | None
) -> Fraction | None:
    """The value of a calculation's expression with other numbers, and perhaps another sign."""
    tokens = tokens_of(chain.text[calculation.begin : calculation.end]) or []
    number_places = [i for i, token in enumerate(tokens) if isinstance(token, Fraction)]
    for i, value in zip(number_places, values, strict=True):
        tokens[i] = value
    if signed:
        _, operand, sign = signed
        between = range(number_places[operand], number_places[operand + 1])
        sign_place = next(i for i in between if tokens[i] in ("+", "-", "*"))
        tokens[sign_place] = sign
    return evaluate(tokens)


def _is_usable(chain: Chain, results: Sequence[Fraction], largest: Fraction | None, answer: int, cancels: bool) -> bool:
    """Whether the changed solution is a wrong version as asked for, with numbers that a solution could have."""
    before = [calculation.result for calculation in chain.calculations]
    changed = {i for i, (old, new) in enumerate(zip(before, results, strict=True)) if old != new}
    if changed & chain.unclear:  # numbers of the prose would or would not have to change with them
        return False
    if not changed or (answer not in changed) != cancels:
        return False
    whole = all(results[i].denominator == 1 or before[i].denominator != 1 for i in changed)
    return whole and all(results[i] >= 0 and (largest is None or results[i] <= largest) for i in changed)


def _write_perturbed(chain: Chain, change: _Change, results: Sequence[Fraction]) -> Perturbed:
    """The text with every changed number and sign written in; a step is labelled wrong where anything in it changed."""
    edits = dict(change.operator)
    for place, number in enumerate(chain.numbers):
        value = _changed_value(chain, place, results, change.operands)
        if value != number.value:
            decimals = max(2, decimals_of(chain.text[number.begin : number.end]))
            edits[number.begin, number.end] = written(value, decimals)
    text = chain.text
    for (begin, end), new in sorted(edits.items(), reverse=True):  # from the back, so that positions stay valid
        text = text[:begin] + new + text[end:]
    touched = [any(begin <= edit_begin < end for edit_begin, _ in edits) for begin, end in chain.lines]
    return Perturbed(text, tuple(int(not wrong) for wrong in touched))
