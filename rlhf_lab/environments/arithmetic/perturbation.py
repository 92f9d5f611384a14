"""Wrong solutions generated from right ones: one step is changed, and all numbers that depend on it change as well.

The kinds of change are the slips of `solutions.py`: a wrong result, + instead of − (or the reverse, or instead of *), a
misread number. With `cancels`, a later step states the true result although its operands no longer give it, so that
wrong steps lead to a right answer. It works on any chain that `chains.py` reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from rlhf_lab.environments.arithmetic.solutions import OFF_BY, SLIPS
from rlhf_lab.environments.maths.chains import NUMBERS, Calculation, Chain
from rlhf_lab.environments.maths.expressions import SIGNS, decimals_of, evaluate, format_decimal, tokens_of, value_of

TRIES = 24
"""Number of attempts, each with a random step and change, before a solution counts as impossible to perturb."""


@dataclass(frozen=True, slots=True)
class Perturbed:
    """A solution with one wrong step and its consequences.

    Attributes:
        labels: 1 for each unchanged step, 0 for each changed one; the first 0 is the mistake.
    """

    text: str
    labels: tuple[int, ...]


@dataclass
class _Change:
    """A planted change of a chain, before the numbers that depend on it are recomputed.

    Attributes:
        results: calculation → the result that is written instead, whatever its operands are.
        operands: index in `Chain.numbers` → the number that is written instead.
        operator: (start, end) in the text → the sign that is written instead.
        signed: index of the calculation whose sign changes, index of the operand before the sign, and the new sign.
    """

    results: dict[int, Fraction] = field(default_factory=dict)
    operands: dict[int, Fraction] = field(default_factory=dict)
    operator: dict[tuple[int, int], str] = field(default_factory=dict)
    signed: tuple[int, int, str] | None = None


def perturb(
    chain: Chain, rng: np.random.Generator, *, largest: Fraction | None = None, cancels: bool = False
) -> Perturbed | None:
    """Return a wrong version of a right solution, or None if none was found.

    The changed step is sampled among those that the answer depends on. No number becomes negative or exceeds `largest`.

    Args:
        chain: the right solution.
        rng: generator that samples the step and the change.
        largest: largest number that may be written; None for no limit.
        cancels: True to restore the right answer by a second mistake in a later step. Otherwise the answer is wrong.
    """
    answer = chain.answer
    if answer is None:
        return None
    # a mistake elsewhere would not affect the answer; sorted, so that the draw is reproducible
    relevant = sorted(_ancestors(chain, answer))
    for _ in range(TRIES):
        mistake = relevant[int(rng.integers(len(relevant)))]
        change = _draw_change(chain, mistake, rng)
        if change is None:
            continue
        results = _recompute(chain, change)
        if cancels and results is not None:
            # The second mistake: a later step affected by the first one states its true result nevertheless.
            later = [i for i in relevant if i > mistake]
            changed_later = [i for i in later if results[i] != chain.calculations[i].result]
            if not changed_later:
                continue
            repaired = changed_later[int(rng.integers(len(changed_later)))]
            change.results[repaired] = chain.calculations[repaired].result
            results = _recompute(chain, change)
        if results is None or not _is_usable(chain, results, largest, answer, cancels):
            continue
        try:
            return _write_perturbed(chain, change, results)
        except (OverflowError, ValueError):  # a number has hundreds of digits
            continue
    return None


def largest_number(solutions: Iterable[str]) -> Fraction:
    """Return the largest number in any of the solutions; 0 if there is none."""
    numbers = (match[0] for text in solutions for match in NUMBERS.finditer(text))
    return max((value_of(number) for number in numbers), default=Fraction(0))


def _ancestors(chain: Chain, index: int) -> set[int]:
    """Return a calculation and all calculations that its result depends on."""
    ancestors = {index}
    pending = [index]
    while pending:
        new = chain.depends_on(pending.pop()) - ancestors
        ancestors |= new
        pending += new
    return ancestors


def _draw_change(chain: Chain, index: int, rng: np.random.Generator) -> _Change | None:
    """Sample a change of a calculation, of a kind with the proportions of `SLIPS`; None if the kind does not apply."""
    # both numbers are always sampled, so that the random stream does not depend on the kind
    kind = rng.random()
    off = int(OFF_BY[rng.integers(len(OFF_BY))])
    calculation = chain.calculations[index]
    if kind < SLIPS["result"]:
        return _Change(results={index: calculation.result + Fraction(off, 10**calculation.decimals)})
    if kind < SLIPS["result"] + SLIPS["operation"]:
        return _change_sign(chain, index, rng)
    # a misread number: only numbers of the problem, not results of earlier steps
    sources = [chain.numbers[position].source for position in calculation.operands]
    provided = [k for k, source in enumerate(sources) if source is None]
    if not provided or _is_hidden(chain, calculation):
        return None
    k = provided[int(rng.integers(len(provided)))]
    # the error is in units of the last written digit: 0.5 may become 0.6
    number = chain.numbers[calculation.operands[k]]
    decimals = decimals_of(chain.text[number.start : number.end])
    value = number.value + Fraction(off, 10**decimals)
    if value <= 0:
        return None
    positions_of_number = (positions[k] for positions in (calculation.operands, calculation.copies) if positions)
    return _Change(operands=dict.fromkeys(positions_of_number, value))


def _change_sign(chain: Chain, index: int, rng: np.random.Generator) -> _Change | None:
    """Sample a change of sign between two adjacent operands: − for +, and + for − or *."""
    calculation = chain.calculations[index]
    if len(calculation.operands) < 2 or _is_hidden(chain, calculation):
        return None
    k = int(rng.integers(len(calculation.operands) - 1))
    spots = {}
    new_sign = ""
    # the sign is changed in the expression and, if the prose repeats it, there as well
    for positions in (calculation.operands, calculation.copies):
        if positions:
            start = chain.numbers[positions[k]].end
            end = chain.numbers[positions[k + 1]].start
            between = chain.text[start:end]
            sign = between.translate(SIGNS).strip()
            if sign not in ("+", "-", "*"):  # a division, or a parenthesis
                return None
            new_sign = "-" if sign == "+" else "+"
            sign_start = start + len(between) - len(between.lstrip(" $"))
            spots[sign_start, sign_start + 1] = new_sign
    return _Change(operator=spots, signed=(index, k, new_sign))


def _is_hidden(chain: Chain, calculation: Calculation) -> bool:
    """Return True if the operands are only in an annotation, so that a change of them would not show in the prose."""
    annotated = chain.text.startswith("<<", calculation.start - 2)
    return annotated and not calculation.copies


def _recompute(chain: Chain, change: _Change) -> list[Fraction] | None:
    """Return the results of all calculations after a change; None if one of them cannot be computed."""
    results: list[Fraction] = []
    for index, calculation in enumerate(chain.calculations):
        values = [_changed_value(chain, position, results, change.operands) for position in calculation.operands]
        old_values = [chain.numbers[position].value for position in calculation.operands]
        same = values == old_values
        signed = change.signed is not None and change.signed[0] == index
        if index in change.results:
            results.append(change.results[index])
        elif same and not signed:
            results.append(calculation.result)  # as in the original text, which may be rounded
        else:
            value = _evaluate_changed(chain, calculation, values, change.signed if signed else None)
            if value is None:
                return None
            results.append(round(value, max(2, calculation.decimals)))
    return results


def _changed_value(
    chain: Chain, position: int, results: Sequence[Fraction], operands: Mapping[int, Fraction]
) -> Fraction:
    """Return the number at an index of `Chain.numbers` after a change."""
    if position in operands:
        return operands[position]
    number = chain.numbers[position]
    if number.source is None or results[number.source] == chain.calculations[number.source].result:
        return number.value
    return abs(results[number.source])


def _evaluate_changed(
    chain: Chain, calculation: Calculation, values: Sequence[Fraction], signed: tuple[int, int, str] | None
) -> Fraction | None:
    """Return the value of a calculation's expression with other numbers and possibly another sign."""
    tokens = tokens_of(chain.text[calculation.start : calculation.end]) or []
    number_positions = [i for i, token in enumerate(tokens) if isinstance(token, Fraction)]
    for i, value in zip(number_positions, values, strict=True):
        tokens[i] = value
    if signed:  # a parenthesis may stand between the two numbers, so the sign is searched for
        _, operand, sign = signed
        between = range(number_positions[operand], number_positions[operand + 1])
        sign_position = next(i for i in between if tokens[i] in ("+", "-", "*"))
        tokens[sign_position] = sign
    return evaluate(tokens)


