"""Weighted sum of standardised criteria: the result of the first four steps of a reward design.

    grade = Σ weight · (value − mean) / sd          score = slope · grade, log-odds of a preference

It is stored as one JSON file, `criteria_reward.json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_lab.core.arrays import BoolArray, FloatArray
from rlhf_lab.core.errors import ArtifactError, ConfigError
from rlhf_lab.core.files import read_json, write_text
from rlhf_lab.statistics.logistic import fit_weighted

MODEL_FILE = "criteria_reward.json"


@dataclass(frozen=True)
class CriteriaModel:
    """Criteria with weights.

    Attributes:
        domain: domain of the criteria, see `sets.criteria_of`.
        names, weights, means, sds: one value per criterion; an excluded criterion has weight 0. Means and standard
            deviations are those of training responses, in units of the criterion.
        slope: log-odds of a preference per point of the grade; 1 if not calibrated.
    """

    domain: str
    names: tuple[str, ...]
    weights: tuple[float, ...]
    means: tuple[float, ...]
    sds: tuple[float, ...]
    slope: float = 1.0

    def standardised(self, values_NC: FloatArray) -> FloatArray:
        """Return the criteria with mean 0 and standard deviation 1 on training responses, (N, C)."""
        return (values_NC - np.array(self.means)) / np.array(self.sds)

    def __call__(self, values_NC: FloatArray) -> FloatArray:
        # Elementwise instead of a matrix product, so that a score does not depend on the batch, to the last bit.
        grade_N = (self.standardised(values_NC) * np.array(self.weights)).sum(axis=1)
        return np.asarray(self.slope * grade_N)

    def with_weights(self, weights_C: FloatArray) -> CriteriaModel:
        return replace(self, weights=tuple(weights_C.tolist()))

    def calibrated(self, chosen_PC: FloatArray, rejected_PC: FloatArray) -> CriteriaModel:
        """Return the model with the slope that maps a difference of grades to the log-odds of the labels of pairs.

        A negative slope means that the labels contradict the grade. If the grade orders all pairs correctly, the slope
        would be infinite: a prior with standard deviation 1/√`PRIOR_PRECISION` keeps it finite.
        """
        simple = replace(self, slope=1.0)
        difference_P1 = (simple(chosen_PC) - simple(rejected_PC))[:, None]
        (slope,) = bradley_terry_weights(difference_P1, precision=PRIOR_PRECISION)
        return replace(self, slope=float(slope))

    def save(self, directory: Path, metadata: Mapping[str, Any]) -> None:
        """Write `criteria_reward.json` to a directory. `metadata` are additional entries for human readers."""
        write_text(directory / MODEL_FILE, json.dumps({**metadata, **asdict(self)}, indent=1))

    @classmethod
    def load(cls, directory: Path, names: Sequence[str]) -> CriteriaModel:
        """Read the file that `save` wrote. Raise ArtifactError unless its criteria are those of the data, `names`."""
        entries = read_json(directory / MODEL_FILE)
        if not isinstance(entries, dict):
            raise ConfigError(
                f"{directory} has no {MODEL_FILE}; name the directory of a run of algorithm=criteria_reward"
            )
        if tuple(entries["names"]) != tuple(names):
            raise ArtifactError(
                f"{directory / MODEL_FILE} weighs {', '.join(entries['names'])}; the criteria of these data are "
                f"{', '.join(names)}: train it on data of the same domain"
            )
        columns = {key: tuple(entries[key]) for key in ("names", "weights", "means", "sds")}
        return cls(domain=entries["domain"], slope=entries["slope"], **columns)


PRIOR_PRECISION = 0.1
"""1/variance of the prior around 0 on a slope and on the weights of standardised criteria, log-odds."""


def hand_weighted(domain: str, weights: Mapping[str, float], values_NC: FloatArray) -> CriteriaModel:
    """Return a model with manual weights for criteria standardised on these responses."""
    sds_C = values_NC.std(axis=0)
    # A criterion that is equal for all responses carries no information. Its sd of 1 keeps its standardised value at 0.
    sds_C = np.where(sds_C > 1e-12, sds_C, 1.0)
    means = tuple(values_NC.mean(axis=0).tolist())
    return CriteriaModel(domain, tuple(weights), tuple(weights.values()), means, tuple(sds_C.tolist()))


def bradley_terry_weights(difference_PC: FloatArray, *, precision: float) -> FloatArray:
    """Return the weights w, (C,), that minimise Σ log(1 + e^(−w·d)) + precision/2 · |w|² with d = chosen − rejected.

    This is the Bradley–Terry likelihood: logistic regression on differences, in which every label is 1.
    """
    pairs, columns = difference_PC.shape
    labels_P = np.ones(pairs)
    weights_1P = np.ones((1, pairs))
    fitted_DC, _ = fit_weighted(difference_PC, labels_P, weights_1P, precision_M=np.full(columns, precision))
    return np.asarray(fitted_DC[0])


def kept_criteria(agreement_C: FloatArray, signs_C: FloatArray, minimum: float) -> BoolArray:
    """Return a mask, (C,), of the criteria that agree with the labels by at least `minimum` and have the right sign.

    If no criterion qualifies, the one with the highest agreement is selected.

    Args:
        agreement_C: rank correlation of each criterion with the labels.
        signs_C: expected sign; 0 allows both.
    """
    # The correlation of a constant criterion is undefined; it counts as no agreement.
    agreement_C = np.nan_to_num(agreement_C)
    signed_C = np.where(signs_C == 0, np.abs(agreement_C), agreement_C * np.sign(signs_C))
    kept_C = signed_C >= minimum
    if not kept_C.any():
        kept_C[int(np.argmax(signed_C))] = True
    return np.asarray(kept_C)
