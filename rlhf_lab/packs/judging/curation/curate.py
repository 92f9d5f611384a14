"""Curation of preference pairs: usable responses, no duplicates, no evaluation items, a reason for each other row."""

from __future__ import annotations

from typing import Any

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.types import Pair
from rlhf_lab.data.duplicates import EvaluationItems, read_items
from rlhf_lab.data.generated import TRUTH
from rlhf_lab.evaluations.suite.suite_file import read_suite
from rlhf_lab.packs.judging.curation.settings import Curate
from rlhf_lab.packs.judging.safety.prompt_sets import safety_set
from rlhf_lab.packs.judging.safety.settings import Safety
from rlhf_lab.packs.judging.synthesis.making import EMPTY, IDENTICAL, TOO_LONG, reject_duplicates, write_corpus
from rlhf_lab.packs.judging.synthesis.making import counts as count_rows
from rlhf_lab.training.run import Result, Run

CONTAMINATED = "holds an evaluation item"
TOO_SHORT = "too short"
ALL = 10**9
"""Limit on the number of safety prompts that is never reached, so that all of them are included."""
Row = dict[str, Any]


class Curation:
    """Curation of the training rows, in the order of the data."""

    def __init__(self, settings: Curate, run: Run):
        self.settings = settings
        self.run = run
        self.items = EvaluationItems(evaluation_items(settings, run), share=settings.share or 1.0, n=settings.n)

    def finish(self) -> Result:
        rows = [self._row(index, pair) for index, pair in enumerate(self.run.corpus.train)]
        reject_duplicates(rows, ("chosen", "rejected"), self.settings.max_overlap)
        kept, rejected = write_corpus(self.run, "pairs", rows, {"evaluation_items": len(self.items)})
        if not kept:
            raise DataError(
                "no row of the data is left; see the reasons in rejected.jsonl, and relax the frequent ones"
            )
        metrics = {**count_rows(rows, kept, rejected), "made/evaluation_items": len(self.items)}
        return Result(metrics=metrics, primary=["made/rows", "made/acceptance"])

    def _row(self, number: int, pair: Pair) -> Row:
        source = str(pair.meta.get("source", f"row {number + 1}"))
        texts = {"prompt": pair.prompt, "chosen": pair.chosen, "rejected": pair.rejected}
        row: Row = {**texts, "source": source, "problem": self._problem(pair)}
        truth = {name: pair.meta[name] for name in TRUTH if name in pair.meta}
        # only the first reason counts, so a row that is rejected already is not searched
        if row["problem"] is None:
            match = self.items.find_in(pair)
            if match is not None:
                row |= {"problem": CONTAMINATED, "item": match.item, "share": round(match.share, 3)}
        return {**row, **truth}

    def _problem(self, pair: Pair) -> str | None:
        # the length limits apply to the chosen response, which is what a model learns to write
        length = len(pair.chosen.split())
        if not length or not pair.rejected.strip():
            return EMPTY
        if pair.chosen == pair.rejected:
            return IDENTICAL
        if length < self.settings.min_words:
            return TOO_SHORT
        return TOO_LONG if length > self.settings.max_words else None


def evaluation_items(settings: Curate, run: Run) -> list[str]:
    """Return the prompts that no training row may contain."""
    items: list[str] = []
    if "held_out" in settings.against:
        items += run.corpus.prompts("test")
    # safe prompts count too: over-refusal is measured on them
    if "safety" in settings.against:
        requested = safety_set(Safety(), run.corpus, ALL)
        items += [prompt.prompt for prompt in (*requested.harmful, *requested.safe)]
    files = list(settings.files)
    if settings.suite:
        files += [golden.path for golden in read_suite(settings.suite).golden.values() if golden.path]
    for file in files:
        items += read_items(file)
    return items


def build(settings: Curate, run: Run) -> Curation:
    return Curation(settings, run)
