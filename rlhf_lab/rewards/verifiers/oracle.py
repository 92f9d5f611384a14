"""A verifier as the oracle of the data: metrics `correct` and `verified` of every stage that samples responses."""

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
from rlhf_lab.rewards.verifiers.verifier import AnswerVerifier, Verifier, check_responses, verifier_of


class VerifierOracle:
    """Oracle that knows a verifier's score of a response, and nothing else.

    Args:
        corpus: the data; their rows contain the columns that the verifier reads.
    """

    measures = (CORRECT, VERIFIED, VERIFIED_PART)

    def __init__(self, verifier: Verifier, corpus: Corpus):
        self.verifier = verifier
        self._corpus = corpus

    def measure(self, prompts: Sequence[str], responses: Sequence[str]) -> dict[str, FloatArray]:
        """Return "correct" (N,): 1 if the score is 1, else 0; "verified" (N,): the score; "verified/<part>": its parts.

        Values are NaN if the verifier abstains.
        """
        pairs = zip(prompts, responses, strict=True)
        response_texts = [(self._corpus.task(prompt).metadata, prompt, response) for prompt, response in pairs]
        batch = check_responses(self.verifier, response_texts)
        score_N = batch.total_N
        # NaN >= 1 would be False, so abstentions are restored.
        correct_N = np.where(np.isnan(score_N), np.nan, score_N >= 1)
        parts = {f"verified/{name}": values_N for name, values_N in batch.parts.items()}
        return {"correct": correct_N, "verified": score_N, **parts}

    def read_answers(self, responses: Sequence[str]) -> list[str | None] | None:
        """Return the final answers of responses; None if the verifier does not check final answers."""
        if not isinstance(self.verifier, AnswerVerifier):
            return None
        return [self.verifier.read_answer(response) for response in responses]

    def prefer(self, prompts: Sequence[str], first: Sequence[str], second: Sequence[str], *, seed: int) -> NoReturn:
        """Raise LabError: a verifier scores single responses, and equal scores express no preference."""
        raise LabError(
            "a verifier cannot label pairs, because it scores single responses; grade them with oracle.measure, or use "
            "data=arithmetic, whose annotator prefers responses"
        )


def verified(corpus: Corpus, settings: TermSettings, runs_in: Any) -> Corpus:
    """Return the data of a run with this verifier instead of their answer key.

    Synthetic data with a known true reward keep their own oracle, which decides what a correct answer is.
    """
    # An answer key is not a world: it only compares answers, which the verifier replaces.
    if corpus.oracle is not None and not isinstance(corpus.oracle, AnswerKey):
        return corpus
    return replace(corpus, oracle=VerifierOracle(verifier_of(settings, runs_in), corpus), verified=True)
