"""Whether the calls of an agent are those that a task needs, apart from its answer.

With m calls made and e expected, everything here is 1 where they are the same and falls with each one missing or too
many. Calls that a busy tool made necessary are not held against an agent, nor are optional ones that it left out.
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
from rlhf_lab.packs.agents.harness.answer_scores import contains_words, normalise
from rlhf_lab.packs.agents.tools.task_set import ExpectedCall


@dataclass(frozen=True, slots=True)
class CallScores:
    """Attributes:
    sequence: 2·LCS/(m + e), LCS the longest common subsequence of the tools' names; where the order is free, what both
        have in common instead.
    matched_f1: 2·M/(m + e), M the largest number of one-to-one pairs of a call made and the same call expected. A call
        made twice is matched once.
    arguments: mean over the expected calls of the share of their arguments that were given, in the best one-to-one
        pairing with calls of the same tool.
    matched: M.
    extra: m − M.
    retries: calls that found a tool busy and were made again; they are in none of the others.
    """

    sequence: float
    matched_f1: float
    arguments: float
    matched: int
    extra: int
    retries: int


def score_calls(made: Sequence[Call], expected: Sequence[ExpectedCall], *, any_order: bool = False) -> CallScores:
    """The scores under the choice of optional calls that agrees best with what was made."""
    kept = without_retries(made)
    retries = len(made) - len(kept)
    candidates = [_score(kept, choice, any_order, retries) for choice in choices(expected)]
    # the first of equals: the choice with the most optional calls
    return max(candidates, key=lambda scores: (scores.matched_f1, scores.sequence, scores.arguments))


def choices(expected: Sequence[ExpectedCall]) -> Iterator[list[ExpectedCall]]:
    """The expected calls with each optional one in or left out."""
    options = [(True, False) if call.get("optional") else (True,) for call in expected]
    for keep in product(*options):
        yield [call for call, kept in zip(expected, keep, strict=True) if kept]


def without_retries(made: Sequence[Call]) -> list[Call]:
    """The calls but those that failed and gave something when they were made again: their tool was busy."""
    kept: list[Call] = []
    worked_later: set[str] = set()
    for call in reversed(made):
        key = call_key(call.name, call.arguments)
        if call.failed and key in worked_later:
            continue
        if not call.failed:
            worked_later.add(key)
        kept.append(call)
    return kept[::-1]


def call_key(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as text: the same for arguments that differ in spaces, capitals or their order."""
    return json.dumps([name, {key: _plain(value) for key, value in arguments.items()}], sort_keys=True)


def _plain(value: Any) -> str:
    return normalise(value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str))


def is_same(made: Call, expected: ExpectedCall) -> bool:
    """Whether a call is the expected one: by its arguments, or by what it gave where the task names that."""
    if made.name != expected["name"]:
        return False
    if call_key(made.name, made.arguments) == call_key(expected["name"], expected["arguments"]):
        return True
    wanted = expected.get("result")
    return wanted is not None and not made.failed and contains_words(made.result, wanted)


def _score(made: list[Call], expected: list[ExpectedCall], any_order: bool, retries: int) -> CallScores:
    total = len(made) + len(expected)
    names, expected_names = [call.name for call in made], [call["name"] for call in expected]
    common = shared_count(names, expected_names) if any_order else longest_common(names, expected_names)
    same_ME = np.array([[float(is_same(call, wanted)) for wanted in expected] for call in made])
    shares_ME = np.array([[argument_share(call, wanted) for wanted in expected] for call in made])
    matched = round(best_pairing(same_ME))
    return CallScores(
        sequence=2 * common / total if total else 1.0,
        matched_f1=2 * matched / total if total else 1.0,
        arguments=best_pairing(shares_ME) / len(expected) if expected else 1.0,
        matched=matched,
        extra=len(made) - matched,
        retries=retries,
    )


def argument_share(made: Call, expected: ExpectedCall) -> float:
    """Share of the expected arguments that a call of the same tool gives; 1 for the same call, 0 for another tool."""
    if is_same(made, expected):
        return 1.0
    if made.name != expected["name"] or not expected["arguments"]:
        return 0.0
    given = [
        key in made.arguments and _plain(made.arguments[key]) == _plain(value)
        for key, value in expected["arguments"].items()
    ]
    return sum(given) / len(given)


def best_pairing(weights_ME: FloatArray) -> float:
    """The largest sum of weights over one-to-one pairs of rows and columns; 0 where there are none."""
    if not weights_ME.size:
        return 0.0
    rows, columns = linear_sum_assignment(weights_ME, maximize=True)
    return float(weights_ME[rows, columns].sum())


def longest_common(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of the longest common subsequence."""
    lengths = [0] * (len(second) + 1)
    for item in first:
        diagonal = 0
        for column, other in enumerate(second, start=1):
            above = lengths[column]
            lengths[column] = diagonal + 1 if item == other else max(above, lengths[column - 1])
            diagonal = above
    return lengths[-1]


def shared_count(first: Sequence[str], second: Sequence[str]) -> int:
    """How many items both have, in any order, as often as both have them."""
    return (Counter(first) & Counter(second)).total()
