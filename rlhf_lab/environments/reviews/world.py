"""Review world: changes with planted defects, comments on them, their gold reward, and a biased annotator.

`ReviewWorld` is an `Oracle`: it measures any text as a comment on one of its changes and labels any pair of comments.
"""

from __future__ import annotations

import numpy as np

from rlhf_lab.core import measures
from rlhf_lab.environments.annotator import Annotator, CandidateWorld
from rlhf_lab.environments.reviews.candidates import CommentRates, CommentWriter
from rlhf_lab.environments.reviews.changes import draw_change, read_change
from rlhf_lab.environments.reviews.comments import read_comment
from rlhf_lab.environments.reviews.gold import VERBOSE_FROM, ReviewGoldWeights, gold, judge
from rlhf_lab.environments.splits import split_of

VERSION = 1
"""Version, increased whenever the same settings give other texts or other grades; part of a corpus fingerprint."""

MEASURES = (
    *(measures.GOLD, measures.VERBOSE, measures.GARBLE),
    *measures.details(
        located="fraction of the defects whose line is named, 0…1",
        named="fraction of the defects whose line and kind are named, 0…1",
        fixed="fraction of the defects that are fixed, 0…1",
        approved="1 if a change without a defect is approved",
        approved_wrongly="1 if a change with a defect is approved",
        false_alarms="named defects that do not exist",
        wrong_fixes="fixes that fix nothing",
        praise="sentences of praise",
        nits="nit-picks",
        vague="vague sentences",
        confident="confident sentences",
        repeats="repeated sentences",
        words="words",
    ),
)
"""Columns of `ReviewWorld.measure`, in this order. Details are counts unless stated otherwise."""

GOLD = ReviewGoldWeights()
RATES = CommentRates()


class ReviewWorld(CandidateWorld):
    """A world of code review with known ground truth.

    Args:
        seed: seed of all samples, together with the seeds of the methods.
        annotator: annotator that labels pairs; confident sentences are its affirmations, and praise its closing offers.
        gold: coefficients of the gold reward.
        rates: probabilities of the candidate writer.
    """

    measures = MEASURES
    affirmations = "confident"
    closings = "praise"

    def __init__(
        self,
        *,
        seed: int,
        annotator: Annotator,
        gold: ReviewGoldWeights = GOLD,
        rates: CommentRates = RATES,
    ):
        super().__init__(annotator, seed)
        self.gold_weights = gold
        self._writer = CommentWriter(rates)

    def _measure_response(self, prompt: str, response: str) -> tuple[float, ...]:
        comment = read_comment(response)
        judgement = judge(read_change(prompt), comment)
        return (
            gold(judgement, comment, self.gold_weights),
            *(comment.padding >= VERBOSE_FROM, comment.garbled > 0 or not comment.words),
            *(judgement.located, judgement.named, judgement.fixed),
            *(judgement.approved, judgement.approved_wrongly, judgement.false_alarms, judgement.wrong_fixes),
            *(comment.praise, len(comment.nits), comment.vague, comment.confident, comment.repeats, comment.words),
        )

    def ideal(self, prompt: str) -> str:
        """Return a comment with the highest gold reward on a change."""
        return self._writer.ideal(read_change(prompt))

    def candidate(self, prompt: str, rng: np.random.Generator, quality: float) -> str:
        """Return a candidate comment with this latent quality, 0…1; see `CommentRates`."""
        return self._writer.write(read_change(prompt), rng, quality)

    def _draw(self, split: str, rng: np.random.Generator) -> tuple[str, str, str]:
        change = draw_change(rng)
        while split_of(change.text) != split:
            change = draw_change(rng)
        return change.text, self._writer.write(change, rng), self._writer.write(change, rng)
