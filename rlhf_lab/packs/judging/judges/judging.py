"""Comparison of two sources, or grading of one, row by row into a file that an interrupted attempt can resume.

A row's id is a hash of everything that determines it: the judge, its instructions, the prompt and the responses. Rows
that are already in the file are not requested again. The rows of a chunk are written once all of its answers have
arrived. Answers received before a failure are in the judge's store.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_lab.config.groups import JudgeSource
from rlhf_lab.core.files import append_jsonl, fingerprint, json_lines, read_rows, truncate, write_text
from rlhf_lab.packs.judging.judges.pairwise import IDENTICAL, Candidates, judge_pairs, system_text
from rlhf_lab.packs.judging.judges.questions import REASONS
from rlhf_lab.packs.judging.judges.requests import Completer, Completion, CompletionRequest
from rlhf_lab.packs.judging.judges.rubric import JudgeRubric, grade_responses
from rlhf_lab.packs.judging.statistics.win_rates import win_rate
from rlhf_lab.statistics.inference import clustered_mean, clustered_rate
from rlhf_lab.statistics.rows import column

AT_ONCE = 64
"""Number of items judged before their rows are written."""
ID_LENGTH = 16
"""Number of hexadecimal digits of a row's id."""


def at_once(judge: JudgeSource, items: int, usual: int = AT_ONCE) -> int:
    """Return the number of items to judge before their rows are written.

    A service with batches gets all items at once: a batch takes up to a day, however small it is.
    """
    return max(1, items) if getattr(judge, "batches", False) else usual


class Metered:
    """A judge with counters of its answers, of those that came from the store, and of the cost of the others.

    Args:
        world: hash of the world whose truth the judge reads, as part of its identity; "" if it reads none.
    """

    def __init__(self, judge: Completer, world: str = ""):
        self.judge = judge
        self.world = world
        self.answers = self.stored = self.input_tokens = self.output_tokens = 0
        self.usd = 0.0

    @property
    def identity(self) -> Mapping[str, Any]:
        return {**self.judge.identity, **({"world": self.world} if self.world else {})}

    def complete_many(self, requests: Sequence[CompletionRequest], *, title: str = "") -> list[Completion]:
        # count answers here, because the judge itself may not keep a ledger
        responses = self.judge.complete_many(requests, title=title)
        for response in responses:
            self.answers += 1
            self.stored += response.stored
            self.usd += response.cost_usd
            if not response.stored:
                self.input_tokens += response.usage.read_tokens
                self.output_tokens += response.usage.output_tokens
        return responses

    def cost(self, before: Mapping[str, float] | None = None) -> dict[str, float]:
        """Return the cost as recorded with a result.

        Args:
            before: cost recorded by earlier attempts at the same result. If it is passed, the spending comes from the
                service's ledger, which also contains payments of attempts that failed later.
        """
        counts = {
            "answers": self.answers,
            "stored": self.stored,
            "usd": round(self.usd, 6),
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
        }
        earlier = before or {}
        total = {name: value + earlier.get(name, 0) for name, value in counts.items()}
        ledger = getattr(self.judge, "ledger", None)
        if before is not None and ledger is not None:
            total["usd"] = round(ledger.spent_usd, 6)
        return total


@dataclass(frozen=True)
class JudgingItem:
    """A pair of responses, or one response (`second` is empty), with the index of its prompt.

    Attributes:
        prompt_id: index of the prompt among all prompts.
        repeat: number of earlier items with the same texts.
    """

    candidates: Candidates
    prompt_id: int
    repeat: int = 0

    def row_id(self, question: str) -> str:
        texts = self.candidates
        material = [question, texts.prompt, texts.first, texts.second, texts.names, texts.reference, self.repeat]
        return fingerprint(material)[:ID_LENGTH]


def number_items(candidates: Sequence[Candidates]) -> list[JudgingItem]:
    """Return items in the order of the candidates. Prompts are numbered by their first appearance."""
    # equal texts get a repeat count, so that their rows have different ids
    prompt_ids: dict[str, int] = {}
    repeats: Counter[Candidates] = Counter()
    items = []
    for each in candidates:
        prompt_id = prompt_ids.setdefault(each.prompt, len(prompt_ids))
        items.append(JudgingItem(each, prompt_id, repeats[each]))
        repeats[each] += 1
    return items


def question_of(judge: Completer, rubric: JudgeRubric | None, max_tokens: int, *, graded: bool) -> str:
    """Return a hash of the judge and its instructions, independent of the responses."""
    # both variants of the instructions enter, because rows may or may not have a reference
    stated = []
    for guided in (False, True):
        stated.append(rubric.system(guided=guided) if graded and rubric else system_text(rubric, guided=guided))
    return fingerprint([dict(judge.identity), stated, max_tokens])


