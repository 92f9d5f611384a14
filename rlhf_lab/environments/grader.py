"""The simulated rubric judge: true criteria with an error, a halo effect and biases of its own.

It is independent of the annotator of preferences (`annotator.py`): the two share no parameter and no noise. What a
rubric is worth against preferences in this world therefore depends on both sets of parameters, and is no fact about
rubrics.

Its error is a function of the text: one judge (seed) always gives the same grades to the same reply to a prompt.
Left out compared with language models as judges: unreadable answers, position effects, drift with the wording.
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
"""Bytes of a digest that make one uniform number."""


@dataclass(frozen=True)
class Grader:
    """Parameters of the judge, in points of the 1…5 scale. Their vetted values are in the settings of the data source.

    The defaults here are the perfect judge, whose grades are the true criteria.

    Args:
        noise: standard deviation of the error of each criterion, errors of criteria independent.
        halo: share by which each criterion is drawn to the judge's mean impression of the reply; 1 gives one grade to
            all criteria.
        leniency: added to every grade.
        length_bias: added to every grade per 10 words of the reply.
        whole_points: round to whole points.
    """

    noise: float = 0.0
    halo: float = 0.0
    leniency: float = 0.0
    length_bias: float = 0.0
    whole_points: bool = False

    def grades(self, true_NC: FloatArray, *, words: FloatArray, errors_NC: FloatArray) -> FloatArray:
        """Grades within 1…5, (N, C), of replies with these true criteria.

        Args:
            words: of each reply, (N,).
            errors_NC: standard normal.
        """
        seen_NC = true_NC + self.noise * errors_NC
        impression_N1 = seen_NC.mean(axis=1, keepdims=True)
        drawn_NC = seen_NC + self.halo * (impression_N1 - seen_NC)
        grade_NC = drawn_NC + self.leniency + self.length_bias * words[:, None] / 10
        if self.whole_points:
            grade_NC = np.floor(grade_NC + 0.5)  # halves go up; np.round would take them to the even neighbour
        return np.clip(grade_NC, LOW, HIGH)


def text_errors(prompts: Sequence[str], responses: Sequence[str], count: int, *, key: tuple[int, ...]) -> FloatArray:
    """Standard normal numbers that are a function of the texts and the key, (N, count); `count` is at most 8."""
    salt = repr(key).encode()
    rows = []
    for prompt, reply in zip(prompts, responses, strict=True):
        text = f"{len(prompt)}:{prompt}{reply}"  # the length tells where the prompt ends and the reply begins
        rows.append(_hashed_normals(salt, text, count))
    return np.array(rows, dtype=np.float64).reshape(len(rows), count)


def _hashed_normals(salt: bytes, text: str, count: int) -> list[float]:
    """`count` standard normal numbers from the digest of a text, by the inverse of the distribution function."""
    encoded = text.encode("utf-8", "surrogatepass")  # lone surrogates are no valid UTF-8
    digest = blake2b(salt + b"\0" + encoded, digest_size=count * BYTES).digest()
    normals = []
    for begin in range(0, len(digest), BYTES):
        bits = int.from_bytes(digest[begin : begin + BYTES]) // 2**12  # 52 of 64: as many as a float holds exactly
        uniform = (bits + 0.5) / 2**52  # never 0 or 1, where the inverse is infinite
        normals.append(NORMAL.inv_cdf(uniform))
    return normals
