"""The judge as a source of comparisons for audited training (`reward.audit.labels_from=judge`)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlhf_lab.core import ranks
from rlhf_lab.core.episodes import Episode
from rlhf_lab.core.types import Comparer, FloatArray
from rlhf_lab.packs.judging.judges.context import judge_of
from rlhf_lab.packs.judging.judges.pairwise import Candidates, judge_pairs
from rlhf_lab.training.run import Run

TITLE = "audit"


def by_judge(run: Run) -> Comparer:
    """Return a comparer that asks the judge of the run (`judge=…`) in both orders, two requests per comparison.

    A comparison is unanswered if the answer in one of the orders is a refusal, truncated or unreadable.
    """
    judge = judge_of(run)

    def ask(pairs: Sequence[Candidates]) -> list[float]:
        judgements = judge_pairs(judge, pairs, title=TITLE)
        return [math.nan if judgement.score is None else judgement.score for judgement in judgements]

    def compare(first: Sequence[Episode], second: Sequence[Episode]) -> FloatArray:
        pairs = [Candidates(a.prompt, a.response, b.response) for a, b in zip(first, second, strict=True)]
        # one process sends the requests, because each would be paid for
        return np.array(ranks.on_main(lambda: ask(pairs)), dtype=np.float64)

    return compare
