"""What stages that make data share: which prompts, what is settled so far, what is rejected, what is written.

Every item ends as a row of the corpus or as a rejected one with a reason. Items are settled in chunks and kept in
`work.jsonl` as they are made, so that a stage that was interrupted goes on behind the last whole chunk; of a chunk that
was interrupted, a service's answers are in the judge's store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_lab.core.console import progress
from rlhf_lab.core.errors import DataError
from rlhf_lab.core.files import append_jsonl, read_rows, truncate
from rlhf_lab.core.types import FloatArray
from rlhf_lab.data.duplicates import NearDuplicates
from rlhf_lab.data.made import read_made, write_made
from rlhf_lab.statistics.estimates import Estimate
from rlhf_lab.statistics.inference import clustered_mean, clustered_rate
from rlhf_lab.training.run import Run

WORK = "work.jsonl"
CHUNK = 256
"""Items that are settled together."""

CONTAMINATED = "near a held-out prompt"
IDENTICAL = "identical replies"
EMPTY = "empty"
TOO_LONG = "too long"
DUPLICATE = "duplicate"
NEAR_DUPLICATE = "near-duplicate"

Row = dict[str, Any]


@dataclass(frozen=True)
class Item:
    """A prompt to work on.

    Attributes:
        draw: how often the prompt was taken before.
    """

    prompt: str
    draw: int


def draw_items(run: Run, count: int) -> list[Item]:
    """`count` prompts of `needs.prompts`, or of the training data, in random order; every one before any comes again.

    A smaller draw is the beginning of a larger one.
    """
    if "prompts" in run.needs:
        made = read_made(Path(run.needs["prompts"]), "prompts")
        prompts = list(dict.fromkeys(pair.prompt for pair in made))
    else:
        prompts = run.corpus.prompts("train")
    if not prompts:
        raise DataError("there is no prompt to work on; needs.prompts is an empty corpus")
    items: list[Item] = []
    for draw in range(-(-count // len(prompts))):
        order = np.random.default_rng(run.seed("synthesis/prompts", draw)).permutation(len(prompts))
        items += [Item(prompts[i], draw) for i in order]
    return items[:count]


class Contamination:
    """Finds prompts that are, or nearly are, prompts of the held-out split."""

    def __init__(self, run: Run, limit: float):
        self._held_out = NearDuplicates(limit, run.corpus.prompts("test"))
        self._found: dict[str, bool] = {}

    def __call__(self, prompt: str) -> bool:
        if prompt not in self._found:
            self._found[prompt] = self._held_out.find(prompt) is not None
        return self._found[prompt]


def draw_tasks(run: Run, prompts: Sequence[str], count: int, purpose: str) -> list[Item]:
    """At most `count` tasks by prompt, each once, in random order; a note says where there are fewer.

    Args:
        purpose: of the random order, which follows from it and the run's seed.
    """
    order = np.random.default_rng(run.seed(purpose)).permutation(len(prompts))
    if len(prompts) < count:
        run.note(f"{len(prompts)} tasks are attempted, all there are, and not algorithm.prompts={count}")
    return [Item(prompts[i], 0) for i in order[:count]]


def length_problem(text: str, max_words: int) -> str | None:
    """Why a text cannot be a reply or a prompt by its length; None where it can."""
    count = len(text.split())
    if not count:
        return EMPTY
    return TOO_LONG if count > max_words else None


def settle_all(
    run: Run,
    items: Sequence[Item],
    settle: Callable[[int, Sequence[Item]], Sequence[Row]],
    title: str,
    *,
    size: int = CHUNK,
) -> list[Row]:
    """What became of each item, in order. Chunks that an earlier attempt settled are read and not made again.

    Args:
        settle: (number of the chunk, its items) → a row for each.
        size: items of a chunk.
    """
    path = run.folder / WORK
    rows, ends = read_rows(path)
    truncate(path, ends[-1] if ends else 0)
    settled = {row["item"]: row for row in rows}
    with progress(title, len(items), len(settled)) as ticker:
        for begin in range(0, len(items), size):
            places = range(begin, min(begin + size, len(items)))
            if all(place in settled for place in places):
                continue
            chunk = settle(begin // size, [items[place] for place in places])
            made = [{"item": place, **row} for place, row in zip(places, chunk, strict=True)]
            append_jsonl(path, made)
            settled |= {row["item"]: row for row in made}
            ticker.advance(len(made))
    return [settled[place] for place in range(len(items))]


def reject_duplicates(rows: Sequence[Row], reply_columns: Sequence[str], limit: float) -> None:
    """Reject rows whose replies say nearly the same as those of an earlier row of the same prompt.

    Every row has `problem`: why it is no row of the corpus, or None.
    """
    earlier: dict[str, NearDuplicates] = {}
    for row in rows:
        if row["problem"]:
            continue
        text = "\n".join(row[column] for column in reply_columns)
        known = earlier.setdefault(row["prompt"], NearDuplicates(limit))
        duplicate = known.find(text)
        if duplicate is None:
            known.add(text)
        else:
            row["problem"] = DUPLICATE if duplicate == text else NEAR_DUPLICATE


def write_corpus(run: Run, kind: str, rows: Sequence[Row], about: Row) -> tuple[list[Row], list[Row]]:
    """Write the corpus of rows that are not rejected. Returns (rows of the corpus, rejected rows)."""
    kept = [{name: value for name, value in row.items() if name != "problem"} for row in rows if not row["problem"]]
    rejected = [row for row in rows if row["problem"]]
    upstream = {role: run.config.needs[role] for role in run.needs}
    about = {"data": run.corpus.fingerprint, "upstream": upstream, **about}
    write_made(run.folder, kind, kept, rejected, about)
    (run.folder / WORK).unlink(missing_ok=True)  # every item is in one of the two files now
    return kept, rejected


def counts(rows: Sequence[Row], kept: Sequence[Row], rejected: Sequence[Row]) -> Row:
    """How many items there were and what became of them, see metrics.py."""
    clusters = cluster([row["prompt"] for row in rows])
    by_reason: dict[str, int] = {}
    for row in rejected:
        name = f"made/rejected/{row['problem']}"
        by_reason[name] = by_reason.get(name, 0) + 1
    return {
        "made/items": len(rows),
        "made/rows": len(kept),
        "made/prompts": len({row["prompt"] for row in kept}),
        "made/acceptance": clustered_rate(np.array([not row["problem"] for row in rows], dtype=float), clusters),
        **by_reason,
    }


def cluster(prompts: Sequence[str]) -> np.ndarray:
    """A number per row, the same for rows of one prompt."""
    return np.unique(np.array(prompts, dtype=object).astype(str), return_inverse=True)[1]


def mean_over_prompts(values: Sequence[float] | FloatArray, rows: Sequence[Row]) -> Estimate:
    """The mean of a value of each row, with an interval clustered by prompt."""
    return clustered_mean(np.asarray(values, dtype=np.float64), cluster([row["prompt"] for row in rows]))


def gold_of(run: Run, prompts: Sequence[str], replies: Sequence[str]) -> FloatArray | None:
    """The true reward of replies, (N,); None where the world does not know it."""
    try:
        gold = run.corpus.measure(run.corpus.episodes(prompts, replies)).get("gold") if prompts else None
    except DataError:  # prompts that were written for the occasion
        run.note("the world does not know these prompts, so the true reward of their replies is not measured")
        return None
    return None if gold is None else np.asarray(gold, dtype=np.float64)
