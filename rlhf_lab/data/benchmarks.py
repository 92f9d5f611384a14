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
        "reward_bench": _parse_reward_bench,
        "reward_bench_2": _parse_reward_bench_2,
        "reward_math": _parse_reward_math,
    }[benchmark]
    if benchmark == "reward_math":  # the limit is of problems: their solutions stay together
        return _group_by_problem(path, list(_parse_rows(path, 0, parse)))[: limit or None]
    return list(_parse_rows(path, limit, parse))


def read_solutions(path: str, limit: int = 0) -> list[Solution]:
    """Solutions of ProcessBench; at most `limit` rows. Raises DataError."""
    return list(_parse_rows(path, limit, _parse_process_bench))


def own_items(name: str, pairs: list[Pair]) -> list[Item]:
    """Labelled pairs in the form of RewardBench; where the true reward is known in its order, without its ties."""
    items = []
    for number, pair in enumerate(pairs):
        gold_gap = 1.0  # without a true reward the label decides
        if "gold_chosen" in pair.meta:
            gold_gap = float(pair.meta["gold_chosen"]) - float(pair.meta["gold_rejected"])
        if gold_gap == 0:
            continue
        right, wrong = (pair.chosen, pair.rejected) if gold_gap > 0 else (pair.rejected, pair.chosen)
        items.append(Item(str(number), name, pair.prompt, (right,), (wrong,)))
    return items


def _parse_rows(path: str, limit: int, parse: Callable[[Mapping[str, Any]], Any]) -> Iterator[Any]:
    """Parsed rows. Raises one DataError that lists the bad rows, after all rows were read."""
    bad = BadRows(path)
    count = 0
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


def _parse_reward_bench(values: Mapping[str, Any]) -> Item:
    chosen = text_column(values, "chosen")
    rejected = text_column(values, "rejected")
    return Item(
        name=str(column(values, "id")),
        subset=text_column(values, "subset"),
        prompt=_prompt_column(values),
        right=(chosen,),
        wrong=(rejected,),
    )


def _parse_reward_bench_2(values: Mapping[str, Any]) -> Item:
    chosen = _text_list_column(values, "chosen")
    rejected = _text_list_column(values, "rejected")
    name = str(column(values, "id"))
    subset = text_column(values, "subset")
    if subset.lower() == "ties":
        kind, _, number = name.partition(":")
        if kind not in ("ref", "tied") or not number.isdigit():
            raise RowProblem(f'column \'id\' is {describe(name)}; Ties expects "ref:NUMBER" or "tied:NUMBER"')
    return Item(name, subset, _prompt_column(values), chosen, rejected)


def _parse_reward_math(values: Mapping[str, Any]) -> Item:
    """One solution of a problem; `_group_by_problem` puts those of a problem together."""
    text = "\n".join(_step_lines(values, "eval_solution"))
    kind = text_column(values, "solution_type")
    if kind not in ("chosen", "rejected"):
        raise RowProblem(f"column 'solution_type' is {describe(kind)}; expected 'chosen' or 'rejected'")
    right, wrong = ((text,), ()) if kind == "chosen" else ((), (text,))
    prompt = as_prompt(text_column(values, "problem"))
    return Item(str(column(values, "problem_id")), "RewardMATH", prompt, right, wrong)


def _group_by_problem(path: str, solutions: list[Item]) -> list[Item]:
    """One item per problem, from one item per solution. Raises DataError for a problem with one kind only."""
    groups: dict[str, list[Item]] = {}
    for solution in solutions:
        groups.setdefault(solution.name, []).append(solution)
    items = []
    for name, group in groups.items():
        right = tuple(text for solution in group for text in solution.right)
        wrong = tuple(text for solution in group for text in solution.wrong)
        if not right or not wrong:
            raise DataError(
                f"{path}: problem_id {name} has {len(right)} chosen and {len(wrong)} rejected solutions; "
                "each problem needs both"
            )
        items.append(Item(name, group[0].subset, group[0].prompt, right, wrong))
    return items


def _parse_process_bench(values: Mapping[str, Any]) -> Solution:
    steps = _step_lines(values, "steps")
    label = column(values, "label")
    if not isinstance(label, int) or not -1 <= label < len(steps):
        raise RowProblem(f"column 'label' is {describe(label)}; expected −1 or the index of one of {len(steps)} steps")
    subset = str(column(values, "id")).rpartition("-")[0] or "ProcessBench"
    return Solution(values, subset, as_prompt(text_column(values, "problem")), steps, label)


def _prompt_column(values: Mapping[str, Any]) -> str:
    return as_prompt(text_column(values, "prompt"))


def _text_list_column(values: Mapping[str, Any], name: str) -> tuple[str, ...]:
    texts = column(values, name)
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise RowProblem(f"column {name!r} is {describe(texts)}; expected a list of texts")
    return tuple(texts)


def _step_lines(values: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return tuple(" ".join(text.split("\n")) for text in _text_list_column(values, name))
