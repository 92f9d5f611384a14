"""Count false verdicts of `study.until=decided` in studies without a difference, resampled from real runs.

    python tests/campaign/resampled.py DIR --metrics gold kl --studies 200

DIR has finished runs of one condition that differ only in their seed, at least 60 of them, at any depth. A study takes
the runs in random order and splits them into two sides of equal size. Both sides have the same condition, so every
verdict is false. A study claims a difference in each metric, on the metric's scale, looks after every seed from the
third on, and stops at its first verdict after Holm's adjustment. The sides of a study share no run, but studies share
runs, so that the number of false verdicts varies more than that of independent studies.

At 5 %, more than 16 false verdicts in 200 independent studies have a probability of 2.4 %. The command then ends with
code 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parents[level]) for level in range(3))

import numpy as np
import yaml
from scipy import stats

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.metrics import scale_of
from rlhf_lab.core.types import FloatArray
from rlhf_lab.results.rundir import read_run
from rlhf_lab.statistics.inference import min_sd
from rlhf_lab.statistics.sequential import beyond_p, looks_at
from rlhf_lab.studies.replicates import log_scale, logit_scale

ALPHA = 0.05
LEAST_RUNS = 60
TOO_MANY = 0.025
"""Probability of at least so many false verdicts, by chance, below which the command ends with code 1."""


def read_values(root: Path, metrics: Sequence[str]) -> dict[str, FloatArray]:
    """Return metric → its value in every completed run, on the metric's scale, (N,) each.

    Raises:
        DataError: there are too few completed runs, two runs have the same seed, or a run lacks a metric.
    """
    directories = sorted({file.parent for file in root.rglob("result.json")})
    runs = [run for run in map(read_run, directories) if run.status == "completed"]
    if len(runs) < LEAST_RUNS:
        raise DataError(
            f"{root} has {len(runs)} completed runs; at least {LEAST_RUNS} of one condition, with different seeds, are "
            "needed"
        )
    seeds = [(yaml.safe_load(run.config) or {}).get("seed") for run in runs]
    if len(set(seeds)) < len(seeds):
        raise DataError(f"{root} has several runs with the same seed; name a directory with runs of one condition")
    values = {}
    for name in metrics:
        estimates = [run.metric(name) for run in runs]
        missing = [str(run.path) for run, estimate in zip(runs, estimates, strict=True) if estimate is None]
        if missing:
            raise DataError(f"metric {name} is missing in {missing[0]}; name metrics that all runs have")
        means_N = np.array([estimate.mean for estimate in estimates if estimate])
        rows_N = np.array([estimate.n for estimate in estimates if estimate], dtype=float)
        values[name] = on_scale(name, means_N, rows_N)
    return values


def on_scale(name: str, means_N: FloatArray, rows_N: FloatArray) -> FloatArray:
    """Return values on the scale on which a study that stops when decided judges a metric."""
    sd_N = min_sd(means_N)
    if scale_of(name) == "log":
        return log_scale(means_N, sd_N)[0]
    return logit_scale(means_N, sd_N, rows_N)[0] if scale_of(name) == "logit" else means_N


def false_verdicts(values: Mapping[str, FloatArray], studies: int, seed: int = 0) -> FloatArray:
    """Return the number of seeds after which each study has a false verdict, (studies,); inf if it has none."""
    rng = np.random.default_rng(seed)
    runs = len(next(iter(values.values())))
    pairs = runs // 2
    decided = np.full(studies, np.inf)
    for study in range(studies):
        order = rng.permutation(runs)
        first, second = order[:pairs], order[pairs : 2 * pairs]
        p_CL = np.stack([beyond_p(looks_at(value_N[first] - value_N[second]), 0.0) for value_N in values.values()])
        # Holm decides something exactly if the smallest p-value is at most α over the number of claims
        reached = np.flatnonzero(p_CL.min(axis=0) <= ALPHA / len(values))
        if len(reached):
            decided[study] = reached[0] + 1
    return decided


def summary(values: Mapping[str, FloatArray], decided: FloatArray) -> str:
    """Return the number of false verdicts in words."""
    runs = len(next(iter(values.values())))
    found = decided[np.isfinite(decided)]
    when = f", after {np.median(found):.0f} seeds (median)" if len(found) else ""
    return (
        f"{len(found)} of {len(decided)} studies without a difference have a verdict{when}: {runs} runs, "
        f"{runs // 2} seeds per study, claims on {', '.join(values)}; expected at 5 %: at most {ALPHA * len(decided):g}"
    )


def is_too_many(decided: FloatArray) -> bool:
    """Return True if so many false verdicts would be improbable at a level of 5 %."""
    count = int(np.isfinite(decided).sum())
    return bool(stats.binom.sf(count - 1, len(decided), ALPHA) < TOO_MANY)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", type=Path, help="directory of finished runs of one condition")
    parser.add_argument("--metrics", nargs="+", required=True, help="metrics that a study makes claims about")
    parser.add_argument("--studies", type=int, default=200, help="number of resampled studies")
    options = parser.parse_args(arguments)
    try:
        values = read_values(options.directory, options.metrics)
    except DataError as error:
        print(error, file=sys.stderr)
        return 2
    decided = false_verdicts(values, options.studies)
    print(summary(values, decided))
    return int(is_too_many(decided))


if __name__ == "__main__":
    sys.exit(main())
