"""Check of whether the final answer of a response equals the row's answer, as mathematics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rlhf_lab.core.errors import DataError
from rlhf_lab.rewards.verifiers.equivalence import SymbolicEquivalence, as_ballot, exactly_same, in_one_unit
from rlhf_lab.rewards.verifiers.settings import Math
from rlhf_lab.rewards.verifiers.stated import last_boxed, stated_answer
from rlhf_lab.rewards.verifiers.verifier import ABSTAINS, VerifierVerdict, term_reward


class MathVerifier:
    """Verifier that compares the stated answer with the row's answer. Unscored if the row has none."""

    def __init__(self, settings: Math):
        self.settings = settings
        is_symbolic = settings.equivalence == "symbolic"
        self._symbolic = SymbolicEquivalence(settings.answer_timeout_s) if is_symbolic else None

    def verdict(self, metadata: Mapping[str, Any], prompt: str, response: str) -> VerifierVerdict:
        """Return the score with its parts: `stated` is 1 for a stated answer, `undecided` for a comparison timeout."""
        gold = _gold(metadata.get(self.settings.column))
        if gold is None:
            return ABSTAINS
        stated = stated_answer(response, lenient=self.settings.lenient)
        if stated is None:
            return VerifierVerdict(0.0, {"stated": 0.0, "undecided": 0.0})
        equal = self.equal(gold, stated)
        return VerifierVerdict(float(bool(equal)), {"stated": 1.0, "undecided": float(equal is None)})

    def read_answer(self, response: str) -> str | None:
        """Return the stated answer for majority votes: numbers by value, other answers by text.

        Comparing all pairs of samples as mathematics would take too long, so two forms of a formula count as different.
        """
        stated = stated_answer(response, lenient=self.settings.lenient)
        return None if stated is None else as_ballot(stated)

    def equal(self, gold: str, stated: str) -> bool | None:
        """Return True if two answers are equal; None if that could not be decided in time."""
        same = exactly_same(gold, stated)
        if same is not None or self._symbolic is None:
            return bool(same)
        # The library does not know units, so both answers are converted to the same one first.
        without_units = in_one_unit(gold, stated)
        return False if without_units is None else self._symbolic(*without_units)


def _gold(answer: Any) -> str | None:
    """Return the answer of a row as text; None if it has none. Raise DataError for an invalid value."""
    if answer is None or (isinstance(answer, float) and math.isnan(answer)):
        return None
    # In Python a bool is an int, but true and false are not answers.
    if isinstance(answer, bool) or not isinstance(answer, (str, int, float)):
        raise DataError(f"column answer is {answer!r}; expected text or a number, for reward=math to compare with")
    text = str(answer).strip()
    # A row may contain a full solution; its boxed part is then the answer, as in MATH, or the text after ####, as in
    # GSM8K.
    if "####" in text or last_boxed(text) is not None:
        return stated_answer(text)
    return text or None


make = MathVerifier
build = term_reward
