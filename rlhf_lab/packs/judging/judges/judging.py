"""Judge what two sources say, or grade what one says, row by row into a file that an interrupted attempt goes on with.

A row's id is a hash of everything that decides it: the judge, what it is told, the prompt and the replies. Rows that
are in the file already are not asked for again. The rows of a chunk are written when all of its answers are there; what
a service answered before it failed lies in the judge's store.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_lab.config.groups import JudgeSource
from rlhf_lab.core.files import append_jsonl, fingerprint, read_rows, truncate, write_text
from rlhf_lab.core.types import FloatArray
from rlhf_lab.packs.judging.judges.answers import REASONS
from rlhf_lab.packs.judging.judges.pairwise import IDENTICAL, Candidates, judge_pairs, system_text
from rlhf_lab.packs.judging.judges.requests import Completer, Reply, Request
from rlhf_lab.packs.judging.judges.rubric import JudgeRubric, grade_replies
from rlhf_lab.statistics.inference import Estimate, clustered_mean, clustered_rate, least_sd_of_outcomes

AT_ONCE = 64
"""Items that are judged before their rows are written."""
ID_LENGTH = 16


def at_once(judge: JudgeSource, items: int, usual: int = AT_ONCE) -> int:
    """How many of some items are asked about before their rows are written.

    A service that takes batches gets all of them: a batch takes up to a day, however small it is.
    """
    return max(1, items) if getattr(judge, "batches", False) else usual


class Metered:
    """A judge, and what was asked of it.

    Args:
        world: a hash of the world whose truth the judge answers from, part of who answers; "" where it reads none.

    Attributes:
        answers, stored: answers, and those of them that came from the store.
        usd: what the others cost.
    """

    def __init__(self, judge: Completer, world: str = ""):
        self.judge, self.world = judge, world
        self.answers = self.stored = self.input_tokens = self.output_tokens = 0
        self.usd = 0.0

    @property
    def identity(self) -> Mapping[str, Any]:
        return {**self.judge.identity, "world": self.world} if self.world else self.judge.identity

    def complete_many(self, requests: Sequence[Request], *, title: str = "") -> list[Reply]:
        replies = self.judge.complete_many(requests, title=title)
        for reply in replies:
            self.answers += 1
            self.stored += reply.stored
            self.usd += reply.cost_usd
            if not reply.stored:
                usage = reply.usage
                self.input_tokens += usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
                self.output_tokens += usage.output_tokens
        return replies

    def cost(self, before: Mapping[str, float] | None = None) -> dict[str, float]:
        """As it is recorded with a result.

        Args:
            before: what earlier attempts at the same recorded. The ledger of a service knows better what was spent: it
                also has what an attempt paid for before it failed.
        """
        counts = {"answers": self.answers, "stored": self.stored, "usd": round(self.usd, 6)}
        counts |= {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}
        total = {name: value + (before or {}).get(name, 0) for name, value in counts.items()}
        ledger = getattr(self.judge, "ledger", None)
        if before is not None and ledger is not None:
            total["usd"] = round(ledger.spent_usd, 6)
        return total


@dataclass(frozen=True)
class Item:
    """A pair of replies, or a reply (`second` is then empty), and where its prompt stands among all prompts.

    Attributes:
        repeat: how many items with the same texts came before.
    """

    candidates: Candidates
    prompt_id: int
    repeat: int = 0

    def row_id(self, question: str) -> str:
        texts = self.candidates
        material = [question, texts.prompt, texts.first, texts.second, texts.names, texts.reference, self.repeat]
        return fingerprint(material)[:ID_LENGTH]


def number_items(candidates: Sequence[Candidates]) -> list[Item]:
    """Items in the order of the candidates; prompts are numbered in the order in which they first appear."""
    prompt_ids: dict[str, int] = {}
    repeats: Counter[Candidates] = Counter()
    items = []
    for each in candidates:
        prompt_id = prompt_ids.setdefault(each.prompt, len(prompt_ids))
        items.append(Item(each, prompt_id, repeats[each]))
        repeats[each] += 1
    return items


def question_of(judge: Completer, rubric: JudgeRubric | None, max_tokens: int, *, graded: bool) -> str:
    """A hash of who is asked and what it is told, whatever the replies are."""
    if graded:
        assert rubric is not None
        told = [rubric.system(guided=guided) for guided in (False, True)]
    else:
        told = [system_text(rubric, guided=guided) for guided in (False, True)]
    return fingerprint([dict(judge.identity), told, max_tokens])


def judge_items(
    judge: Completer, items: Sequence[Item], path: Path, rubric: JudgeRubric | None, max_tokens: int, count: int
) -> list[dict[str, Any]]:
    """Rows of judgements.jsonl, one for each item. See `_complete` for what is done to the file.

    Args:
        count: items whose rows are written together.
    """
    question = question_of(judge, rubric, max_tokens, graded=False)

    def ask(part: Sequence[Item], title: str) -> list[dict[str, Any]]:
        pairs = [item.candidates for item in part]
        judgements = judge_pairs(judge, pairs, rubric, max_tokens=max_tokens, title=title)
        return [
            judgement.row(item.row_id(question), item.prompt_id, item.candidates)
            for item, judgement in zip(part, judgements, strict=True)
        ]

    return _complete(items, question, path, ask, count, "comparisons")


def grade_items(
    judge: Completer, items: Sequence[Item], path: Path, rubric: JudgeRubric, max_tokens: int, count: int
) -> list[dict[str, Any]]:
    """Rows of grades.jsonl, one for each item's first reply. See `_complete` for what is done to the file.

    Args:
        count: items whose rows are written together.
    """
    question = question_of(judge, rubric, max_tokens, graded=True)

    def ask(part: Sequence[Item], title: str) -> list[dict[str, Any]]:
        texts = [item.candidates for item in part]
        graded = grade_replies(
            judge,
            rubric,
            [text.prompt for text in texts],
            [text.first for text in texts],
            references=[text.reference for text in texts],
            max_tokens=max_tokens,
            title=title,
        )
        rows = []
        for item, text, grades in zip(part, texts, graded, strict=True):
            values = [None if math.isnan(value) else value for value in grades.values]
            identity = {"id": item.row_id(question), "prompt_id": item.prompt_id, "name": text.names[0]}
            said = {"prompt": text.prompt, "response": text.first, "reference": text.reference}
            columns = dict(zip(rubric.names, values, strict=True))
            rows.append({**identity, **said, **columns, "reason": grades.reason, "unscored": grades.unscored})
        return rows

    return _complete(items, question, path, ask, count, "replies")


def _complete(
    items: Sequence[Item],
    question: str,
    path: Path,
    ask: Callable[[Sequence[Item], str], list[dict[str, Any]]],
    count: int,
    what: str,
) -> list[dict[str, Any]]:
    """The row of each item, in their order: from the file, or asked for now and appended.

    Rows of the file that are of other items are left out of it in the end.
    """
    old, ends = read_rows(path)
    truncate(path, ends[-1] if ends else 0)  # a line that a kill cut off
    rows = {row["id"]: row for row in old if "id" in row}
    ids = [item.row_id(question) for item in items]
    missing = [item for item, row_id in zip(items, ids, strict=True) if row_id not in rows]
    for begin in range(0, len(missing), count):
        part = missing[begin : begin + count]
        title = f"{what} {begin + 1} to {begin + len(part)} of {len(missing)}"
        new = ask(part, title)
        append_jsonl(path, new)
        rows.update((row["id"], row) for row in new)
    in_order = [rows[row_id] for row_id in ids]
    if [row.get("id") for row in read_rows(path)[0]] != ids:
        write_text(path, "".join(json.dumps(row) + "\n" for row in in_order))
    return in_order


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What judgements say of the first name against the second, clustered by prompt.

    Keys: `win_rate` of the first, ties half, NaN where all comparisons are of identical responses; `consistency`, the
    share of comparisons that were asked in which both orders agree; `first_shown`, the share of votes with a winner
    that name the reply shown first; `words`, how much longer the first's replies are; counts of comparisons, prompts,
    identical replies, and of unscored votes by reason.
    """
    prompts = np.array([row["prompt_id"] for row in rows])
    score_N = np.array([math.nan if row["score"] is None else row["score"] for row in rows], dtype=np.float64)
    words_N = np.array([len(row["first"].split()) - len(row["second"].split()) for row in rows], dtype=np.float64)
    asked = [row for row in rows if not is_identical(row)]
    agree_N = [float(row["votes"][0]["winner"] == row["votes"][1]["winner"]) for row in asked if row["winner"]]
    agree_prompts = [row["prompt_id"] for row in asked if row["winner"]]
    decided = [
        (float(vote["winner"] == vote["shown"]), row["prompt_id"])
        for row in asked
        for vote in row["votes"]
        if vote["winner"] in ("first", "second")
    ]
    reasons = Counter(vote["unscored"] for row in rows for vote in row["votes"])
    return {
        # Sides that wrote the same everywhere did not draw: nothing was compared.
        "win_rate": share(score_N if asked else np.full(len(rows), math.nan), prompts),
        "consistency": clustered_rate(agree_N, agree_prompts),
        "first_shown": clustered_rate([value for value, _ in decided], [prompt for _, prompt in decided]),
        "words": clustered_mean(words_N, prompts),
        "comparisons": len(rows),
        "prompts": len(set(prompts.tolist())),
        "identical": len(rows) - len(asked),
        "unscored": sum(row["score"] is None for row in rows),
        **{f"unscored/{reason}": reasons[reason] for reason in REASONS},
    }


