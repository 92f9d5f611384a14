"""The simulated rubric judge: true criteria seen through an error, a halo and a taste of its own.

It is not the annotator who prefers (`annotator.py`): the two share no dial and no noise. What a rubric is worth against
preferences in this world is therefore a matter of both sets of dials, and no fact about rubrics.

Its error belongs to the text: the same judge (seed) that reads the same reply to the same prompt again says the same.
Left out against language models as judges: answers that cannot be read, position effects, drift with the wording.
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
"""Of a digest that make one uniform number."""


@dataclass(frozen=True)
class Grader:
    """Dials of the judge, in points of the 1…5 scale. Their vetted values live in the settings of the data source.

    The defaults here are the perfect judge, who says what is true.

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
        moved_NC = drawn_NC + self.leniency + self.length_bias * words[:, None] / 10
        rounded_NC = np.floor(moved_NC + 0.5) if self.whole_points else moved_NC
        return np.clip(rounded_NC, LOW, HIGH)


def text_errors(prompts: Sequence[str], responses: Sequence[str], count: int, *, key: tuple[int, ...]) -> FloatArray:
    """Standard normal numbers that belong to the texts, (N, count), at most 8 each: other texts or keys, others."""
    salt = repr(key).encode()
    rows = [
        _errors(salt, f"{len(prompt)}:{prompt}{reply}", count) for prompt, reply in zip(prompts, responses, strict=True)
    ]
    return np.array(rows, dtype=np.float64).reshape(len(rows), count)


def _errors(salt: bytes, text: str, count: int) -> list[float]:
    digest = blake2b(salt + b"\0" + text.encode("utf-8", "surrogatepass"), digest_size=count * BYTES).digest()
    parts = (digest[i : i + BYTES] for i in range(0, len(digest), BYTES))
    return [NORMAL.inv_cdf((int.from_bytes(part) // 2**12 + 0.5) / 2**52) for part in parts]
