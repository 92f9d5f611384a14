"""A weighted sum of standardised criteria: what the first four steps of a reward design make.

    grade = Σ weight · (value − mean) / sd          score = slope · grade, log-odds of a preference

The file format is one JSON file, `criteria_reward.json`.
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
        domain: whose criteria they are, see `sets.criteria_of`.
        names, weights, means, sds: of each criterion; one that is left out has weight 0. Means and standard deviations
            are those of training replies, in units of the criterion.
        slope: log-odds of a preference per point of the grade; 1 where nobody calibrated it.
    """

    domain: str
    names: tuple[str, ...]
    weights: tuple[float, ...]
    means: tuple[float, ...]
    sds: tuple[float, ...]
    slope: float = 1.0

    def standardised(self, values_NC: FloatArray) -> FloatArray:
        """Criteria with mean 0 and standard deviation 1 on training replies, (N, C)."""
        return (values_NC - np.array(self.means)) / np.array(self.sds)

    def __call__(self, values_NC: FloatArray) -> FloatArray:
        """Scores, (N,)."""
        # elementwise, so that a score does not depend on the replies beside it to the last bit
        grade_N = (self.standardised(values_NC) * np.array(self.weights)).sum(axis=1)
        return np.asarray(self.slope * grade_N)

    def with_weights(self, weights_C: FloatArray) -> CriteriaModel:
        return replace(self, weights=tuple(weights_C.tolist()))

    def calibrated(self, chosen_PC: FloatArray, rejected_PC: FloatArray) -> CriteriaModel:
        """The model whose slope maps a difference of grades to the log-odds of the labels of these pairs.

        A negative slope says that the labels contradict the grade. Pairs that the grade orders without exception would
        have an infinite slope: a prior with standard deviation 1/√`PRIOR_PRECISION` keeps it finite.
        """
        plain = replace(self, slope=1.0)
        difference_P1 = (plain(chosen_PC) - plain(rejected_PC))[:, None]
        return replace(self, slope=float(bradley_terry_weights(difference_P1, precision=PRIOR_PRECISION)[0]))

    def save(self, folder: Path, facts: Mapping[str, Any]) -> None:
        """Write the file; `facts` are further entries of it, for people."""
        write_text(folder / MODEL_FILE, json.dumps({**facts, **asdict(self)}, indent=1))

    @classmethod
    def load(cls, folder: Path, names: Sequence[str]) -> CriteriaModel:
        """Read what `save` wrote. Raises ArtifactError where its criteria are not `names`, those of the data."""
        entries = read_json(folder / MODEL_FILE)
        if not isinstance(entries, dict):
            raise ConfigError(f"{folder} has no {MODEL_FILE}; name the folder of a run of algorithm=criteria_reward")
        if tuple(entries["names"]) != tuple(names):
            raise ArtifactError(
                f"{folder / MODEL_FILE} weighs {', '.join(entries['names'])}; the criteria of these data are "
                f"{', '.join(names)}: train it on data of the same domain"
            )
        columns = {key: tuple(entries[key]) for key in ("names", "weights", "means", "sds")}
        return cls(domain=entries["domain"], slope=entries["slope"], **columns)


PRIOR_PRECISION = 0.1
"""1/variance of the prior around 0 on a slope and on the weights of standardised criteria, log-odds."""


def hand_weighted(domain: str, weights: Mapping[str, float], values_NC: FloatArray) -> CriteriaModel:
    """Hand weights, on criteria standardised on these replies."""
    sds_C = values_NC.std(axis=0)
    # a criterion that is the same for all replies says nothing, and stays 0
    sds_C = np.where(sds_C > 1e-12, sds_C, 1.0)
    means = tuple(values_NC.mean(axis=0).tolist())
    return CriteriaModel(domain, tuple(weights), tuple(weights.values()), means, tuple(sds_C.tolist()))


def bradley_terry_weights(difference_PC: FloatArray, *, precision: float) -> FloatArray:
    """Weights w, (C,), that minimise Σ log(1 + e^(−w·d)) + precision/2 · |w|², d = chosen − rejected of each pair."""
    pairs, columns = difference_PC.shape
    fitted_DC, _ = fit_weighted(
        difference_PC, np.ones(pairs), np.ones((1, pairs)), precision_M=np.full(columns, precision)
    )
    return np.asarray(fitted_DC[0])


def kept_criteria(agreement_C: FloatArray, signs_C: FloatArray, least: float) -> BoolArray:
    """Criteria that validation keeps, (C,): those that agree with the labels by at least `least`, in their sign.

    Args:
        agreement_C: rank correlation of each criterion with the labels.
        signs_C: what sign it should have; 0 for either. Where none qualifies the one that agrees most is kept.
    """
    agreement_C = np.nan_to_num(agreement_C)
    signed_C = np.where(signs_C == 0, np.abs(agreement_C), agreement_C * np.sign(signs_C))
    kept_C = signed_C >= least
    if not kept_C.any():
        kept_C[int(np.argmax(signed_C))] = True
    return np.asarray(kept_C)
