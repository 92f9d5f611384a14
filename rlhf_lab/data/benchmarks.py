"""Rows of reward-model benchmarks in their original columns, from files or the hub.

    reward_bench     prompt, chosen, rejected, subset, id
    reward_bench_2   prompt, chosen: [text], rejected: [text], subset, id; Ties has ids "ref:N" and "tied:N"
    reward_math      problem, eval_solution: [step], solution_type: chosen | rejected, problem_id; a row per solution
    process_bench    id "subset-N", problem, steps: [text], label: index of the first wrong step, −1 for none

Other columns are ignored. A step has no newlines: those inside it become spaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.types import Pair
from rlhf_lab.data.reading import read_rows
from rlhf_lab.data.rows import BadRows, RowProblem, SourceRow, column, describe, is_text_list, text_column
from rlhf_lab.data.transcript import as_prompt


@dataclass(frozen=True)
class BenchmarkItem:
    """Unit that a benchmark scores: a prompt with its right and wrong responses.

    Attributes:
        prompt: prompt text, which ends where the response starts.
        right: correct or preferred responses; a pair has one.
        wrong: incorrect or dispreferred responses; a pair has one.
    """

    name: str
    subset: str
    prompt: str
    right: tuple[str, ...]
    wrong: tuple[str, ...]

    @property
    def responses(self) -> tuple[str, ...]:
        return (*self.right, *self.wrong)


@dataclass(frozen=True)
class WorkedSolution:
    """A worked solution of ProcessBench.

    Attributes:
        label: index of the first wrong step; −1 if all are right.
    """

    values: Mapping[str, Any]
    subset: str
    prompt: str
    steps: tuple[str, ...]
    label: int

    @property
    def prefixes(self) -> list[str]:
        """Return the solution up to and including each step."""
        return ["\n".join(self.steps[:end]) for end in range(1, len(self.steps) + 1)]


def read_items(benchmark: str, path: str, limit: int = 0) -> list[BenchmarkItem]:
    """Return the items of a benchmark of right and wrong responses: up to `limit` rows (RewardMATH: problems)."""
    parse: Callable[[Mapping[str, Any]], BenchmarkItem] = {
        "reward_bench": _parse_reward_bench,
        "reward_bench_2": _parse_reward_bench_2,
        "reward_math": _parse_reward_math,
    }[benchmark]
    if benchmark == "reward_math":  # the limit counts problems, so that the solutions of a problem stay together
        items = _group_by_problem(path, list(_parse_rows(path, 0, parse)))
        return items[: limit or None]
    return list(_parse_rows(path, limit, parse))


def read_solutions(path: str, limit: int = 0) -> list[WorkedSolution]:
    """Return the solutions of ProcessBench, up to `limit` rows. Raise DataError if a row is malformed."""
    return list(_parse_rows(path, limit, _parse_process_bench))


def own_items(name: str, pairs: list[Pair]) -> list[BenchmarkItem]:
    """Return labelled pairs as benchmark items. If gold rewards are known, they set the order, and ties are dropped."""
    items = []
    for index, pair in enumerate(pairs):
        gold_gap = 1.0  # without a gold reward, the label decides
        if "gold_chosen" in pair.meta:
            gold_gap = float(pair.meta["gold_chosen"]) - float(pair.meta["gold_rejected"])
        if gold_gap:  # equal responses have no right side
            right, wrong = (pair.chosen, pair.rejected) if gold_gap > 0 else (pair.rejected, pair.chosen)
            items.append(BenchmarkItem(str(index), name, pair.prompt, (right,), (wrong,)))
    return items


def _parse_rows(path: str, limit: int, parse: Callable[[Mapping[str, Any]], Any]) -> Iterator[Any]:
    """Yield the parsed rows. After the last row, raise one DataError that lists all bad rows."""
    bad = BadRows(path)
    count = 0
    rows: Iterator[SourceRow] = read_rows(path, bad)
    for row in islice(rows, limit or None):
        try:
            yield parse(row.values)
            count += 1
        except RowProblem as problem:
            bad.add(row.file, row.number, str(problem))
    # raised only now, so that the message lists all bad rows
    bad.finish()
    if not count:
        raise DataError(f"{path}: the source has no rows; expected at least one")


def _parse_reward_bench(values: Mapping[str, Any]) -> BenchmarkItem:
    return BenchmarkItem(
        right=(text_column(values, "chosen"),),
        wrong=(text_column(values, "rejected"),),
        name=str(column(values, "id")),
        subset=text_column(values, "subset"),
        prompt=_prompt_column(values),
    )


def _parse_reward_bench_2(values: Mapping[str, Any]) -> BenchmarkItem:
    chosen = _text_list_column(values, "chosen")
    rejected = _text_list_column(values, "rejected")
    name = str(column(values, "id"))
    subset = text_column(values, "subset")
    if subset.lower() == "ties":
        kind, _, number = name.partition(":")
        if kind not in ("ref", "tied") or not number.isdigit():
            raise RowProblem(f'column \'id\' is {describe(name)}; Ties expects "ref:NUMBER" or "tied:NUMBER"')
    return BenchmarkItem(name, subset, _prompt_column(values), chosen, rejected)


def _parse_reward_math(values: Mapping[str, Any]) -> BenchmarkItem:
    """Return one solution of a problem as an item; `_group_by_problem` merges the solutions of a problem."""
    text = "\n".join(_step_lines(values, "eval_solution"))
    kind = text_column(values, "solution_type")
    if kind not in ("chosen", "rejected"):
        raise RowProblem(f"column 'solution_type' is {describe(kind)}; expected 'chosen' or 'rejected'")
    right = (text,) if kind == "chosen" else ()
    wrong = (text,) if kind == "rejected" else ()
    prompt = as_prompt(text_column(values, "problem"))
    return BenchmarkItem(str(column(values, "problem_id")), "RewardMATH", prompt, right, wrong)


def _group_by_problem(path: str, solutions: list[BenchmarkItem]) -> list[BenchmarkItem]:
    """Merge the solutions of each problem into one item. Raise DataError unless a problem has right and wrong ones."""
    groups: dict[str, list[BenchmarkItem]] = {}
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
        first = group[0]
        items.append(BenchmarkItem(name, first.subset, first.prompt, right, wrong))
    return items


def _parse_process_bench(values: Mapping[str, Any]) -> WorkedSolution:
    steps = _step_lines(values, "steps")
    label = column(values, "label")
    if not isinstance(label, int) or not -1 <= label < len(steps):
        raise RowProblem(
            f"column 'label' is {describe(label)}; expected −1 or the index of one of the {len(steps)} steps"
        )
    subset = str(column(values, "id")).rpartition("-")[0] or "ProcessBench"
    return WorkedSolution(values, subset, as_prompt(text_column(values, "problem")), steps, label)


def _prompt_column(values: Mapping[str, Any]) -> str:
    return as_prompt(text_column(values, "prompt"))


def _text_list_column(values: Mapping[str, Any], name: str) -> tuple[str, ...]:
    texts = column(values, name)
    if not is_text_list(texts) or not texts:
        raise RowProblem(f"column {name!r} is {describe(texts)}; expected a list of texts")
    return tuple(texts)


def _step_lines(values: Mapping[str, Any], name: str) -> tuple[str, ...]:
    # one line per step, because judges are evaluated at the ends of lines
    return tuple(text.replace("\n", " ") for text in _text_list_column(values, name))
