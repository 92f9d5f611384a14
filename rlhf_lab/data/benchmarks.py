"""Rows of reward-model benchmarks in their own columns, from files or the hub.

    reward_bench     prompt, chosen, rejected, subset, id
    reward_bench_2   prompt, chosen: [text], rejected: [text], subset, id; Ties has ids "ref:N" and "tied:N"
    reward_math      problem, eval_solution: [step], solution_type: chosen | rejected, problem_id; a row per solution
    process_bench    id "subset-N", problem, steps: [text], label: index of the first wrong step, −1 for none

Further columns are not read. A step is one line: line breaks inside it become spaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.types import Pair
from rlhf_lab.data.reading import read_rows
from rlhf_lab.data.rows import BadRows, Row, RowProblem, column, describe, text_column
from rlhf_lab.data.transcript import as_prompt


@dataclass(frozen=True)
class Item:
    """What a benchmark scores together.

    Attributes:
        name: the row's id, or the problem's.
        prompt: ends where the reply starts.
        right, wrong: replies; a pair has one each.
    """

    name: str
    subset: str
    prompt: str
    right: tuple[str, ...]
    wrong: tuple[str, ...]

    @property
    def replies(self) -> tuple[str, ...]:
        return (*self.right, *self.wrong)


@dataclass(frozen=True)
class Solution:
    """A worked solution of ProcessBench.

    Attributes:
        values: the row as it was read.
        label: index of the first wrong step; −1 for none.
    """

    values: Mapping[str, Any]
    subset: str
    prompt: str
    steps: tuple[str, ...]
    label: int

    @property
    def prefixes(self) -> list[str]:
        """The solution up to and with each step."""
        return ["\n".join(self.steps[: end + 1]) for end in range(len(self.steps))]


def read_items(benchmark: str, path: str, limit: int = 0) -> list[Item]:
    """Items of a benchmark of right and wrong replies; at most `limit` rows, of RewardMATH problems."""
    parse: Callable[[Mapping[str, Any]], Item] = {
        "reward_bench": _pair,
        "reward_bench_2": _best_of,
        "reward_math": _math_solution,
    }[benchmark]
    if benchmark == "reward_math":  # the limit is of problems: their solutions stay together
        return _joined(path, list(_parsed(path, 0, parse)))[: limit or None]
    return list(_parsed(path, limit, parse))


def read_solutions(path: str, limit: int = 0) -> list[Solution]:
    """Solutions of ProcessBench; at most `limit` rows. Raises DataError."""
    return list(_parsed(path, limit, _solution))


def own_items(name: str, pairs: list[Pair]) -> list[Item]:
    """Labelled pairs in the form of RewardBench; where the true reward is known in its order, without its ties."""
    items = []
    for number, pair in enumerate(pairs):
        gap = float(pair.meta["gold_chosen"]) - float(pair.meta["gold_rejected"]) if "gold_chosen" in pair.meta else 1.0
        right, wrong = (pair.chosen, pair.rejected) if gap > 0 else (pair.rejected, pair.chosen)
        if gap:
            items.append(Item(str(number), name, pair.prompt, (right,), (wrong,)))
    return items


def _parsed(path: str, limit: int, parse: Callable[[Mapping[str, Any]], Any]) -> Iterator[Any]:
    """Parsed rows; every bad row is told at once."""
    bad, count = BadRows(path), 0
    rows: Iterator[Row] = read_rows(path, bad)
    for row in islice(rows, limit or None):
        try:
            yield parse(row.values)
            count += 1
        except RowProblem as problem:
            bad.add(row.file, row.number, str(problem))
    bad.finish()
    if not count:
        raise DataError(f"{path}: there is no row in it")


def _pair(values: Mapping[str, Any]) -> Item:
    chosen, rejected = text_column(values, "chosen"), text_column(values, "rejected")
    return Item(str(column(values, "id")), text_column(values, "subset"), _prompt(values), (chosen,), (rejected,))


def _best_of(values: Mapping[str, Any]) -> Item:
    chosen, rejected = _texts(values, "chosen"), _texts(values, "rejected")
    name, subset = str(column(values, "id")), text_column(values, "subset")
    if subset.lower() == "ties":
        kind, _, number = name.partition(":")
        if kind not in ("ref", "tied") or not number.isdigit():
            raise RowProblem(f'column \'id\' is {describe(name)}; Ties expects "ref:NUMBER" or "tied:NUMBER"')
    return Item(name, subset, _prompt(values), chosen, rejected)


def _math_solution(values: Mapping[str, Any]) -> Item:
    """One solution of a problem; `_joined` puts those of a problem together."""
    text = "\n".join(_lines(values, "eval_solution"))
    kind = text_column(values, "solution_type")
    if kind not in ("chosen", "rejected"):
        raise RowProblem(f"column 'solution_type' is {describe(kind)}; expected 'chosen' or 'rejected'")
    right, wrong = ((text,), ()) if kind == "chosen" else ((), (text,))
    prompt = as_prompt(text_column(values, "problem"))
    return Item(str(column(values, "problem_id")), "RewardMATH", prompt, right, wrong)


def _joined(path: str, solutions: list[Item]) -> list[Item]:
    groups: dict[str, list[Item]] = {}
    for solution in solutions:
        groups.setdefault(solution.name, []).append(solution)
    items = []
    for name, group in groups.items():
        right, wrong = (tuple(t for one in group for t in getattr(one, side)) for side in ("right", "wrong"))
        if not right or not wrong:
            raise DataError(
                f"{path}: problem_id {name} has {len(right)} chosen and {len(wrong)} rejected solutions; "
                "each problem needs both"
            )
        items.append(Item(name, group[0].subset, group[0].prompt, right, wrong))
    return items


def _solution(values: Mapping[str, Any]) -> Solution:
    steps, label = _lines(values, "steps"), column(values, "label")
    if not isinstance(label, int) or not -1 <= label < len(steps):
        raise RowProblem(f"column 'label' is {describe(label)}; expected −1 or the index of one of {len(steps)} steps")
    subset = str(column(values, "id")).rpartition("-")[0] or "ProcessBench"
    return Solution(values, subset, as_prompt(text_column(values, "problem")), steps, label)


def _prompt(values: Mapping[str, Any]) -> str:
    return as_prompt(text_column(values, "prompt"))


def _texts(values: Mapping[str, Any], name: str) -> tuple[str, ...]:
    found = column(values, name)
    if not isinstance(found, list) or not found or not all(isinstance(text, str) for text in found):
        raise RowProblem(f"column {name!r} is {describe(found)}; expected a list of texts")
    return tuple(found)


def _lines(values: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return tuple(" ".join(text.split("\n")) for text in _texts(values, name))
