"""The criteria of each domain: numbers of a reply that a program computes without the truth, and a person's weights.

A weight is what someone would write down who has looked at a few replies and has no labels; 0 is a criterion that was
measured and not weighed. Weights are of standardised criteria.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rlhf_lab.core.arrays import FloatArray
from rlhf_lab.core.packs import contributed
from rlhf_lab.core.types import Corpus
from rlhf_lab.environments.reviews.comments import read_comment
from rlhf_lab.rewards.rules.settings import Programmatic

TEXT = {
    "words": 0.2,
    "on_topic": 0.3,
    "varied": 0.1,
    "finished": 0.2,
    "hollow_opening": -0.1,
    "offers": -0.1,
}
"""words: length. on_topic: share of the question's longer words that the reply repeats. varied: distinct words, as a
share. finished: 1 where it ends with a full stop, exclamation or question mark. hollow_opening: 1 where it begins with
an affirmation (`reward.terms.programmatic.affirmations`). offers: phrases that offer more help."""
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
"""names_lines: different lines that it names and the change has. names_kinds, gives_fixes, approves, confident, praise,
nits, vague: sentences of these families. words: length. unreadable: sentences of no family, and repetitions."""

OFFERS = ("let me know", "feel free", "happy to help", "hope this helps", "hope that helps", "anything else")
LONG_WORD = 5
"""Letters from which a word of the question counts for `on_topic`."""

Measure = Callable[[Sequence[str], Sequence[str]], FloatArray]
"""(prompts, responses) → a value per reply and criterion, (N, C)."""


@dataclass(frozen=True)
class CriteriaSet:
    """The criteria of a domain.

    Attributes:
        hand_weights: criterion → weight, in the order of the columns of `measure`.
    """

    domain: str
    hand_weights: dict[str, float]
    measure: Measure

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.hand_weights)


def criteria_of(corpus: Corpus) -> CriteriaSet:
    """The criteria of a corpus: those that a pack has for it, those of review comments, else those of text."""
    found = (find(corpus) for find in contributed("criteria"))
    of_pack: CriteriaSet | None = next(filter(None, found), None)
    if of_pack is not None:
        return of_pack
    if corpus.name == "reviews":
        return CriteriaSet("reviews", REVIEWS, _measure_each(review_criteria, len(REVIEWS)))
    return CriteriaSet("text", TEXT, _measure_each(text_criteria, len(TEXT)))


def text_criteria(prompt: str, response: str) -> tuple[float, ...]:
    """Values of `TEXT` for one reply."""
    words = re.findall(r"[a-z']+", response.lower())
    question = prompt.rpartition("Human:")[2].removesuffix("Assistant:")
    asked = {word for word in re.findall(r"[a-z]+", question.lower()) if len(word) >= LONG_WORD}
    repeated = len(asked & set(words)) / len(asked) if asked else 0.0
    varied = len(set(words)) / len(words) if words else 0.0
    finished = float(response.rstrip().endswith((".", "!", "?")))
    opening = float(response.lstrip("\"' ").lower().startswith(Programmatic().affirmations))
    offers = sum(response.lower().count(phrase) for phrase in OFFERS)
    return float(len(words)), repeated, varied, finished, opening, float(offers)


def review_criteria(prompt: str, response: str) -> tuple[float, ...]:
    """Values of `REVIEWS` for one comment. Of the change only its number of lines is read."""
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
    """A measure that looks at one reply after the other."""

    def measure(prompts: Sequence[str], responses: Sequence[str]) -> FloatArray:
        rows = [criteria(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]
        return np.array(rows, dtype=np.float64).reshape(len(rows), columns)

    return measure
