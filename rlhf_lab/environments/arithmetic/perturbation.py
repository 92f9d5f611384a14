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
    """What is done to a chain.

    Attributes:
        results: calculation → the result it is given, whatever its operands are.
        operands: place in `Chain.numbers` → the number that is written there instead.
        operator: (begin, end) in the text → the sign that is written there instead.
        signed: the calculation whose sign changes, and which of its operators.
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
    matter = sorted(_ancestors(chain, answer))
    for _ in range(TRIES):
        mistake = matter[int(rng.integers(len(matter)))]
        change = _draw_change(chain, mistake, rng)
        if change is None:
            continue
        results = _recomputed(chain, change)
        if cancels and results is not None:
            later = [i for i in matter if i > mistake and results[i] != chain.calculations[i].result]
            if not later:
                continue
            repaired = later[int(rng.integers(len(later)))]
            change.results[repaired] = chain.calculations[repaired].result
            results = _recomputed(chain, change)
        if results is not None and _is_fine(chain, results, largest, answer, cancels):
            return _rendered(chain, change, results)
    return None


def largest_number(solutions: Iterable[str]) -> Fraction:
    """The largest number in any of some solutions."""
    found = (match[0] for text in solutions for match in NUMBERS.finditer(text))
    return max((value_of(text) for text in found), default=Fraction(0))


def _ancestors(chain: Chain, index: int) -> set[int]:
    found, todo = {index}, [index]
    while todo:
        new = chain.depends_on(todo.pop()) - found
        found |= new
        todo += new
    return found


def _draw_change(chain: Chain, index: int, rng: np.random.Generator) -> _Change | None:
    kind, off = rng.random(), int(OFF_BY[rng.integers(len(OFF_BY))])
    calculation = chain.calculations[index]
    if kind < SLIPS["result"]:
        return _Change(results={index: calculation.result + Fraction(off, 10**calculation.decimals)})
    if kind < SLIPS["result"] + SLIPS["operation"]:
        return _other_sign(chain, index, rng)
    given = [k for k, i in enumerate(calculation.operands) if chain.numbers[i].source is None]
    if not given or (_is_annotated(chain, calculation) and not calculation.copies):
        return None
    k = given[int(rng.integers(len(given)))]
    number = chain.numbers[calculation.operands[k]]
    value = number.value + Fraction(off, 10 ** decimals_of(chain.text[number.begin : number.end]))
    if value <= 0:
        return None
    return _Change(operands={places[k]: value for places in (calculation.operands, calculation.copies) if places})


def _other_sign(chain: Chain, index: int, rng: np.random.Generator) -> _Change | None:
    """− for +, and + for − or *, between two neighbouring operands."""
    calculation = chain.calculations[index]
    if len(calculation.operands) < 2 or (_is_annotated(chain, calculation) and not calculation.copies):
        return None
    k = int(rng.integers(len(calculation.operands) - 1))
    spots, sign = {}, ""
    for places in (calculation.operands, calculation.copies):
        if places:
            begin, end = chain.numbers[places[k]].end, chain.numbers[places[k + 1]].begin
            between = chain.text[begin:end]
            sign = between.translate(SIGNS).strip()
            if sign not in ("+", "-", "*"):
                return None
            at = begin + len(between) - len(between.lstrip(" $"))
            spots[at, at + 1] = "-" if sign == "+" else "+"
    return _Change(operator=spots, signed=(index, k, "-" if sign == "+" else "+"))


def _is_annotated(chain: Chain, calculation: Calculation) -> bool:
    return chain.text.startswith("<<", calculation.begin - 2)


def _recomputed(chain: Chain, change: _Change) -> list[Fraction] | None:
    """Results of all calculations after a change; None where one cannot be computed."""
    results: list[Fraction] = []
    for index, calculation in enumerate(chain.calculations):
        values = [_value(chain, i, results, change.operands) for i in calculation.operands]
        same = values == [chain.numbers[i].value for i in calculation.operands]
        signed = change.signed is not None and change.signed[0] == index
        if index in change.results:
            results.append(change.results[index])
        elif same and not signed:
            results.append(calculation.result)
        else:
            value = _with(chain, calculation, values, change.signed if signed else None)
            if value is None:
                return None
            results.append(round(value, max(2, calculation.decimals)))
    return results


def _value(chain: Chain, place: int, results: Sequence[Fraction], operands: Mapping[int, Fraction]) -> Fraction:
    number = chain.numbers[place]
    if place in operands:
        return operands[place]
    changed = number.source is not None and results[number.source] != chain.calculations[number.source].result
    return abs(results[number.source]) if changed and number.source is not None else number.value


def _with(
    chain: Chain, calculation: Calculation, values: Sequence[Fraction], signed: tuple[int, int, str] | None
) -> Fraction | None:
    """The value of a calculation's expression with other numbers, and perhaps another sign."""
    tokens = tokens_of(chain.text[calculation.begin : calculation.end]) or []
    at = [i for i, token in enumerate(tokens) if isinstance(token, Fraction)]
    for i, value in zip(at, values, strict=True):
        tokens[i] = value
    if signed:
        between = [i for i in range(at[signed[1]], at[signed[1] + 1]) if tokens[i] in ("+", "-", "*")]
        tokens[between[0]] = signed[2]
    return evaluate(tokens)


def _is_fine(chain: Chain, results: Sequence[Fraction], largest: Fraction | None, answer: int, cancels: bool) -> bool:
    before = [calculation.result for calculation in chain.calculations]
    changed = {i for i, (old, new) in enumerate(zip(before, results, strict=True)) if old != new}
    if changed & chain.unclear or (answer not in changed) != cancels or not changed:
        return False
    whole = all(results[i].denominator == 1 or before[i].denominator != 1 for i in changed)
    return whole and all(results[i] >= 0 and (largest is None or results[i] <= largest) for i in changed)


def _rendered(chain: Chain, change: _Change, results: Sequence[Fraction]) -> Perturbed:
    edits = dict(change.operator)
    for place, number in enumerate(chain.numbers):
        value = _value(chain, place, results, change.operands)
        if value != number.value:
            edits[number.begin, number.end] = written(value, max(2, decimals_of(chain.text[number.begin : number.end])))
    text = chain.text
    for (begin, end), new in sorted(edits.items(), reverse=True):
        text = text[:begin] + new + text[end:]
    touched = [any(begin <= at < end for at, _ in edits) for begin, end in chain.lines]
    return Perturbed(text, tuple(int(not wrong) for wrong in touched))
