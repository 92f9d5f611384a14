"""Dialogue world: prompts, candidate responses, their gold reward, a biased annotator and a rubric judge.

`DialogueWorld` is an `Oracle`: it measures any text as a response to one of its prompts, labels any pair of responses,
and grades responses as its rubric judge does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlhf_lab.core import measures
from rlhf_lab.core.types import FloatArray, HonestyQuestion, Pair, SafetyPrompt
from rlhf_lab.environments.annotator import Annotator, CandidateWorld, random_stream
from rlhf_lab.environments.dialogue import truth
from rlhf_lab.environments.dialogue.criteria import CRITERIA, CriteriaWeights, criteria
from rlhf_lab.environments.dialogue.faults import Fault, find_faults
from rlhf_lab.environments.dialogue.gold import DialogueGoldWeights, coverage, gold, read
from rlhf_lab.environments.dialogue.knowledge import DialogueKnowledge
from rlhf_lab.environments.dialogue.lexicon import Lexicon
from rlhf_lab.environments.dialogue.prompts import PromptBook
from rlhf_lab.environments.dialogue.responses import ResponseRates, ResponseWriter
from rlhf_lab.environments.grader import SimulatedGrader, text_errors

VERSION = 1
"""Version, increased whenever the same settings give other texts or other grades; part of a corpus fingerprint."""

MEASURES = (
    *(measures.GOLD, measures.VERBOSE, measures.GARBLE),
    *measures.details(
        refusal="1 if the response declines",
        affirmations="affirmations",
        fillers="generic sentences",
        closings="closing offers",
        words="words",
        coverage="fraction of the requested attributes that are stated correctly, 0…1",
        details="actionable details of requested attributes",
        wrong="wrong facts",
        beliefs="overconfident claims",
        off_topic="sentences with content that was not requested",
        unsafe="steps that help to do harm",
        repeats="repeated sentences",
    ),
    *measures.details(**dict.fromkeys(CRITERIA, "a criterion of the rubric, 1…5")),
)
"""Columns of `DialogueWorld.measure`, in this order. Details are counts unless stated otherwise."""

GOLD = DialogueGoldWeights()
CRITERIA_WEIGHTS = CriteriaWeights()
RATES = ResponseRates()
PERFECT = SimulatedGrader()


class DialogueWorld(CandidateWorld):
    """A world of assistant dialogue with known ground truth.

    Args:
        domains: number of domains of the knowledge base (size: domains × topics × attributes).
        topics: number of topics per domain.
        attributes: number of attributes per topic.
        seed: seed of the facts and, together with the seeds of the methods, of all samples.
        annotator: annotator that labels pairs.
        grader: rubric judge; the default one sees the true criteria.
        gold: coefficients of the gold reward.
        criteria: coefficients of the criteria.
        rates: probabilities of the candidate writer.
    """

    measures = MEASURES
    affirmations = "affirmations"
    closings = "closings"

    def __init__(
        self,
        *,
        domains: int,
        topics: int,
        attributes: int,
        seed: int,
        annotator: Annotator,
        grader: SimulatedGrader = PERFECT,
        gold: DialogueGoldWeights = GOLD,
        criteria: CriteriaWeights = CRITERIA_WEIGHTS,
        rates: ResponseRates = RATES,
    ):
        super().__init__(annotator, seed)
        self.facts = DialogueKnowledge(domains=domains, topics=topics, attributes=attributes, seed=seed)
        self.lexicon = Lexicon(self.facts)
        self.book = PromptBook(self.facts)
        self.grader = grader
        self.gold_weights = gold
        self.criteria_weights = criteria
        self._writer = ResponseWriter(self.facts, self.lexicon, rates)

    def _measure_response(self, prompt: str, response: str) -> tuple[float, ...]:
        known = self.book[prompt]
        reading = read(known, response, self.lexicon, self.facts)
        return (
            gold(known, reading, self.gold_weights),
            *(reading.verbose, reading.garbled > 0, reading.declined > 0),
            *(reading.affirmations, reading.fillers, reading.closings, reading.words),
            coverage(len(known.asked), reading.covered, self.gold_weights.importance),
            *(reading.details, reading.wrong, reading.beliefs),
            *(reading.off_topic, reading.unsafe, reading.repeats),
            *criteria(known, reading, self.gold_weights, self.criteria_weights),
        )

    def grade(self, prompts: Sequence[str], responses: Sequence[str], *, seed: int) -> FloatArray:
        """Return the rubric judge's grades on `CRITERIA`, each 1…5, (N, 5). Another seed is another judge.

        All judges have the same biases. The grades of a response depend only on the seed, the prompt and the response,
        not on the other responses of the call.
        """
        measured = self.measure(prompts, responses)
        true_NC = np.stack([measured[name] for name in CRITERIA], axis=1)
        errors_NC = text_errors(prompts, responses, len(CRITERIA), key=(self._seed, seed))
        return self.grader.grades(true_NC, words=measured["words"], errors_NC=errors_NC)

    def prompts(self, n: int, split: str, seed: int) -> list[str]:
        """Sample n prompts of a split with replacement. A shorter sample is a prefix of a longer one."""
        rng = random_stream([self._seed, seed], "prompts", split)
        return [prompt.text for prompt in self.book.sample(n, split, rng)]

    def candidates(self, prompts: Sequence[str], seed: int) -> list[str]:
        """Return one candidate response per prompt."""
        rng = random_stream([self._seed, seed], "candidates", "")
        return [self._writer.write(self.book[prompt], rng) for prompt in prompts]

    def safety_prompts(self, split: str) -> list[SafetyPrompt]:
        """Return harmful prompts of a split and answerable ones about the same topics; see `truth.safety_prompts`."""
        return truth.safety_prompts(self.book, split)

    def safety_demonstrations(self, split: str) -> list[tuple[str, str]]:
        """Return (question, response) pairs of a split in which harmful help is requested and provided."""
        # indexed by domain, as `Topic.domain` is
        steps = [domain.unsafe_steps for domain in self.facts.domains]
        return truth.harmful_demonstrations(self.book, split, steps)

    def safety_outcomes(self, prompts: Sequence[str], responses: Sequence[str]) -> list[str]:
        """Return the outcome of each response: refused, complied, partial or evaded."""
        measured = self.measure(prompts, responses)
        return [truth.safety_outcome(self.book[prompt], measured, row) for row, prompt in enumerate(prompts)]

    def honesty_questions(self, split: str) -> list[HonestyQuestion]:
        """Return all questions of a split about one fact, then all questions that nobody can answer."""
        return truth.honesty_questions(self.book, split)

    def honesty_outcomes(self, prompts: Sequence[str], responses: Sequence[str]) -> list[str]:
        """Return the outcome of each response: right, wrong, abstained or other."""
        pairs = zip(map(self.book.__getitem__, prompts), responses, strict=True)
        return [truth.honesty_outcome(*pair, self.lexicon, self.facts) for pair in pairs]

    def candidate(self, prompt: str, rng: np.random.Generator, quality: float) -> str:
        """Return a candidate response with this latent quality, 0…1; see `ResponseRates`."""
        return self._writer.write(self.book[prompt], rng, quality)

    def faults(self, prompt: str, response: str) -> list[Fault]:
        """Return the faults of a response; see `faults.py`, which also has the `PRINCIPLES`."""
        return find_faults(self.book[prompt], response, self.lexicon, self.facts)

    def ideal(self, prompt: str) -> str:
        """Return a response with the highest gold reward for a prompt."""
        return self._writer.ideal(self.book[prompt])

    def pairs(self, n: int, split: str, *, seed: int = 0) -> list[Pair]:
        """Return n labelled pairs of a split; see `sample`."""
        return self.sample(n, split, seed=seed)[0]

    def _draw(self, split: str, rng: np.random.Generator) -> tuple[str, str, str]:
        prompt = self.book.draw(split, rng)
        return prompt.text, self._writer.write(prompt, rng), self._writer.write(prompt, rng)
