"""Sources of items to label: a run's evaluation, a judge's comparisons, or a file of pairs.

    a run directory       evaluation.jsonl: responses of two policies to the same prompt; the run's reward is the judge
    judgements.jsonl      or its directory: {prompt, first, second, names, winner, score, …}
    any file of pairs     {prompt, chosen, rejected} or {prompt, first, second}, text or messages, as `data=pairs` reads
                          them; without `prompt`, both sides are full conversations

Identical responses are left out and counted, and so are rows that `data=pairs` would drop from a file of pairs.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.data.file_settings import Pairs
from rlhf_lab.data.pairs import parse_row
from rlhf_lab.data.reading import read_rows
from rlhf_lab.data.rows import BadRows, RowProblem, describe, is_text_list, text_column
from rlhf_lab.data.split_rows import IDENTICAL
from rlhf_lab.data.transcript import as_prompt, to_conversation
from rlhf_lab.packs.judging.judges.sources import OTHER_PROMPT
from rlhf_lab.packs.judging.labels.items import CHOSEN_FIRST, FIRST, SECOND, TIE, WINNERS, LabelItem, digest
from rlhf_lab.results.folders import find_run
from rlhf_lab.results.gains import policy_names, policy_of
from rlhf_lab.results.rundir import StoredRun, read_run

JUDGEMENTS = "judgements.jsonl"
TWICE = "the same comparison twice"
COLUMNS = "{prompt, chosen, rejected}, {prompt, first, second}, or {chosen, rejected} with full conversations"
"""Accepted columns of a file of pairs, for errors."""


@dataclass
class ItemSource:
    """Items of a source.

    Attributes:
        judge: name of the source of `LabelItem.winner`, in words.
        left_out: reason → number of comparisons left out.
    """

    judge: str
    items: list[LabelItem] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, item: LabelItem) -> None:
        """Add an item, or count it as left out if its responses are identical."""
        if item.first.strip() == item.second.strip():
            self.left_out[IDENTICAL] += 1
        else:
            self.items.append(item)


def read_source(path: Path, policies: str | None = None) -> ItemSource:
    """Read the items of a run directory, a directory with judgements.jsonl, or a file.

    Args:
        policies: "A,B": the policies of a run to compare; None is the starting policy and the run's own.

    Raises DataError if there is nothing to label, or a row has another form.
    """
    if path.is_dir() and (policies or not (path / JUDGEMENTS).is_file()):
        source = _read_run(read_run(find_run(path)), policies)
    elif policies:
        raise ConfigError(f"policies={policies}: {path} is a file; policies can be selected in run directories only")
    else:
        source = _read_file(path / JUDGEMENTS if path.is_dir() else path)
    _keep_one_of_each(source)
    if not source.items:
        reasons = ", ".join(f"{count} {reason}" for reason, count in source.left_out.items()) or "it has no rows"
        raise DataError(f"{path}: nothing is left to label ({reasons}); name another file or other policies")
    return source


def _keep_one_of_each(source: ItemSource) -> None:
    items: dict[str, LabelItem] = {}
    for item in source.items:
        earlier = items.setdefault(item.id, item)
        if (earlier.prompt, earlier.first, earlier.second) != (item.prompt, item.first, item.second):
            raise DataError(f"two different comparisons have the id {item.id!r}; give each comparison its own id")
    source.left_out[TWICE] += len(source.items) - len(items)
    source.left_out = +source.left_out  # unary plus drops reasons with a count of 0
    source.items = list(items.values())


def _read_run(run: StoredRun, policies: str | None) -> ItemSource:
    """Pair response i of one policy with response i of the other, for every prompt that both answered.

    The disguised prompts of a safety evaluation share one `prompt_id` and differ in `prompt`, and not every policy gets
    all of them. So responses are paired only if the prompts are equal.
    """
    # rows of the two policies whose responses answer their prompts
    names = _choose_policies(run, policies)
    rows = run.evaluation[run.evaluation["policy"].isin(names)].copy()
    if "part" in rows:
        rows = rows[~rows["part"].isin(OTHER_PROMPT)].copy()
    # only the last response of an episode is stored as `response`
    if "turns" in rows and (rows["turns"] > 1).any():
        raise DataError(
            f"{run.path}: {' or '.join(names)} has episodes of several turns, and the last responses of two policies "
            "answer different conversations; label runs with single responses"
        )
    # the sample index pairs responses; stored indices have precedence over the order of rows
    rows["sample"] = rows.groupby(["policy", "prompt_id"]).cumcount()
    if "sample_id" in rows:
        rows["sample"] = rows["sample_id"].fillna(rows["sample"]).astype(int)
    responses: dict[tuple[str, str, int], dict[str, dict[Any, Any]]] = {}
    for row in rows.to_dict("records"):
        responses.setdefault((row["prompt_id"], row["prompt"], row["sample"]), {})[row["policy"]] = row
    source = ItemSource("the run's reward")
    for (prompt_id, _, sample), row_by_policy in responses.items():
        # a response without a counterpart cannot be compared
        if len(row_by_policy) < 2:
            source.left_out["reply of one policy only"] += 1
            continue
        first, second = (row_by_policy[name] for name in names)
        replies = first["response"], second["response"]
        item_id = digest(prompt_id, sample, *names, *replies)
        winner = _higher(first.get("proxy"), second.get("proxy"))
        source.add(LabelItem(item_id, prompt_id, as_prompt(first["prompt"]), *replies, names, winner))
    return source


def _choose_policies(run: StoredRun, policies: str | None) -> tuple[str, str]:
    known = policy_names(run)
    if run.evaluation.empty or len(known) < 2:
        raise DataError(
            f"{run.path} has no responses of two policies (evaluation.jsonl); name a run that compares policies, "
            "judgements.jsonl, or a file of pairs"
        )
    if policies is None:
        return known[0], str(policy_of(run))
    chosen = [name.strip() for name in policies.split(",")]
    problems = []
    for name in set(chosen) - set(known):
        close = get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        problems.append(f"policies: {run.path} has no policy {name!r}{hint} It has {', '.join(known)}")
    if problems:
        raise ConfigError(problems)
    if len(chosen) != 2 or chosen[0] == chosen[1]:
        raise ConfigError(f"policies={policies}: name two of {', '.join(known)}, such as policies='A,B'")
    return chosen[0], chosen[1]


def _higher(first: float | None, second: float | None) -> str | None:
    """Return the side with the higher score; None if one is unscored (None or NaN)."""
    if first is None or second is None or first != first or second != second:  # NaN differs from itself
        return None
    if first == second:
        return TIE
    return FIRST if first > second else SECOND


def _read_file(file: Path) -> ItemSource:
    bad = BadRows(str(file), limit=sys.maxsize)  # only count here; the error below has a more suitable hint
    source = ItemSource("the judge" if file.name == JUDGEMENTS else "the labels of the file")
    if not file.is_file():
        raise DataError(f"{file} does not exist; name a run directory, {JUDGEMENTS} or a file of pairs")
    for row in read_rows(str(file), bad):
        try:
            _read_row(row.values, source)
        except (RowProblem, DataError) as problem:
            raise DataError(f"{row.file}, row {row.number}: {problem}") from None
    if bad.count:
        location, number = bad.rows()[0]
        raise DataError(
            f"{location}: {bad.count} rows are not JSON objects, the first in line {number}; correct or remove them"
        )
    return source


def _read_row(values: Mapping[str, Any], source: ItemSource) -> None:
    if {"first", "second"} <= values.keys() and {"names", "votes", "winner"} & values.keys():
        # votes or names identify a row of judgements.jsonl, whatever the name of the file
        source.judge = "the judge"
        source.add(_judgement(values))
        return
    if {"chosen", "rejected"} <= values.keys():
        sides = CHOSEN_FIRST
    elif {FIRST, SECOND} <= values.keys():
        sides = (FIRST, SECOND)
    else:
        raise RowProblem(f"the row has the columns {', '.join(map(repr, values)) or 'none'}; expected {COLUMNS}")
    # reuse the parser of data=pairs, so that the same rows are accepted and dropped
    columns = Pairs(path="-", prompt="prompt" if "prompt" in values else "", chosen=sides[0], rejected=sides[1])
    split = parse_row(values, columns)
    if split.drop:
        source.left_out[split.drop] += 1
        return
    texts = split.prompt, split.chosen, split.rejected
    winner = FIRST if sides[0] == "chosen" else None
    source.add(LabelItem(digest(*texts), digest(split.prompt), *texts, sides, winner))


def _judgement(values: Mapping[str, Any]) -> LabelItem:
    prompt = as_prompt(text_column(values, "prompt"))
    to_conversation(prompt)  # raise DataError for an invalid transcript now, not later in the page or the export
    first, second = text_column(values, "first"), text_column(values, "second")
    winner, score, prompt_id = values.get("winner"), values.get("score"), values.get("prompt_id")
    if winner not in (*WINNERS, None):
        raise RowProblem(f"column 'winner' is {describe(winner)}; expected first, second, tie or null")
    if score is not None and not (isinstance(score, int | float) and 0 <= score <= 1):
        raise RowProblem(f"column 'score' is {describe(score)}; expected a number from 0 to 1, or null")
    names = values.get("names") or [FIRST, SECOND]
    if not is_text_list(names) or len(names) != 2:
        raise RowProblem(f"column 'names' is {describe(names)}; expected two texts: the authors of first and second")
    item_id = str(values.get("id") or digest(prompt, first, second, names))
    prompt_id = digest(prompt) if prompt_id is None else str(prompt_id)
    return LabelItem(item_id, prompt_id, prompt, first, second, (names[0], names[1]), winner, score)
