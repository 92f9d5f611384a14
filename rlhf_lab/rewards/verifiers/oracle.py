"""A verifier as what is known of the data: the metrics `correct` and `verified` of every stage that samples replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from rlhf_lab.core.errors import LabError
from rlhf_lab.core.measures import CORRECT, VERIFIED, VERIFIED_PART
from rlhf_lab.core.types import Corpus, FloatArray
from rlhf_lab.data.gsm8k import AnswerKey
from rlhf_lab.rewards.term import TermSettings
from rlhf_lab.rewards.verifiers.verifier import AnswerVerifier, Verifier, check_replies, verifier_of


class VerifierOracle:
    """An `Oracle` that knows what a verifier says of a reply, and nothing else.

    Args:
        corpus: the data, whose rows have what the verifier reads.
    """

    measures = (CORRECT, VERIFIED, VERIFIED_PART)

    def __init__(self, verifier: Verifier, corpus: Corpus):
        self.verifier = verifier
        self._corpus = corpus

    def measure(self, prompts: Sequence[str], responses: Sequence[str]) -> dict[str, FloatArray]:
        """ "correct" (N,): 1 where the score is 1, else 0. "verified" (N,) is the score, "verified/<part>" its parts.

        NaN where the verifier abstains.
        """
        pairs = zip(prompts, responses, strict=True)
        replies = [(self._corpus.task(prompt).facts, prompt, response) for prompt, response in pairs]
        batch = check_replies(self.verifier, replies)
        score_N = batch.total_N
        correct_N = np.where(np.isnan(score_N), np.nan, score_N >= 1)
        parts = {f"verified/{name}": values_N for name, values_N in batch.parts.items()}
        return {"correct": correct_N, "verified": score_N, **parts}

    def read_answers(self, responses: Sequence[str]) -> list[str | None] | None:
        """None for verifiers that check something else than a final answer."""
        if not isinstance(self.verifier, AnswerVerifier):
            return None
        return [self.verifier.read_answer(response) for response in responses]

    def prefer(self, prompts: Sequence[str], first: Sequence[str], second: Sequence[str], *, seed: int) -> NoReturn:
        """Raises LabError: two replies with the same score are no pair."""
        raise LabError(
            "a verifier labels no pairs: it scores single replies; grade them with oracle.measure, or use "
            "data=arithmetic, whose annotator prefers replies"
        )


def verified(corpus: Corpus, settings: TermSettings, runs_in: Any) -> Corpus:
    """The data of a run with this verifier in place of their answer key.

    A world that knows the truth of its replies keeps it: its own reading of answers is the truth there.
    """
    if corpus.oracle is not None and not isinstance(corpus.oracle, AnswerKey):
        return corpus
    return replace(corpus, oracle=VerifierOracle(verifier_of(settings, runs_in), corpus), verified=True)
