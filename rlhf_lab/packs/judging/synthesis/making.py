"""Common parts of the stages that generate data: selection of prompts, resumable work, screening, writing.

Every item becomes either a row of the corpus or a rejected row with a reason. Items are processed in chunks. Finished
chunks are appended to `work.jsonl`, so an interrupted stage resumes after the last complete chunk. Answers of a service
for an interrupted chunk are in the judge's store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.files import append_jsonl, read_rows, truncate
from rlhf_lab.core.progress import progress
from rlhf_lab.core.types import FloatArray
from rlhf_lab.data.duplicates import NearDuplicates
from rlhf_lab.data.generated import read_generated, rejections, write_generated
from rlhf_lab.statistics.estimates import Estimate
from rlhf_lab.statistics.inference import clustered_mean, clustered_rate
from rlhf_lab.training.run import Run

WORK = "work.jsonl"
CHUNK = 256
"""Number of items processed together."""

CONTAMINATED = "near a held-out prompt"
IDENTICAL = "identical replies"
EMPTY = "empty"
TOO_LONG = "too long"
DUPLICATE = "duplicate"
NEAR_DUPLICATE = "near-duplicate"

Row = dict[str, Any]


@dataclass(frozen=True)
class SynthesisItem:
    """A prompt to process.

    Attributes:
        draw: number of times that the prompt was selected before.
    """

    prompt: str
    draw: int


def draw_items(run: Run, count: int) -> list[SynthesisItem]:
    """Return `count` prompts of `needs.prompts`, or of the training data, in random order.

    Each pass contains every prompt once before any prompt is repeated. A smaller selection is the beginning of a larger
    one.
    """
    # prompts of an earlier stage have precedence over those of the data
    if "prompts" in run.needs:
        generated = read_generated(Path(run.needs["prompts"]), "prompts")
        prompts = list(dict.fromkeys(pair.prompt for pair in generated))
    else:
        prompts = run.corpus.prompts("train")
    if not prompts:
        raise DataError("there is no prompt to process: needs.prompts is an empty corpus; name another one")
    items: list[SynthesisItem] = []
    # ceiling division: as many passes over the prompts as needed, each in another order
    for draw in range(-(-count // len(prompts))):
        order = np.random.default_rng(run.seed("synthesis/prompts", draw)).permutation(len(prompts))
        items += [SynthesisItem(prompts[i], draw) for i in order]
    return items[:count]


class Contamination:
    """Predicate of prompts that are equal or nearly equal to held-out prompts."""

    def __init__(self, run: Run, limit: float):
        self._held_out = NearDuplicates(limit, run.corpus.prompts("test"))
        self._found: dict[str, bool] = {}

    def __call__(self, prompt: str) -> bool:
        # a search compares with all held-out prompts, so results are cached
        if prompt not in self._found:
            self._found[prompt] = self._held_out.find(prompt) is not None
        return self._found[prompt]


def draw_tasks(run: Run, prompts: Sequence[str], count: int, purpose: str) -> list[SynthesisItem]:
    """Return at most `count` tasks by prompt, each once, in random order. If there are fewer, a note is added.

    The random order depends on `purpose` and on the run's seed.
    """
    order = np.random.default_rng(run.seed(purpose)).permutation(len(prompts))
    if len(prompts) < count:
        run.note(f"only {len(prompts)} tasks are attempted, because there are no more; algorithm.prompts={count}")
    return [SynthesisItem(prompts[i], 0) for i in order[:count]]


def length_problem(text: str, max_words: int) -> str | None:
    """Return why a text is unusable because of its length, or None."""
    count = len(text.split())
    return EMPTY if not count else TOO_LONG if count > max_words else None


def make_all(
    run: Run,
    items: Sequence[SynthesisItem],
    settle: Callable[[int, Sequence[SynthesisItem]], Sequence[Row]],
    title: str,
    *,
    size: int = CHUNK,
) -> list[Row]:
    """Return the row of each item, in order. Chunks finished by an earlier attempt are read from disk.

    `settle` takes the index of a chunk and its items, and returns one row per item.
    """
    path = run.directory / WORK
    rows, ends = read_rows(path)
    truncate(path, ends[-1] if ends else 0)  # drop a last line that a killed process left incomplete
    settled = {row["item"]: row for row in rows}
    with progress(title, len(items), len(settled)) as ticker:
        for start in range(0, len(items), size):
            positions = range(start, min(start + size, len(items)))
            # chunks are processed as units, because the index of a chunk seeds its random draws
            if all(position in settled for position in positions):
                continue
            chunk = settle(start // size, [items[position] for position in positions])
            generated = [{"item": position, **row} for position, row in zip(positions, chunk, strict=True)]
            append_jsonl(path, generated)
            settled |= {row["item"]: row for row in generated}
            ticker.advance(len(generated))
    return [settled[position] for position in range(len(items))]


def reject_duplicates(rows: Sequence[Row], response_columns: Sequence[str], limit: float) -> None:
    """Reject rows whose responses are nearly the same as those of an earlier row of the same prompt.

    Every row has `problem`: the reason why it is rejected, or None.
    """
    earlier: dict[str, NearDuplicates] = {}
    for row in rows:
        if row["problem"]:
            continue
        text = "\n".join(row[column] for column in response_columns)
        known = earlier.setdefault(row["prompt"], NearDuplicates(limit))
        duplicate = known.find(text)
        if duplicate is None:
            known.add(text)
        else:
            row["problem"] = DUPLICATE if duplicate == text else NEAR_DUPLICATE


def write_corpus(run: Run, kind: str, rows: Sequence[Row], about: Row) -> tuple[list[Row], list[Row]]:
    """Write the corpus of the rows without a problem. Return (rows of the corpus, rejected rows)."""
    accepted = [row for row in rows if not row["problem"]]
    kept = [{name: value for name, value in row.items() if name != "problem"} for row in accepted]
    rejected = [row for row in rows if row["problem"]]
    upstream = {role: run.config.needs[role] for role in run.needs}
    about = {"data": run.corpus.fingerprint, "upstream": upstream, **about}
    write_generated(run.directory, kind, kept, rejected, about)
    (run.directory / WORK).unlink(missing_ok=True)  # every item is now in one of the two files
    return kept, rejected


def counts(rows: Sequence[Row], kept: Sequence[Row], rejected: Sequence[Row]) -> Row:
    """Return the number of items and of their outcomes, see metrics.py."""
    accepted_N = [float(not row["problem"]) for row in rows]
    return {
        "made/items": len(rows),
        "made/rows": len(kept),
        "made/prompts": len({row["prompt"] for row in kept}),
        "made/acceptance": clustered_rate(accepted_N, [row["prompt"] for row in rows]),
        **rejections(rejected),
    }


def mean_over_prompts(values: Sequence[float] | FloatArray, rows: Sequence[Row]) -> Estimate:
    """Return the mean of a value over rows, with an interval clustered by prompt."""
    return clustered_mean(values, [row["prompt"] for row in rows])


def gold_of(run: Run, prompts: Sequence[str], responses: Sequence[str]) -> FloatArray | None:
    """Return the true reward of responses, (N,); None if the world does not know it."""
    if not prompts:
        return None
    try:
        gold = run.corpus.measure(run.corpus.episodes(prompts, responses)).get("gold")
    except DataError:  # newly written prompts, which the world does not know
        run.note("the world does not know these prompts, so the true reward of their responses is not measured")
        return None
    return None if gold is None else np.asarray(gold, dtype=np.float64)
