"""Whether the final answer of a reply is the row's, as mathematics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rlhf_lab.core.errors import DataError
from rlhf_lab.rewards.verifiers.equivalence import SymbolicEquivalence, as_ballot, exactly_same, in_one_unit
from rlhf_lab.rewards.verifiers.settings import Math
from rlhf_lab.rewards.verifiers.stated import last_boxed, stated_answer
from rlhf_lab.rewards.verifiers.verifier import ABSTAINS, Verdict, VerifierReward, verifier_of
from rlhf_lab.training.run import Run


class MathVerifier:
    """Compares the stated answer with the row's. Unscored where the row has none."""

    def __init__(self, settings: Math):
        self.settings = settings
        is_symbolic = settings.equivalence == "symbolic"
        self._symbolic = SymbolicEquivalence(settings.answer_timeout_s) if is_symbolic else None

    def score(self, facts: Mapping[str, Any], prompt: str, response: str) -> float:
        return self.verdict(facts, prompt, response).score

    def verdict(self, facts: Mapping[str, Any], prompt: str, response: str) -> Verdict:
        """Parts: `stated`, whether the reply states an answer; `undecided`, whether comparing it took too long."""
        gold = _gold(facts.get(self.settings.column))
        if gold is None:
            return ABSTAINS
        stated = stated_answer(response, lenient=self.settings.lenient)
        if stated is None:
            return Verdict(0.0, {"stated": 0.0, "undecided": 0.0})
        equal = self.equal(gold, stated)
        return Verdict(float(bool(equal)), {"stated": 1.0, "undecided": float(equal is None)})

    def read_answer(self, response: str) -> str | None:
        """The stated answer: numbers by their value, other answers by their text. Comparing all pairs of samples as
        mathematics would take too long, so two forms of one formula are two answers here."""
        stated = stated_answer(response, lenient=self.settings.lenient)
        return None if stated is None else as_ballot(stated)

    def equal(self, gold: str, stated: str) -> bool | None:
        """Whether two answers are the same; None where that could not be decided in time."""
        same = exactly_same(gold, stated)
        if same is not None or self._symbolic is None:
            return bool(same)
        without_units = in_one_unit(gold, stated)
        return False if without_units is None else self._symbolic(*without_units)


def _gold(answer: Any) -> str | None:
    """The answer of a row as text; None where it has none. Raises DataError for what is no answer."""
    if answer is None or (isinstance(answer, float) and math.isnan(answer)):
        return None
    if isinstance(answer, bool) or not isinstance(answer, (str, int, float)):
        raise DataError(f"column answer is {answer!r}; expected text or a number, for reward=math to compare with")
    text = str(answer).strip()
    boxed = last_boxed(text)
    return (text if boxed is None else boxed.strip()) or None


def make(settings: Math) -> MathVerifier:
    return MathVerifier(settings)


def build(settings: Math, run: Run) -> VerifierReward:
    return VerifierReward(verifier_of(settings, settings.runs_in(run.config)))
