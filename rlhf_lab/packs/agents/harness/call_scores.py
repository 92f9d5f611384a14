"""Scores of an agent's calls against the calls that a task needs, independent of the answer.

Let m be the number of executed calls and e the number of expected calls. Each score is 1 if both sequences are the
same, and falls with each missing or superfluous call. Repeating a call because its tool was busy costs nothing, and
neither does leaving out an optional call.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from rlhf_lab.core.arrays import FloatArray
from rlhf_lab.core.tools import Call
from rlhf_lab.data.duplicates import common_subsequence
from rlhf_lab.packs.agents.harness.answer_scores import contains_words, normalise
from rlhf_lab.packs.agents.tools.task_set import ExpectedCall


@dataclass(frozen=True, slots=True)
class CallScores:
    """Scores of one attempt's calls.

    Attributes:
        sequence: 2·LCS/(m + e), where LCS is the length of the longest common subsequence of the tools' names. If the
            order is free, LCS is the size of their multiset intersection.
        matched_f1: 2·M/(m + e), where M is the maximum number of one-to-one pairs of an executed call and the same
            expected call. A repeated call matches once.
        arguments: mean over the expected calls of the fraction of their arguments that were passed, in the best
            one-to-one pairing with calls of the same tool.
        matched: M.
        extra: m − M.
        retries: number of calls that found a tool busy and were repeated; no other score counts them.
    """

    sequence: float
    matched_f1: float
    arguments: float
    matched: int
    extra: int
    retries: int


def score_calls(calls: Sequence[Call], expected: Sequence[ExpectedCall], *, any_order: bool = False) -> CallScores:
    """Score calls against the expected calls, including those optional calls that give the best score."""
    kept = without_retries(calls)
    retries = len(calls) - len(kept)
    # There are 2^n choices for n optional calls; tasks have only a few of them.
    candidates = [_score(kept, choice, any_order, retries) for choice in choices(expected)]
    # max returns the first of equal candidates: the choice with most optional calls
    return max(candidates, key=lambda scores: (scores.matched_f1, scores.sequence, scores.arguments))


def choices(expected: Sequence[ExpectedCall]) -> Iterator[list[ExpectedCall]]:
    """Yield the expected calls once for every subset of the optional calls."""
    options = [(True, False) if call.get("optional") else (True,) for call in expected]
    for keep in product(*options):
        yield [call for call, kept in zip(expected, keep, strict=True) if kept]


def without_retries(calls: Sequence[Call]) -> list[Call]:
    """Return the calls without those that failed and succeeded when repeated: their tool was busy."""
    kept: list[Call] = []
    # Backwards, so that a later success of the same call is known when its failure is reached.
    worked_later: set[str] = set()
    for call in reversed(calls):
        key = call_key(call.name, call.arguments)
        if call.failed and key in worked_later:
            continue
        if not call.failed:
            worked_later.add(key)
        kept.append(call)
    return kept[::-1]


def call_key(name: str, arguments: Mapping[str, Any]) -> str:
    """Format a call as text that does not depend on spaces, capitals or the order of arguments."""
    plain_arguments = {key: _to_plain(value) for key, value in arguments.items()}
    return json.dumps([name, plain_arguments], sort_keys=True)


def _to_plain(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return normalise(text)


def is_same(calls: Call, expected: ExpectedCall) -> bool:
    """Return True if a call is the expected one: by its arguments, or by its result if the task states one."""
    if calls.name != expected["name"]:
        return False
    expected_key = call_key(expected["name"], expected["arguments"])
    if call_key(calls.name, calls.arguments) == expected_key:
        return True
    # an expression or a query can be written in many ways, so its result counts as well
    target = expected.get("result")
    if target is None or calls.failed:
        return False
    return contains_words(calls.result, target)


def _score(calls: list[Call], expected: list[ExpectedCall], any_order: bool, retries: int) -> CallScores:
    # All other scores are F1 = 2·common / (m + e), so both missing and extra calls lower them.
    total = len(calls) + len(expected)
    names = [call.name for call in calls]
    expected_names = [call["name"] for call in expected]
    common = shared_count(names, expected_names) if any_order else common_subsequence(names, expected_names)
    # M, E: executed and expected calls
    same_ME = np.array([[float(is_same(call, target)) for target in expected] for call in calls])
    fraction_ME = np.array([[argument_fraction(call, target) for target in expected] for call in calls])
    matched = round(best_pairing(same_ME))
    # Without any call on either side, both sequences are equal.
    return CallScores(
        sequence=2 * common / total if total else 1.0,
        matched_f1=2 * matched / total if total else 1.0,
        arguments=best_pairing(fraction_ME) / len(expected) if expected else 1.0,
        matched=matched,
        extra=len(calls) - matched,
        retries=retries,
    )


def argument_fraction(calls: Call, expected: ExpectedCall) -> float:
    """Return the fraction of the expected arguments in a call: 1 for the same call, 0 for other tools."""
    if is_same(calls, expected):
        return 1.0
    if calls.name != expected["name"] or not expected["arguments"]:
        return 0.0
    provided = 0
    for key, value in expected["arguments"].items():
        if key in calls.arguments and _to_plain(calls.arguments[key]) == _to_plain(value):
            provided += 1
    return provided / len(expected["arguments"])


def best_pairing(weights_ME: FloatArray) -> float:
    """Return the maximum sum of weights over one-to-one assignments of rows to columns; 0 for an empty matrix."""
    if not weights_ME.size:
        return 0.0
    # the assignment problem, solved exactly: a greedy pairing may be worse
    rows, columns = linear_sum_assignment(weights_ME, maximize=True)
    return float(weights_ME[rows, columns].sum())


def shared_count(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the size of the multiset intersection of two sequences."""
    return (Counter(first) & Counter(second)).total()
