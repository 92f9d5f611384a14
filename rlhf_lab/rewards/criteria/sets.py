"""Criteria of each domain: numbers that a program computes from a response without the true reward, and their weights.

The weights are those that someone might choose after looking at a few responses without labels. They apply to
standardised criteria. Weight 0 means that a criterion is measured but does not contribute.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rlhf_lab.core.arrays import FloatArray
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.packs import contributed_objects, defined_twice
from rlhf_lab.core.types import Corpus
from rlhf_lab.environments.reviews.comments import read_comment
from rlhf_lab.rewards.rules.settings import Programmatic

TEXT = {"words": 0.2, "on_topic": 0.3, "varied": 0.1, "finished": 0.2, "hollow_opening": -0.1, "offers": -0.1}
"""words: length in words. on_topic: fraction of the question's longer words that the response repeats. varied: fraction
of distinct words. finished: 1 if it ends with a full stop, exclamation or question mark. hollow_opening: 1 if it starts
with an affirmation (`reward.terms.programmatic.affirmations`). offers: number of phrases that offer more help."""
REVIEWS = {
    "names_lines": 0.25,
    "names_kinds": 0.25,
    "gives_fixes": 0.3,
    "approves": 0.1,
    "confident": 0.1,
    "words": 0.1,
    "praise": 0.0,
    "nits": -0.1,
    "vague": -0.1,
    "unreadable": -0.2,
}
"""names_lines: number of different line numbers that it names and that exist in the change. names_kinds, gives_fixes,
approves, confident, praise, nits, vague: number of sentences of these families. words: length in words. unreadable:
number of sentences of no family, and of repetitions."""

OFFERS = ("let me know", "feel free", "happy to help", "hope this helps", "hope that helps", "anything else")
LONG_WORD = 5
"""Minimum letters of a word of the question that counts for `on_topic`."""

Measure = Callable[[Sequence[str], Sequence[str]], FloatArray]
"""(prompts, responses) → value per response and criterion, (N, C)."""


@dataclass(frozen=True)
class CriteriaSet:
    """Criteria of a domain.

    Attributes:
        hand_weights: criterion → weight, in the order of the columns of `measure`.
    """

    domain: str
    hand_weights: dict[str, float]
    measure: Measure

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the criteria, in the order of the columns of `measure`."""
        return tuple(self.hand_weights)


def criteria_of(corpus: Corpus) -> CriteriaSet:
    """Return the criteria of a corpus. If a pack provides some for it, these are returned.

    Otherwise, a corpus of code reviews has the criteria `REVIEWS`, and every other one has `TEXT`. Raise ConfigError if
    two packs provide criteria for the corpus.
    """
    # All packs are asked, so that a conflict between two of them is an error instead of depending on their order.
    answers = [(find.__module__, find(corpus)) for find in contributed_objects("criteria")]
    found: list[tuple[str, CriteriaSet]] = [(module, criteria) for module, criteria in answers if criteria is not None]
    if len(found) > 1:
        (first, _), (second, _), *_ = found
        raise ConfigError(defined_twice(f"the set of criteria for data {corpus.name}", first, second))
    if found:
        return found[0][1]
    if corpus.name == "reviews":
        return CriteriaSet("reviews", REVIEWS, _measure_each(review_criteria, len(REVIEWS)))
    return CriteriaSet("text", TEXT, _measure_each(text_criteria, len(TEXT)))


def text_criteria(prompt: str, response: str) -> tuple[float, ...]:
    words = re.findall(r"[a-z']+", response.lower())
    # A prompt may contain earlier turns; the question is the last one.
    question = prompt.rpartition("Human:")[2].removesuffix("Assistant:")
    requested = {word for word in re.findall(r"[a-z]+", question.lower()) if len(word) >= LONG_WORD}
    repeated = len(requested & set(words)) / len(requested) if requested else 0.0
    varied = len(set(words)) / len(words) if words else 0.0
    finished = float(response.rstrip().endswith((".", "!", "?")))
    opening = float(Programmatic().affirms(response))
    offers = sum(response.lower().count(phrase) for phrase in OFFERS)
    return float(len(words)), repeated, varied, finished, opening, float(offers)


def review_criteria(prompt: str, response: str) -> tuple[float, ...]:
    """Return the values of `REVIEWS` for one comment. The only property of the change used is its number of lines."""
    comment = read_comment(response)
    change_lines = prompt.strip().removesuffix("Assistant:").strip().count("\n") + 1
    lines = {claim.line for claim in (*comment.findings, *comment.fixes)}
    existing = [line for line in lines if 1 <= line <= change_lines]
    return (
        float(len(existing)),
        float(len(comment.findings)),
        float(len(comment.fixes)),
        float(comment.approvals),
        float(comment.confident),
        float(comment.words),
        float(comment.praise),
        float(len(comment.nits)),
        float(comment.vague),
        float(comment.garbled + comment.repeats),
    )


def _measure_each(criteria: Callable[[str, str], tuple[float, ...]], columns: int) -> Measure:

    def measure(prompts: Sequence[str], responses: Sequence[str]) -> FloatArray:
        rows = [criteria(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]
        return np.array(rows, dtype=np.float64).reshape(len(rows), columns)

    return measure
