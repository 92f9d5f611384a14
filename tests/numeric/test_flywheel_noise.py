"""Why a further cycle chooses by |m|: on labels of pure noise, choosing by m lets labels leak through the folds."""

from __future__ import annotations

import numpy as np
import pytest

from rlhf_lab.algorithms.pair_selection.selection import prompt_folds, top_fraction


def accuracies(signed: bool, repeats: int = 40, count: int = 600, width: int = 50) -> tuple[float, float]:
    """Mean cross-fitted accuracy of ridge regressions on coin tosses, in the first cycle and in the second."""
    rng, found = np.random.default_rng(0), []
    for repeat in range(repeats):
        x_ND, y_N = rng.normal(size=(count, width)), rng.choice([-1.0, 1.0], count)
        fold_N = prompt_folds([str(i) for i in range(count)], 3, seed=repeat)
        first_N = cycle(x_ND, y_N, fold_N, np.arange(count))
        pool = top_fraction(first_N if signed else np.abs(first_N), 0.5, fold_N)
        found.append([(margin_N > 0).mean() for margin_N in (first_N, cycle(x_ND, y_N, fold_N, pool))])
    first, second = np.mean(found, axis=0)
    return float(first), float(second)


def cycle(x_ND: np.ndarray, y_N: np.ndarray, fold_N: np.ndarray, pool: np.ndarray) -> np.ndarray:
    """Margin of each row under the model trained on the pool's rows in other folds, (N,)."""
    margin_N = np.empty(len(y_N))
    for fold in range(3):
        rows = pool[fold_N[pool] != fold]
        weight_D = np.linalg.solve(x_ND[rows].T @ x_ND[rows] + np.eye(x_ND.shape[1]), x_ND[rows].T @ y_N[rows])
        inside = fold_N == fold
        margin_N[inside] = x_ND[inside] @ weight_D * y_N[inside]
    return margin_N


@pytest.mark.parametrize(("signed", "low", "high"), [(False, 0.46, 0.5), (True, 0.6, 0.66)])
def test_the_second_cycle_on_noise(signed, low, high):
    """40 x 600 tosses: the standard error of each mean is about 0.004."""
    first, second = accuracies(signed)
    assert first == pytest.approx(0.5, abs=0.015)
    assert low < second < high