def judge_items(
    judge: Completer,
    items: Sequence[JudgingItem],
    path: Path,
    rubric: JudgeRubric | None,
    max_tokens: int,
    count: int,
    *,
    graded: bool = False,
) -> list[dict[str, Any]]:
    """Return the row of each item, in their order: read from the file, or requested now and appended to it.

    Rows of other items are removed from the file at the end.

    Args:
        path: judgements.jsonl or grades.jsonl.
        count: number of items whose rows are written together.
        graded: True to grade the first response of each item on the rubric, instead of comparing the two.
    """
    # the question is part of every row's id, so another judge or rubric starts afresh
    question = question_of(judge, rubric, max_tokens, graded=graded)
    ask, what = (_grades, "responses") if graded else (_comparisons, "comparisons")
    old, ends = read_rows(path)
    truncate(path, ends[-1] if ends else 0)  # drop a last line that a killed process left incomplete
    rows = {row["id"]: row for row in old if "id" in row}
    ids = [item.row_id(question) for item in items]
    missing = {row_id: item for item, row_id in zip(items, ids, strict=True) if row_id not in rows}
    for start in range(0, len(missing), count):
        part = dict(list(missing.items())[start : start + count])
        title = f"{what} {start + 1} to {start + len(part)} of {len(missing)}"
        new = ask(judge, part, rubric, max_tokens, title)
        append_jsonl(path, new)
        rows.update((row["id"], row) for row in new)
    in_order = [rows[row_id] for row_id in ids]
    # rewrite the file only if needed: rows of other items, or rows appended in another order by an earlier attempt
    if [row.get("id") for row in read_rows(path)[0]] != ids:
        write_text(path, json_lines(in_order))
    return in_order


def _comparisons(
    judge: Completer, items: Mapping[str, JudgingItem], rubric: JudgeRubric | None, max_tokens: int, title: str
) -> list[dict[str, Any]]:
    pairs = [item.candidates for item in items.values()]
    judgements = judge_pairs(judge, pairs, rubric, max_tokens=max_tokens, title=title)
    rows = []
    for (row_id, item), judgement in zip(items.items(), judgements, strict=True):
        rows.append(judgement.row(row_id, item.prompt_id, item.candidates))
    return rows


def _grades(
    judge: Completer, items: Mapping[str, JudgingItem], rubric: JudgeRubric | None, max_tokens: int, title: str
) -> list[dict[str, Any]]:
    assert rubric is not None
    texts = [item.candidates for item in items.values()]
    graded = grade_responses(
        judge,
        rubric,
        [text.prompt for text in texts],
        [text.first for text in texts],
        references=[text.reference for text in texts],
        max_tokens=max_tokens,
        title=title,
    )
    rows = []
    for (row_id, item), text, grades in zip(items.items(), texts, graded, strict=True):
        identity = {"id": row_id, "prompt_id": item.prompt_id, "name": text.names[0]}
        shown = {"prompt": text.prompt, "response": text.first, "reference": text.reference}
        values = [None if math.isnan(value) else value for value in grades.values]  # JSON has no NaN
        columns = dict(zip(rubric.names, values, strict=True))
        rows.append({**identity, **shown, **columns, "reason": grades.reason, "unscored": grades.unscored})
    return rows


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return statistics of the first name against the second, clustered by prompt.

    Keys: `win_rate` of the first name, with ties as half a win (NaN if all pairs are identical); `consistency`, the
    fraction of compared pairs in which both orders agree; `first_shown`, the fraction of votes with a winner that name
    the response shown first; `words`, the difference in words, first minus second; counts of comparisons, prompts and
    identical responses; counts of unscored votes by reason.
    """
    prompts = np.array([row["prompt_id"] for row in rows])
    score_N = column(rows, "score")
    words_N = [float(len(row["first"].split()) - len(row["second"].split())) for row in rows]
    compared = [row for row in rows if not is_identical(row)]
    # consistency: pairs with both votes, whatever the votes are
    fully_scored = [row for row in compared if row["winner"]]
    agree_N = [float(row["votes"][0]["winner"] == row["votes"][1]["winner"]) for row in fully_scored]
    agree_prompts = [row["prompt_id"] for row in fully_scored]
    # position bias: single votes with a winner, 1 for the response shown first
    chose_first = []
    vote_prompts = []
    for row in compared:
        for vote in row["votes"]:
            if vote["winner"] in ("first", "second"):
                chose_first.append(float(vote["winner"] == vote["shown"]))
                vote_prompts.append(row["prompt_id"])
    reasons = Counter(vote["unscored"] for row in rows for vote in row["votes"])
    return {
        # if all responses are identical, nothing was compared: that is no draw
        "win_rate": win_rate(score_N if compared else np.full(len(rows), math.nan), prompts),
        "consistency": clustered_rate(agree_N, agree_prompts),
        "first_shown": clustered_rate(chose_first, vote_prompts),
        "words": clustered_mean(words_N, prompts),
        "comparisons": len(rows),
        "prompts": len(set(prompts.tolist())),
        "identical": len(rows) - len(compared),
        "unscored": sum(row["score"] is None for row in rows),
        **{f"unscored/{reason}": reasons[reason] for reason in REASONS},
    }


def is_identical(row: Mapping[str, Any]) -> bool:
    """Return True if a row of judgements.jsonl has two identical responses, which are never sent to the judge."""
    return all(vote["reason"] == IDENTICAL for vote in row["votes"])


def summarise_grades(rows: Sequence[Mapping[str, Any]], rubric: JudgeRubric) -> dict[str, Any]:
    """Return means of the grades, clustered by prompt, and counts of responses, prompts and unscored responses."""
    prompts = np.array([row["prompt_id"] for row in rows])
    reasons = Counter(row["unscored"] for row in rows)
    return {
        **{f"grade/{name}": clustered_mean(column(rows, name), prompts) for name in rubric.names},
        "replies": len(rows),
        "prompts": len(set(prompts.tolist())),
        "unscored": sum(reasons[reason] for reason in REASONS),
        **{f"unscored/{reason}": reasons[reason] for reason in REASONS},
    }
