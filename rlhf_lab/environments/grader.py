"""Simulated rubric judge: true criteria with an error, a halo effect and its own biases.

It is independent of the annotator of preferences (`annotator.py`): the two have no parameter and no noise in common.
The value of a rubric compared with preferences therefore depends on both sets of parameters in this world. It is no
result about rubrics in general.

The error is a function of the text: one judge (seed) always gives the same grades to the same response to a prompt. Not
modelled, in contrast to language models as judges: unreadable answers, position effects, drift with the wording.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from statistics import NormalDist

import numpy as np

from rlhf_lab.core.types import FloatArray

LOW, HIGH = 1.0, 5.0
NORMAL = NormalDist()
BYTES = 8
"""Number of digest bytes that yield one uniform number."""


@dataclass(frozen=True)
class SimulatedGrader:
    """Parameters of the judge, in points of the 1…5 scale. The settings of the data source have tested values.

    The defaults here are those of a perfect judge, whose grades are the true criteria.

    Attributes:
        noise: standard deviation of the error of each criterion; the errors of the criteria are independent.
        halo: fraction by which each criterion moves towards the judge's mean impression of the response; with 1, all
            criteria get the same grade.
        leniency: points added to every grade.
        length_bias: points added to every grade per 10 words of the response.
        whole_points: round to integer points.
    """

    noise: float = 0.0
    halo: float = 0.0
    leniency: float = 0.0
    length_bias: float = 0.0
    whole_points: bool = False

    def grades(self, true_NC: FloatArray, *, words: FloatArray, errors_NC: FloatArray) -> FloatArray:
        """Return grades within 1…5, (N, C), of responses with these true criteria.

        Args:
            true_NC: true criteria of each response, (N, C).
            words: number of words of each response, (N,).
            errors_NC: standard normal numbers, (N, C).
        """
        seen_NC = true_NC + self.noise * errors_NC
        impression_N1 = seen_NC.mean(axis=1, keepdims=True)
        sampled_NC = seen_NC + self.halo * (impression_N1 - seen_NC)
        grade_NC = sampled_NC + self.leniency + self.length_bias * words[:, None] / 10
        if self.whole_points:
            grade_NC = np.floor(grade_NC + 0.5)  # halves round up; np.round would round them to the even neighbour
        return np.clip(grade_NC, LOW, HIGH)


def text_errors(prompts: Sequence[str], responses: Sequence[str], count: int, *, key: tuple[int, ...]) -> FloatArray:
    """Return standard normal numbers that depend only on texts and key, (N, count); the maximum `count` is 8."""
    salt = repr(key).encode()
    rows = []
    for prompt, response in zip(prompts, responses, strict=True):
        text = f"{len(prompt)}:{prompt}{response}"  # the length marks where the prompt ends and the response starts
        rows.append(_hashed_normals(salt, text, count))
    return np.array(rows, dtype=np.float64).reshape(len(rows), count)


def _hashed_normals(salt: bytes, text: str, count: int) -> list[float]:
    """Return `count` standard normal numbers from the digest of a text, by the inverse distribution function."""
    encoded = text.encode("utf-8", "surrogatepass")  # lone surrogates are no valid UTF-8
    digest = blake2b(salt + b"\0" + encoded, digest_size=count * BYTES).digest()
    normals = []
    for start in range(0, len(digest), BYTES):
        bits = int.from_bytes(digest[start : start + BYTES]) // 2**12  # 52 of 64 bits, which a float represents exactly
        uniform = (bits + 0.5) / 2**52  # never 0 or 1, where the inverse is infinite
        normals.append(NORMAL.inv_cdf(uniform))
    return normals
