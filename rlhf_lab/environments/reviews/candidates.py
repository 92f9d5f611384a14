"""Candidate comments of reviewers: some see the defects and say what to do, some pad, some raise false alarms."""

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
    finding,
    fix,
    read_comment,
)


@dataclass(frozen=True)
class CandidateRates:
    """How candidates err. q is a candidate's quality, uniform in 0…1; v its verbosity, the square of a uniform number.

    A pair of numbers (a, b) is the probability a + b·q.

    Args:
        finds: a defect is mentioned.
        right_kind, right_line: of a mentioned defect.
        fixes, right_fix: it comes with a repair; the repair is the right one.
        false_alarm: a defect that is not there is mentioned.
        approves: a change without a defect is approved.
        approves_wrongly: a change with a defect is approved, where none was mentioned.
        praise, nit, vague, confident: two sentences of each are tried, with this probability × v.
        garbled: a word is dropped or replaced by another one, whatever q.
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
"""A pair of numbers of `CandidateRates` → whether it happens."""


class CandidateWriter:
    """Writes candidate comments."""

    def __init__(self, rates: CandidateRates):
        self.rates = rates

    def write(self, change: Change, rng: np.random.Generator, quality: float | None = None) -> str:
        """A comment of a given latent quality, 0…1, or of a drawn one."""
        # The order of draws determines the corpus of a seed: changing it needs another `world.VERSION`.
        rates = self.rates
        quality = float(rng.random()) if quality is None else quality
        verbosity = float(rng.random()) ** 2

        def happens(rate: tuple[float, float]) -> bool:
            return bool(rng.random() < rate[0] + rate[1] * quality)

        claims: list[str] = []
        for defect in change.defects:
            if happens(rates.finds):
                claimed = self._claim(change, defect, happens, rng)
                claims += [f for f in claimed if f not in claims]
        if happens(rates.false_alarm):
            line = 1 + int(rng.integers(len(change.lines)))
            alarm = finding(Defect(line, KINDS[rng.integers(len(KINDS))]))
            claims += [alarm] if alarm not in claims else []
        approves = rates.approves_wrongly if change.defects else rates.approves
        if happens(approves) and not claims:
            claims.append(APPROVALS[rng.integers(len(APPROVALS))])
        nit_forms = self._some(NITS, rates.nit, verbosity, rng)
        said = [
            *self._some(PRAISE, rates.praise, verbosity, rng),
            *claims,
            *(form.format(1 + int(rng.integers(len(change.lines)))) for form in nit_forms),
            *self._some(VAGUE, rates.vague, verbosity, rng),
            *self._some(CONFIDENT, rates.confident, verbosity, rng),
        ]
        if not said:
            said = [VAGUE[rng.integers(len(VAGUE))]]
        comment = " ".join(f"{sentence}." for sentence in said)
        return self._garble(comment, rng) if rng.random() < rates.garbled else comment

    def ideal(self, change: Change) -> str:
        """A comment of the highest gold."""
        said = [sentence for defect in change.defects for sentence in (finding(defect), fix(defect))]
        return " ".join(f"{sentence}." for sentence in said or [APPROVALS[1]])

    def _claim(self, change: Change, defect: Defect, happens: Chance, rng: np.random.Generator) -> list[str]:
        """What a candidate says of a defect: a finding, and perhaps a repair."""
        rates = self.rates
        line, kind, name = defect
        if not happens(rates.right_kind):
            kind = KINDS[rng.integers(len(KINDS))]
        if not happens(rates.right_line):
            line = 1 + int(rng.integers(len(change.lines)))
        said = [finding(Defect(line, kind))]
        if happens(rates.fixes):
            if kind == defect.kind and happens(rates.right_fix):
                said.append(fix(Defect(line, kind, name)))
            else:
                other = kind if name else KINDS[rng.integers(len(KINDS))]
                said.append(fix(Defect(line, other, _any_name(other, rng))))
        return said

    @staticmethod
    def _some(items: Sequence[str], rate: float, verbosity: float, rng: np.random.Generator) -> list[str]:
        """Up to two of the items, without repetition, in random order."""
        number = int(rng.binomial(2, rate * verbosity))
        return [items[i] for i in rng.permutation(len(items))[:number]]

    @staticmethod
    def _garble(comment: str, rng: np.random.Generator) -> str:
        """The comment with words dropped or replaced by others of it until a sentence is unreadable."""
        words = comment.split()
        while not read_comment(" ".join(words)).garbled:
            place = int(rng.integers(len(words)))
            if rng.random() < 0.5 and len(words) > 2:
                del words[place]
            else:
                words[place] = words[rng.integers(len(words))]
        return " ".join(words)


def _any_name(kind: str, rng: np.random.Generator) -> str:
    """A name that a repair of this kind might give."""
    names = RESOURCES if kind == "not_closed" else NUMBERS
    return names[rng.integers(len(names))]