def is_identical(row: Mapping[str, Any]) -> bool:
    """Whether a row of judgements.jsonl is of two replies with the same text, about which nobody was asked."""
    return all(vote["reason"] == IDENTICAL for vote in row["votes"])


def share(score_N: FloatArray, prompts: np.ndarray) -> Estimate:
    """Mean of scores 0…1 with an interval within 0…1; scores that are all equal do not make it certain."""
    scored_N = score_N[~np.isnan(score_N)]
    all_equal = np.unique(scored_N).size == 1
    # The difference of a win and a loss has twice the spread of the score.
    least_sd_N = least_sd_of_outcomes(score_N, 1 - score_N) / 2 if all_equal else None
    mean = clustered_mean(score_N, prompts, least_sd_N=least_sd_N)
    low, high = max(0.0, mean.low), min(1.0, mean.high)
    return Estimate(mean.mean, low, high, mean.n, mean.clusters, mean.level, mean.unscored)


def summarise_grades(rows: Sequence[Mapping[str, Any]], rubric: JudgeRubric) -> dict[str, Any]:
    """Means of the grades, clustered by prompt, and counts of replies, prompts and unscored replies by reason."""
    prompts = np.array([row["prompt_id"] for row in rows])
    reasons = Counter(row["unscored"] for row in rows)
    means = {}
    for name in rubric.names:
        values = [math.nan if row[name] is None else row[name] for row in rows]
        means[f"grade/{name}"] = clustered_mean(values, prompts)
    return {
        **means,
        "replies": len(rows),
        "prompts": len(set(prompts.tolist())),
        "unscored": sum(reasons[reason] for reason in REASONS),
        **{f"unscored/{reason}": reasons[reason] for reason in REASONS},
    }
