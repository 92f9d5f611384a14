"""Candidate comments of reviewers: some name the defects and their fixes, some are padded, some raise false alarms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rlhf_lab.environments.reviews.changes import KINDS, NUMBERS, RESOURCES, Change, Defect
from rlhf_lab.environments.reviews.comments import (
    APPROVALS,
    CONFIDENT,
    NITS,
    PRAISE,
    VAGUE,
    describe_defect,
    fix,
    read_comment,
)


@dataclass(frozen=True)
class CommentRates:
    """Probabilities of errors. q is the quality, uniform in 0…1; v the verbosity, the square of a uniform number.

    A pair of numbers (a, b) is the probability a + b·q.

    Attributes:
        finds: a defect is mentioned.
        right_kind: a mentioned defect has the right kind.
        right_line: a mentioned defect has the right line.
        fixes: a mentioned defect comes with a repair.
        right_fix: the repair is the right one.
        false_alarm: a defect that does not exist is mentioned.
        approves: a change without a defect is approved.
        approves_wrongly: a change with a defect is approved, if none was mentioned.
        praise: each of at most two sentences of praise, × v.
        nit: each of up to two nit-picks, × v.
        vague: each of up to two vague sentences, × v.
        confident: each of up to two confident sentences, × v.
        garbled: words are dropped or replaced by other ones, independent of q.
    """

    finds: tuple[float, float] = (0.35, 0.55)
    right_kind: tuple[float, float] = (0.55, 0.43)
    right_line: tuple[float, float] = (0.65, 0.33)
    fixes: tuple[float, float] = (0.3, 0.5)
    right_fix: tuple[float, float] = (0.45, 0.5)
    false_alarm: tuple[float, float] = (0.25, -0.25)
    approves: tuple[float, float] = (0.4, 0.55)
    approves_wrongly: tuple[float, float] = (0.6, -0.2)
    praise: float = 0.5
    nit: float = 0.5
    vague: float = 0.5
    confident: float = 0.6
    garbled: float = 0.08


Chance = Callable[[tuple[float, float]], bool]
"""Samples whether an event with a probability (a, b) of `CommentRates` happens."""


class CommentWriter:
    """Writer of candidate comments."""

    def __init__(self, rates: CommentRates):
        self.rates = rates

    def write(self, change: Change, rng: np.random.Generator, quality: float | None = None) -> str:
        """Write a comment with this latent quality, 0…1; None samples the quality."""
        # The order of draws determines the corpus of a seed: changing it requires a new `world.VERSION`.
        rates = self.rates
        quality = float(rng.random()) if quality is None else quality
        verbosity = float(rng.random()) ** 2

        def happens(rate: tuple[float, float]) -> bool:
            return bool(rng.random() < rate[0] + rate[1] * quality)

        claims: list[str] = []
        for defect in change.defects:
            if happens(rates.finds):
                claimed = self._claim(change, defect, happens, rng)
                # the same sentence twice would count as a repeat
                claims += [f for f in claimed if f not in claims]
        if happens(rates.false_alarm):
            line = 1 + int(rng.integers(len(change.lines)))
            kind = KINDS[rng.integers(len(KINDS))]
            alarm = describe_defect(Defect(line, kind))
            claims += [alarm] if alarm not in claims else []
        approves = rates.approves_wrongly if change.defects else rates.approves
        if happens(approves) and not claims:
            claims.append(APPROVALS[rng.integers(len(APPROVALS))])
        nit_forms = self._sample_up_to_two(NITS, rates.nit, verbosity, rng)
        sentences = [*self._sample_up_to_two(PRAISE, rates.praise, verbosity, rng), *claims]
        for form in nit_forms:
            line = 1 + int(rng.integers(len(change.lines)))
            sentences.append(form.format(line))
        sentences += self._sample_up_to_two(VAGUE, rates.vague, verbosity, rng)
        sentences += self._sample_up_to_two(CONFIDENT, rates.confident, verbosity, rng)
        if not sentences:
            sentences = [VAGUE[rng.integers(len(VAGUE))]]
        comment = " ".join(f"{sentence}." for sentence in sentences)
        return self._garble(comment, rng) if rng.random() < rates.garbled else comment

    def ideal(self, change: Change) -> str:
        """Return a comment with the highest gold reward."""
        sentences: list[str] = []
        for defect in change.defects:
            sentences += [describe_defect(defect), fix(defect)]
        return " ".join(f"{sentence}." for sentence in sentences or [APPROVALS[1]])

    def _claim(self, change: Change, defect: Defect, happens: Chance, rng: np.random.Generator) -> list[str]:
        """Return the sentences of a candidate about a defect: its description and possibly a repair."""
        rates = self.rates
        # the claim starts as the true defect; kind and line may each be replaced by a random one, even the true one
        line, kind, name = defect
        if not happens(rates.right_kind):
            kind = KINDS[rng.integers(len(KINDS))]
        if not happens(rates.right_line):
            line = 1 + int(rng.integers(len(change.lines)))
        sentences = [describe_defect(Defect(line, kind))]
        if happens(rates.fixes):
            if kind == defect.kind and happens(rates.right_fix):
                sentences.append(fix(Defect(line, kind, name)))
            else:
                other = kind if name else KINDS[rng.integers(len(KINDS))]
                other_name = _any_name(other, rng)
                sentences.append(fix(Defect(line, other, other_name)))
        return sentences

    @staticmethod
    def _sample_up_to_two(items: Sequence[str], rate: float, verbosity: float, rng: np.random.Generator) -> list[str]:
        """Return up to two of the items, without repetition, in random order."""
        number = int(rng.binomial(2, rate * verbosity))
        return [items[i] for i in rng.permutation(len(items))[:number]]

    @staticmethod
    def _garble(comment: str, rng: np.random.Generator) -> str:
        """Drop words, or replace them by other words of the comment, until a sentence is unreadable."""
        words = comment.split()
        while not read_comment(" ".join(words)).garbled:
            position = int(rng.integers(len(words)))
            if rng.random() < 0.5 and len(words) > 2:
                del words[position]
            else:
                words[position] = words[rng.integers(len(words))]
        return " ".join(words)


def _any_name(kind: str, rng: np.random.Generator) -> str:
    """Return a random name that a repair of this kind could mention."""
    names = RESOURCES if kind == "not_closed" else NUMBERS
    return names[rng.integers(len(names))]
