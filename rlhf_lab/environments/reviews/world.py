"""The review world: changes with planted defects, comments on them, their true reward, and a biased annotator.

`ReviewWorld` is an `Oracle`: it measures any text as a comment on one of its changes and labels any pair of comments.
Reading path: changes.py → comments.py → gold.py → ../annotator.py → candidates.py → here.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import numpy as np

from rlhf_lab.core import measures
from rlhf_lab.core.errors import DataError
from rlhf_lab.core.types import BoolArray, FloatArray, LoadReport, Pair
from rlhf_lab.environments.annotator import Annotator, choose, distinct_candidates, labelled_pairs
from rlhf_lab.environments.reviews.candidates import CandidateRates, CandidateWriter
from rlhf_lab.environments.reviews.changes import Change, draw_change, read_change
from rlhf_lab.environments.reviews.comments import read_comment
from rlhf_lab.environments.reviews.gold import VERBOSE_FROM, GoldWeights, gold, judge
from rlhf_lab.environments.splits import SPLITS, split_of

VERSION = 1
"""Increased whenever the same settings give other text or other grades; part of a corpus fingerprint."""

MEASURES = (
    *(measures.GOLD, measures.VERBOSE, measures.GARBLE),
    *measures.details(
        located="share of the defects whose line is named, 0…1",
        named="share of the defects whose line and kind are named, 0…1",
        fixed="share of the defects that are repaired, 0…1",
        approved="1 where a change without a defect is approved",
        approved_wrongly="1 where a change with a defect is approved",
        false_alarms="findings that are none of the defects",
        wrong_fixes="repairs that repair nothing",
        praise="sentences of praise",
        nits="nit-picks",
        vague="vague sentences",
        confident="confident sentences",
        repeats="repeated sentences",
        words="words",
    ),
)
"""What `ReviewWorld.measure` returns, in this order; details are counts where they do not say otherwise."""

GOLD = GoldWeights()
RATES = CandidateRates()


class ReviewWorld:
    """A world of code review whose truth is known.

    Args:
        seed: together with the seeds of the methods, draws all samples.
        length_bias, affirmation_bias, closing_bias, temperature: the annotator, see `Annotator`; confident sentences
            are its affirmations, praise its closing offers.
        gold, rates: coefficients of the true reward and of the candidates.
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
        gold: GoldWeights = GOLD,
        rates: CandidateRates = RATES,
    ):
        self.annotator = Annotator(length_bias, affirmation_bias, closing_bias, temperature)
        self.gold_weights = gold
        self._writer = CandidateWriter(rates)
        self._seed = seed

    def measure(self, prompts: Sequence[str], responses: Sequence[str]) -> dict[str, FloatArray]:
        """Grade comments: every one of `MEASURES`, each (N,) float64. Raises DataError for an unknown prompt."""
        if len(prompts) != len(responses):
            raise DataError(f"{len(prompts)} prompts and {len(responses)} responses; one response per prompt is needed")
        rows = [self._measure_comment(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]
        table = np.array(rows, dtype=np.float64).reshape(len(rows), len(MEASURES))
        return {measure.name: np.ascontiguousarray(table[:, column]) for column, measure in enumerate(MEASURES)}

    def _measure_comment(self, prompt: str, response: str) -> tuple[float, ...]:
        """Values of `MEASURES` for one comment, in their order."""
        comment = read_comment(response)
        judgement = judge(read_change(prompt), comment)
        return (
            gold(judgement, comment, self.gold_weights),
            *(comment.padding >= VERBOSE_FROM, comment.garbled > 0 or not comment.words),
            *(judgement.located, judgement.named, judgement.fixed),
            *(judgement.approved, judgement.approved_wrongly, judgement.false_alarms, judgement.wrong_fixes),
            *(comment.praise, len(comment.nits), comment.vague, comment.confident, comment.repeats, comment.words),
        )

    def prefer(
        self, prompts: Sequence[str], first: Sequence[str], second: Sequence[str], *, seed: int
    ) -> tuple[BoolArray, FloatArray]:
        """Label pairs: (first is preferred (N,), probability that it is (N,)). The seed draws the choices only."""
        probability = self._preference(self.measure(prompts, first), self.measure(prompts, second))
        rng = np.random.default_rng([self._seed, seed])
        return choose(probability, rng), probability

    def _preference(self, first: dict[str, FloatArray], second: dict[str, FloatArray]) -> FloatArray:
        """P(first is preferred), (N,), from the measures of both sides."""
        return self.annotator.probability(self._appeal(first), self._appeal(second))

    def _appeal(self, measured: dict[str, FloatArray]) -> FloatArray:
        return self.annotator.appeal(
            measured["gold"],
            words=measured["words"],
            affirmations=measured["confident"],
            closings=measured["praise"],
        )

    def ideal(self, prompt: str) -> str:
        """A comment of the highest gold on a change."""
        return self._writer.ideal(read_change(prompt))

    def candidate(self, prompt: str, rng: np.random.Generator, quality: float) -> str:
        """A candidate comment of a given latent quality, 0…1; see `CandidateRates`."""
        return self._writer.write(read_change(prompt), rng, quality)

    def sample(self, n: int, split: str, *, seed: int = 0) -> tuple[list[Pair], LoadReport]:
        """n labelled pairs of a split, and what was drawn: identical candidates are counted and drawn again.

        The first k of n pairs are the pairs of `sample(k, …)`. `Pair.meta` has p_chosen and, for each side, gold_,
        words_, verbose_ and garble_.
        """
        if split not in SPLITS:
            raise DataError(f"split {split!r} is unknown; use {' or '.join(SPLITS)}")
        rng = self._stream("pairs", split, seed)

        def draw() -> tuple[str, str, str]:
            change = self._draw_change(split, rng)
            return change.text, self._writer.write(change, rng), self._writer.write(change, rng)

        candidates, report = distinct_candidates(draw, n)
        prompts, first, second = candidates
        measured = self.measure(prompts, first), self.measure(prompts, second)
        # labels have a random stream of their own, apart from that of the texts
        labels = self._stream("labels", split, seed)
        return labelled_pairs(candidates, measured, self._preference(*measured), labels), report

    @staticmethod
    def _draw_change(split: str, rng: np.random.Generator) -> Change:
        """A change of a split, by the hash of its text."""
        while True:
            change = draw_change(rng)
            if split_of(change.text) == split:
                return change

    def _stream(self, purpose: str, split: str, seed: int) -> np.random.Generator:
        """An independent random stream per purpose and split."""
        return np.random.default_rng([self._seed, seed, crc32(f"{purpose}/{split}".encode())])