def _is_usable(chain: Chain, results: Sequence[Fraction], largest: Fraction | None, answer: int, cancels: bool) -> bool:
    """Return True if the changed solution is a wrong version of the requested kind with plausible numbers."""
    before = [calculation.result for calculation in chain.calculations]
    changed = {index for index, old in enumerate(before) if results[index] != old}
    if changed & chain.unclear:  # it is unknown which numbers of the prose would have to change as well
        return False
    # the answer has to change, unless a second mistake restores it
    if not changed or (answer not in changed) != cancels:
        return False
    # an integer must not become a fraction, e.g. half a marble
    for index in changed:
        becomes_fraction = before[index].denominator == 1 and results[index].denominator != 1
        is_too_large = largest is not None and results[index] > largest
        if becomes_fraction or results[index] < 0 or is_too_large:
            return False
    return True


def _write_perturbed(chain: Chain, change: _Change, results: Sequence[Fraction]) -> Perturbed:
    """Return the text with every changed number and sign. A step is labelled wrong if anything in it changed."""
    edits = dict(change.operator)
    for position, number in enumerate(chain.numbers):
        value = _changed_value(chain, position, results, change.operands)
        if value != number.value:
            decimals = max(2, decimals_of(chain.text[number.start : number.end]))
            edits[number.start, number.end] = format_decimal(value, decimals)
    text = chain.text
    for (start, end), new in sorted(edits.items(), reverse=True):  # from the end, so that earlier positions stay valid
        text = text[:start] + new + text[end:]
    # compares the text, not the results: a changed sign may give the same result
    edit_starts = [edit_start for edit_start, _ in edits]
    labels = []
    for start, end in chain.lines:
        is_wrong = any(start <= edit_start < end for edit_start in edit_starts)
        labels.append(int(not is_wrong))
    return Perturbed(text, tuple(labels))
