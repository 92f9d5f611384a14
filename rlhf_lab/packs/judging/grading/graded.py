"""Rows of grades.jsonl, which `algorithms/reward_models/grades.py` reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_lab.algorithms.pair_selection.selection import corpus_mark
from rlhf_lab.algorithms.reward_models.grades import SIDES
from rlhf_lab.core.types import Pair
from rlhf_lab.packs.judging.judges.rubric import Grades, JudgeRubric


@dataclass(frozen=True)
class GradedResponse:
    """A response to grade, with its position in the corpus."""

    split: str
    pair: int
    side: str
    prompt: str
    response: str

    def row(self, rubric: JudgeRubric, grades: Grades) -> dict[str, Any]:
        """Return the response and its grades as a row of grades.jsonl."""
        # JSON has no NaN
        values = [None if grades.unscored else value for value in grades.values]
        columns = dict(zip(rubric.names, values, strict=True))
        return {
            **vars(self),
            **columns,
            "reason": grades.reason,
            "unscored": grades.unscored,
        }


def responses_of(
    split: str,
    pairs: Sequence[Pair],
    positions: Sequence[int],
) -> Iterator[GradedResponse]:
    """Yield both responses of some pairs of a split, in the order of the rows."""
    for position in positions:
        pair = pairs[position]
        for side in SIDES:
            yield GradedResponse(
                split,
                position,
                side,
                pair.prompt,
                getattr(pair, side),
            )


def header(pairs: Sequence[Pair], rubric: JudgeRubric, judge: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of grades.json.

    Args:
        pairs: all training pairs of the corpus, graded or not.
    """
    about_rubric = {
        "name": rubric.name,
        "attributes": rubric.names,
        "low": rubric.low,
        "high": rubric.high,
    }
    return {"corpus": corpus_mark(pairs), "rubric": about_rubric, "judge": dict(judge)}
