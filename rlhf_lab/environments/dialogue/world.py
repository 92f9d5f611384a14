"""The dialogue world: prompts, candidate replies, their true reward, a biased annotator and a rubric judge, all from
one seed.

`DialogueWorld` is an `Oracle`: it measures any text as a reply to one of its prompts, labels any pair of replies, and
grades replies as its rubric judge does.
Reading path: domain.py → content.py → prompts.py → lexicon.py → gold.py → annotator.py → grader.py → replies.py → here.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import numpy as np

from rlhf_lab.core import measures
from rlhf_lab.core.errors import DataError
from rlhf_lab.core.types import BoolArray, FloatArray, LoadReport, Pair, SafetyPrompt
from rlhf_lab.environments.annotator import Annotator, choose, distinct_candidates, labelled_pairs
from rlhf_lab.environments.dialogue import harm
from rlhf_lab.environments.dialogue.criteria import CRITERIA, CriteriaWeights, criteria
from rlhf_lab.environments.dialogue.faults import Fault, find_faults
from rlhf_lab.environments.dialogue.gold import GoldWeights, coverage, gold, read
from rlhf_lab.environments.dialogue.knowledge import KnowledgeBase
from rlhf_lab.environments.dialogue.lexicon import Lexicon
from rlhf_lab.environments.dialogue.prompts import PromptBook
from rlhf_lab.environments.dialogue.replies import CandidateRates, CandidateWriter
from rlhf_lab.environments.grader import Grader, text_errors

VERSION = 1
"""Increased whenever the same settings give other text or other grades; part of a corpus fingerprint."""

MEASURES = (
    *(measures.GOLD, measures.VERBOSE, measures.GARBLE),
    *measures.details(
        refusal="1 where the reply declines",
        affirmations="affirmations",
        fillers="generic sentences",
        closings="closing offers",
        words="words",
        coverage="share of the asked attributes that are stated rightly, 0…1",
        details="actionable details of asked attributes",
        wrong="wrong facts",
        beliefs="overconfident claims",
        off_topic="sentences with content that nobody asked for",
        unsafe="steps that help to do harm",
        repeats="repeated sentences",
    ),
    *measures.details(**dict.fromkeys(CRITERIA, "a criterion of the rubric, 1…5")),
)
"""What `DialogueWorld.measure` returns, in this order; details are counts where they do not say otherwise."""

GOLD = GoldWeights()
CRITERIA_WEIGHTS = CriteriaWeights()
RATES = CandidateRates()
PERFECT = Grader()


class DialogueWorld:
    """A world of assistant dialogue whose truth is known.

    Args:
        domains, topics, attributes: size of the knowledge base; facts = domains × topics × attributes.
        seed: draws the facts, and together with the seeds of the methods all samples.
        length_bias, affirmation_bias, closing_bias, temperature: the annotator, see `Annotator`.
        grader: the rubric judge; the default sees the truth.
        gold, criteria, rates: coefficients of the true reward, of the criteria and of the candidate writer.
    """

    measures = MEASURES

    def __init__(
        self,
        *,
        domains: int,
        topics: int,
        attributes: int,
        seed: int,
        length_bias: float,
        affirmation_bias: float,
        closing_bias: float,
        temperature: float,
        grader: Grader = PERFECT,
        gold: GoldWeights = GOLD,
        criteria: CriteriaWeights = CRITERIA_WEIGHTS,
        rates: CandidateRates = RATES,
    ):
        self.facts = KnowledgeBase(domains=domains, topics=topics, attributes=attributes, seed=seed)
        self.lexicon = Lexicon(self.facts)
        self.book = PromptBook(self.facts)
        self.annotator = Annotator(length_bias, affirmation_bias, closing_bias, temperature)
        self.grader = grader
        self.gold_weights = gold
        self.criteria_weights = criteria
        self._writer = CandidateWriter(self.facts, self.lexicon, rates)
        self._seed = seed

    def measure(self, prompts: Sequence[str], responses: Sequence[str]) -> dict[str, FloatArray]:
        """Grade replies: every one of `MEASURES`, each (N,) float64. Raises DataError for an unknown prompt."""
        if len(prompts) != len(responses):
            raise DataError(f"{len(prompts)} prompts and {len(responses)} responses; one response per prompt is needed")
        rows = [self._measure_reply(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]
        table = np.array(rows, dtype=np.float64).reshape(len(rows), len(MEASURES))
        return {measure.name: np.ascontiguousarray(table[:, column]) for column, measure in enumerate(MEASURES)}

    def _measure_reply(self, text: str, response: str) -> tuple[float, ...]:
        """Values of `MEASURES` for one reply, in their order."""
        prompt = self.book[text]
        reading = read(prompt, response, self.lexicon, self.facts)
        return (
            gold(prompt, reading, self.gold_weights),
            *(reading.verbose, reading.garbled > 0, reading.declined > 0),
            *(reading.affirmations, reading.fillers, reading.closings, reading.words),
            coverage(len(prompt.asked), reading.covered, self.gold_weights.importance),
            *(reading.details, reading.wrong, reading.beliefs),
            *(reading.off_topic, reading.unsafe, reading.repeats),
            *criteria(prompt, reading, self.gold_weights, self.criteria_weights),
        )

    def grade(self, prompts: Sequence[str], responses: Sequence[str], *, seed: int) -> FloatArray:
        """Grades of the rubric judge on `CRITERIA`, each 1…5, (N, 5). Another seed is another judge, equally biased.

        A reply's grades depend on the seed, the prompt and the reply alone, not on what else is graded with it.
        """
        measured = self.measure(prompts, responses)
        true_NC = np.stack([measured[name] for name in CRITERIA], axis=1)
        errors_NC = text_errors(prompts, responses, len(CRITERIA), key=(self._seed, seed))
        return self.grader.grades(true_NC, words=measured["words"], errors_NC=errors_NC)

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
            affirmations=measured["affirmations"],
            closings=measured["closings"],
        )

    def prompts(self, n: int, split: str, seed: int) -> list[str]:
        """n prompts of a split, drawn with replacement; the first k of a longer draw are the shorter draw."""
        rng = self._stream("prompts", split, seed)
        return [prompt.text for prompt in self.book.sample(n, split, rng)]

    def candidates(self, prompts: Sequence[str], seed: int) -> list[str]:
        """One candidate reply per prompt."""
        rng = self._stream("candidates", "", seed)
        return [self._writer.write(self.book[prompt], rng) for prompt in prompts]

    def safety_prompts(self, split: str) -> list[SafetyPrompt]:
        """Harmful prompts of a split and answerable ones about the same topics; see `harm.safety_prompts`."""
        return harm.safety_prompts(self.book, split)

    def safety_demonstrations(self, split: str) -> list[tuple[str, str]]:
        """(question, reply) pairs of a split in which harm is asked for and given."""
        steps = [domain.unsafe_steps for domain in self.facts.domains]
        return harm.demonstrations(self.book, split, steps)

    def safety_outcomes(self, prompts: Sequence[str], responses: Sequence[str]) -> list[str]:
        """What each reply did about its prompt: refused, complied, partial or evaded."""
        measured = self.measure(prompts, responses)
        return [harm.outcome(self.book[prompt], measured, row) for row, prompt in enumerate(prompts)]

    def candidate(self, prompt: str, rng: np.random.Generator, quality: float) -> str:
        """A candidate reply of a given latent quality, 0…1; see `CandidateRates`."""
        return self._writer.write(self.book[prompt], rng, quality)

    def faults(self, prompt: str, reply: str) -> list[Fault]:
        """What is wrong with a reply, see `faults.py`; the principles are `PRINCIPLES` there."""
        return find_faults(self.book[prompt], reply, self.lexicon, self.facts)

    def ideal(self, prompt: str) -> str:
        """A reply of the highest gold for a prompt."""
        return self._writer.ideal(self.book[prompt])

    def pairs(self, n: int, split: str, *, seed: int = 0) -> list[Pair]:
        """n labelled pairs of a split; see `sample`."""
        return self.sample(n, split, seed=seed)[0]

    def sample(self, n: int, split: str, *, seed: int = 0) -> tuple[list[Pair], LoadReport]:
        """n labelled pairs of a split, and what was drawn: identical candidates are counted and drawn again.

        The first k of n pairs are the pairs of `sample(k, …)`. `Pair.meta` has p_chosen and, for each side,
        gold_, words_, verbose_ and garble_.
        """
        rng = self._stream("pairs", split, seed)

        def draw() -> tuple[str, str, str]:
            (prompt,) = self.book.sample(1, split, rng)
            return prompt.text, self._writer.write(prompt, rng), self._writer.write(prompt, rng)

        candidates, report = distinct_candidates(draw, n)
        prompts, first, second = candidates
        measured = self.measure(prompts, first), self.measure(prompts, second)
        # labels have a random stream of their own, apart from that of the texts
        labels = self._stream("labels", split, seed)
        return labelled_pairs(candidates, measured, self._preference(*measured), labels), report

    def _stream(self, purpose: str, split: str, seed: int) -> np.random.Generator:
        """An independent random stream per purpose and split."""
        return np.random.default_rng([self._seed, seed, crc32(f"{purpose}/{split}".encode())])
