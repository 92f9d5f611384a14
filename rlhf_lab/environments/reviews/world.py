"""Review world: changes with planted defects, comments on them, their gold reward, and a biased annotator.

`ReviewWorld` is an `Oracle`: it measures any text as a comment on one of its changes and labels any pair of comments.
Suggested order of reading: changes.py, comments.py, gold.py, ../annotator.py, candidates.py, this file.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlhf_lab.core import measures
from rlhf_lab.core.errors import DataError
from rlhf_lab.core.types import BoolArray, FloatArray, LoadReport, Pair
from rlhf_lab.environments.annotator import Annotator, distinct_candidates, labelled_pairs, measure_rows
from rlhf_lab.environments.reviews.candidates import CommentRates, CommentWriter
from rlhf_lab.environments.reviews.changes import Change, draw_change, read_change
from rlhf_lab.environments.reviews.comments import read_comment
from rlhf_lab.environments.reviews.gold import VERBOSE_FROM, ReviewGoldWeights, gold, judge
from rlhf_lab.environments.splits import SPLITS, split_of
from rlhf_lab.environments.streams import random_stream

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


class ReviewWorld:
    """A world of code review with known ground truth.

    Args:
        seed: seed of all samples, together with the seeds of the methods.
        length_bias: length bias of the annotator; see `Annotator`.
        affirmation_bias: the annotator's bias towards confident sentences, which are its affirmations.
        closing_bias: the annotator's bias towards praise, which are its closing offers.
        temperature: noise of the annotator.
        gold: coefficients of the gold reward.
        rates: probabilities of the candidate writer.
    """

    measures = MEASURES

    def __init__(
        self,
        *,
        seed: int,
        length_bias: float,
        affirmation_bias: float,
        closing_bias: float,
        temperature: float,
        gold: ReviewGoldWeights = GOLD,
        rates: CommentRates = RATES,
    ):
        self.annotator = Annotator(length_bias, affirmation_bias, closing_bias, temperature)
        self.gold_weights = gold
        self._writer = CommentWriter(rates)
        self._seed = seed

    def measure(self, prompts: Sequence[str], responses: Sequence[str]) -> dict[str, FloatArray]:
        """Return all `MEASURES` of comments, each (N,) float64. Raise DataError for an unknown prompt."""
        return measure_rows(MEASURES, self._measure_comment, prompts, responses)

    def _measure_comment(self, prompt: str, response: str) -> tuple[float, ...]:
        """Return the values of `MEASURES` for one comment, in their order."""
        comment = read_comment(response)
        judgement = judge(read_change(prompt), comment)
        return (
            gold(judgement, comment, self.gold_weights),
            # an empty comment counts as garbled
            *(comment.padding >= VERBOSE_FROM, comment.garbled > 0 or not comment.words),
            *(judgement.located, judgement.named, judgement.fixed),
            *(judgement.approved, judgement.approved_wrongly, judgement.false_alarms, judgement.wrong_fixes),
            *(comment.praise, len(comment.nits), comment.vague, comment.confident, comment.repeats, comment.words),
        )

    def prefer(
        self, prompts: Sequence[str], first: Sequence[str], second: Sequence[str], *, seed: int
    ) -> tuple[BoolArray, FloatArray]:
        """Label pairs: (True if first is preferred (N,), its probability (N,)). The seed only affects the choices."""
        first_appeal = self._appeal(self.measure(prompts, first))
        second_appeal = self._appeal(self.measure(prompts, second))
        return self.annotator.prefer(first_appeal, second_appeal, seed=(self._seed, seed))

    def _appeal(self, measured: dict[str, FloatArray]) -> FloatArray:
        return self.annotator.appeal(
            measured["gold"],
            words=measured["words"],
            # the annotator has biases for affirmations and closing offers; these are their counterparts
            affirmations=measured["confident"],
            closings=measured["praise"],
        )

    def ideal(self, prompt: str) -> str:
        """Return a comment with the highest gold reward on a change."""
        return self._writer.ideal(read_change(prompt))

    def candidate(self, prompt: str, rng: np.random.Generator, quality: float) -> str:
        """Return a candidate comment with this latent quality, 0…1; see `CommentRates`."""
        return self._writer.write(read_change(prompt), rng, quality)

    def sample(self, n: int, split: str, *, seed: int = 0) -> tuple[list[Pair], LoadReport]:
        """Return n labelled pairs of a split and a report. Identical candidates are counted and sampled again.

        The first k of n pairs are the pairs of `sample(k, …)`. `Pair.meta` has p_chosen and, for each side, gold_,
        words_, verbose_ and garble_.
        """
        if split not in SPLITS:
            raise DataError(f"split {split!r} is unknown; use {' or '.join(SPLITS)}")
        rng = random_stream([self._seed, seed], "pairs", split)

        def draw() -> tuple[str, str, str]:
            change = self._draw_change(split, rng)
            return change.text, self._writer.write(change, rng), self._writer.write(change, rng)

        candidates, report = distinct_candidates(draw, n)
        prompts, first, second = candidates
        measured = self.measure(prompts, first), self.measure(prompts, second)
        # labels have a separate random stream, so that their draws do not change the texts
        labels = random_stream([self._seed, seed], "labels", split)
        probability = self.annotator.probability(*map(self._appeal, measured))
        return labelled_pairs(candidates, measured, probability, labels), report

    @staticmethod
    def _draw_change(split: str, rng: np.random.Generator) -> Change:
        """Sample a change of a split.

        The hash of its text decides its split; changes of the other split are dropped.
        """
        while True:
            change = draw_change(rng)
            if split_of(change.text) == split:
                return change
