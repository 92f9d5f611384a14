"""Curates preference pairs: usable replies, no duplicates, no evaluation items, and a reason for every other row."""

from __future__ import annotations

from typing import Any

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.types import Pair
from rlhf_lab.data.contamination import EvaluationItems, read_items
from rlhf_lab.data.made import TRUTH
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
Row = dict[str, Any]


class Curation:
    """Judges the rows in the order of the data."""

    def __init__(self, settings: Curate, run: Run):
        self.settings, self.run = settings, run
        items = evaluation_items(settings, run)
        self.items = EvaluationItems(items, share=settings.share or 1.0, n=settings.n)

    def finish(self) -> Result:
        rows = [self._row(number, pair) for number, pair in enumerate(self.run.corpus.train)]
        reject_duplicates(rows, ("chosen", "rejected"), self.settings.max_overlap)
        kept, rejected = write_corpus(self.run, "pairs", rows, {"evaluation_items": len(self.items)})
        if not kept:
            raise DataError("no row of the data is left; look at rejected.jsonl, and relax what rejects most")
        metrics = {**count_rows(rows, kept, rejected), "made/evaluation_items": len(self.items)}
        return Result(metrics=metrics, primary=["made/rows", "made/acceptance"])

    def _row(self, number: int, pair: Pair) -> Row:
        row: Row = {"prompt": pair.prompt, "chosen": pair.chosen, "rejected": pair.rejected}
        row |= {"source": str(pair.meta.get("source", f"row {number + 1}")), "problem": self._problem(pair)}
        truth = {name: pair.meta[name] for name in TRUTH if name in pair.meta}
        if row["problem"] is None:
            match = self.items.find_in(pair)
            if match is not None:
                row |= {"problem": CONTAMINATED, "item": match.item, "share": round(match.share, 3)}
        return {**row, **truth}

    def _problem(self, pair: Pair) -> str | None:
        """Why the replies are of no use by themselves."""
        length = len(pair.chosen.split())
        if not length or not pair.rejected.strip():
            return EMPTY
        if pair.chosen == pair.rejected:
            return IDENTICAL
        if length < self.settings.min_words:
            return TOO_SHORT
        return TOO_LONG if length > self.settings.max_words else None


def evaluation_items(settings: Curate, run: Run) -> list[str]:
    """The prompts that no training row may hold."""
    items: list[str] = []
    if "held_out" in settings.against:
        items += run.corpus.prompts("test")
    if "safety" in settings.against:
        asked = safety_set(Safety(), run.corpus, ALL)
        items += [prompt.prompt for prompt in (*asked.harmful, *asked.safe)]
    files = list(settings.files)
    if settings.suite:
        files += [golden.path for golden in read_suite(settings.suite).golden.values() if golden.path]
    for file in files:
        items += read_items(file)
    return items


def build(settings: Curate, run: Run) -> Curation:
    return Curation(settings, run)
