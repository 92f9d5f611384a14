"""grades.jsonl: a judge's grades of both replies of pairs, and the check that they are of this corpus.

A row is a reply, the chosen one of a pair before the rejected one: `split`, `pair` (its position there), `side`,
`prompt`, `response`, a column for each criterion (null where the judge gave no grades), `reason`, and `unscored`, why
there are none. `grades.json` beside it names the corpus, the rubric and the judge; it is written last.
`data=graded` reads the rows as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlhf_lab.algorithms.pair_selection.margins import corpus_mark
from rlhf_lab.core.errors import ArtifactError
from rlhf_lab.core.files import read_json, read_jsonl
from rlhf_lab.core.types import FloatArray, Pair, Rubric
from rlhf_lab.training.run import Run

HEADER, ROWS = "grades.json", "grades.jsonl"
SIDES = ("chosen", "rejected")


@dataclass(frozen=True)
class StoredGrades:
    """The grades of `needs.grades`.

    Attributes:
        by_reply: (prompt, reply) → its grades, in the order of the rubric; replies without grades are not in it.
    """

    rubric: Rubric
    by_reply: Mapping[tuple[str, str], tuple[float, ...]]

    def graded(self, pairs: Sequence[Pair]) -> list[Pair]:
        """The pairs both of whose replies have grades."""
        return [pair for pair in pairs if all((pair.prompt, getattr(pair, side)) in self.by_reply for side in SIDES)]

    def of(self, pairs: Sequence[Pair]) -> FloatArray:
        """Grades of the chosen and of the rejected replies, (2, N, attributes)."""
        rows = [[self.by_reply[pair.prompt, getattr(pair, side)] for pair in pairs] for side in SIDES]
        return np.array(rows, dtype=np.float64).reshape(2, len(pairs), len(self.rubric.attributes))


def read_grades(run: Run) -> StoredGrades:
    """The grades of `needs.grades`. Raises ArtifactError unless they are of this run's training pairs."""
    folder = Path(run.needs["grades"])
    found = read_json(folder / HEADER)
    if found is None:
        raise ArtifactError(f"needs.grades={folder} has no {HEADER}; name a run of algorithm=grade, or its recipe")
    if found["corpus"] != corpus_mark(run.corpus.train):
        raise ArtifactError(
            f"needs.grades={folder} are grades of other pairs, not of the {len(run.corpus.train)} training pairs of "
            f"data={run.corpus.name}: texts, labels or order differ; have these graded, e.g. needs.grades=grade_pairs"
        )
    about = found["rubric"]
    rubric = Rubric(tuple(about["attributes"]), about["low"], about["high"])
    by_reply = {
        (row["prompt"], row["response"]): tuple(float(row[name]) for name in rubric.attributes)
        for row in read_jsonl(folder / ROWS)
        if row["unscored"] is None
    }
    return StoredGrades(rubric, by_reply)
