"""grades.jsonl: a judge's grades of both responses of pairs, and the check that they belong to this corpus.

A row is a response; the chosen one of a pair precedes the rejected one. Columns: `split`, `pair` (its position in the
split), `side`, `prompt`, `response`, one column per criterion (null if the judge gave no grades), `reason`, and
`unscored`, why there are no grades. The header `grades.json` in the same directory names the corpus, the rubric and the
judge. It is written last. `data=graded` reads the rows directly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlhf_lab.algorithms.pair_selection.selection import corpus_mark
from rlhf_lab.core.errors import ArtifactError
from rlhf_lab.core.files import read_json, read_jsonl
from rlhf_lab.core.types import FloatArray, Pair, Rubric
from rlhf_lab.training.run import Run

HEADER, ROWS = "grades.json", "grades.jsonl"
SIDES = ("chosen", "rejected")


@dataclass(frozen=True)
class StoredGrades:
    """Grades of `needs.grades`.

    Attributes:
        rubric: rubric of the grades.
        by_response: (prompt, response) → its grades, in the order of the rubric. Responses without grades are missing.
    """

    rubric: Rubric
    by_response: Mapping[tuple[str, str], tuple[float, ...]]

    def graded(self, pairs: Sequence[Pair]) -> list[Pair]:
        """Return the pairs whose responses both have grades."""
        return [p for p in pairs if all((p.prompt, getattr(p, side)) in self.by_response for side in SIDES)]

    def of(self, pairs: Sequence[Pair]) -> FloatArray:
        """Return the grades of the chosen and of the rejected responses, (2, N, attributes)."""
        rows = [[self.by_response[pair.prompt, getattr(pair, side)] for pair in pairs] for side in SIDES]
        return np.array(rows, dtype=np.float64).reshape(2, len(pairs), len(self.rubric.attributes))


def read_grades(run: Run) -> StoredGrades:
    """Read the grades of `needs.grades`. Raise ArtifactError if they are not those of this run's training pairs."""
    directory = Path(run.needs["grades"])
    found = read_json(directory / HEADER)
    if found is None:
        raise ArtifactError(f"needs.grades={directory} has no {HEADER}; name a run of algorithm=grade, or its recipe")
    if found["corpus"] != corpus_mark(run.corpus.train):
        raise ArtifactError(
            f"needs.grades={directory} has grades of other pairs, not of the {len(run.corpus.train)} training pairs of "
            f"data={run.corpus.name}: texts, labels or order differ; grade these pairs, e.g. needs.grades=grade_pairs"
        )
    rubric = Rubric(tuple(found["rubric"]["attributes"]), found["rubric"]["low"], found["rubric"]["high"])
    # Rows without grades (refused, truncated, invalid) are omitted.
    by_response = {
        (row["prompt"], row["response"]): tuple(float(row[name]) for name in rubric.attributes)
        for row in read_jsonl(directory / ROWS)
        if row["unscored"] is None
    }
    return StoredGrades(rubric, by_response)
