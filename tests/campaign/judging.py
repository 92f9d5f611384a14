"""Array version of a study's comparison of two levels: data frames would take most of the time of a simulation."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import stats

from rlhf_lab.core.types import FloatArray
from rlhf_lab.statistics.inference import Comparison, min_sd, min_sd_of_outcomes, paired_difference
from rlhf_lab.studies.replicates import errors_near_bounds


def compare(a_S: FloatArray, b_S: FloatArray, a_errors_S: FloatArray, b_errors_S: FloatArray) -> Comparison:
    """Return what `replicates.level_difference` returns for the jobs of two levels.

    Args:
        a_errors_S, b_errors_S: `replicates.errors_near_bounds` of the jobs.
    """
    values, errors = np.concatenate([a_S, b_S]), np.concatenate([a_errors_S, b_errors_S])
    if np.isin(values, (0.0, 1.0)).all() and np.isnan(errors).all():  # simulated outcomes, one per run
        least_S = min_sd_of_outcomes(a_S, b_S)
    else:
        least_S = np.hypot(min_sd(a_S, a_errors_S), min_sd(b_S, b_errors_S))
    return paired_difference(a_S, b_S, np.arange(a_S.size), min_sd_N=least_S)


def errors_of_rates(rates: FloatArray, rows: int) -> FloatArray:
    """The errors that bound the spread of rates of so many rows, in the shape of `rates`."""
    low, high = wilson_bounds(rates, rows)
    columns = {"rate": rates.ravel(), "rate/low": low.ravel(), "rate/high": high.ravel(), "rate/n": rows}
    return errors_near_bounds(pd.DataFrame(columns), "rate").reshape(rates.shape)


def wilson_bounds(rates: FloatArray, rows: int) -> tuple[FloatArray, FloatArray]:
    """The bounds of `statistics.wilson` for many rates at once."""
    z2 = float(stats.norm.ppf(0.975)) ** 2
    centre = (rates + z2 / (2 * rows)) / (1 + z2 / rows)
    half = np.sqrt(z2 * (rates * (1 - rates) / rows + z2 / (4 * rows**2))) / (1 + z2 / rows)
    return centre - half, centre + half
