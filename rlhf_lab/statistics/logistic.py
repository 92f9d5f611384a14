"""Logistic regression of outcomes between 0 and 1: many weighted fits at once, and single fits with clustered errors.

Bradley-Terry strengths, length-controlled win rates and the biases of a judge are estimated by it. An outcome of ½,
a tie, counts as half a win and half a loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats
from scipy.optimize import linprog

from rlhf_lab.core.errors import NumericError
from rlhf_lab.core.types import BoolArray, FloatArray
from rlhf_lab.statistics.estimates import LEVEL, Estimate, cluster_labels, floats

STEPS = 60
"""Maximum number of Newton steps; about six are needed if a finite estimate exists."""
LARGEST_STEP = 4.0
"""Maximum change of a linear predictor in one Newton step: far from the optimum a full step may overshoot."""
TOLERANCE = 1e-9
"""Change of linear predictors below which a fit has converged."""
DRAWS_AT_ONCE = 2_000_000
"""Maximum number of array elements per chunk of draws; chunks are fitted one after another to limit memory."""


def sigmoid(logit: ArrayLike) -> FloatArray:
    """Return 1/(1 + e^−x), without overflow."""
    return 0.5 * (1 + np.tanh(0.5 * np.asarray(logit, dtype=np.float64)))


def fit_weighted(
    design_RM: FloatArray,
    outcome_R: FloatArray,
    weight_DR: FloatArray,
    *,
    precision_M: FloatArray | None = None,
    flat_MM: FloatArray | None = None,
) -> tuple[FloatArray, BoolArray]:
    """Compute D weighted maximum-likelihood fits of P(outcome = 1) = σ(x·β) by Newton's method.

    Args:
        design_RM, outcome_R: rows x, and outcomes in [0, 1].
        weight_DR: weight of each row in each fit.
        precision_M: 1/variance of a Gaussian prior around 0 on each coefficient; None means no prior.
        flat_MM: matrix added to the second derivatives in directions that do not change the likelihood, such as a
            common shift of all strengths. The coefficients then stay at 0 in these directions.

    Returns:
        coefficients (D, M), and (D,) True if the fit converged. A fit without a finite estimate does not converge.
    """
    draws, rows = weight_DR.shape
    chunk = max(1, DRAWS_AT_ONCE // max(rows, 1))
    coefficients_DM = np.zeros((draws, design_RM.shape[1]))
    converged_D = np.zeros(draws, dtype=bool)
    for start in range(0, draws, chunk):
        part = slice(start, start + chunk)
        fitted = _newton(design_RM, outcome_R, weight_DR[part], precision_M, flat_MM)
        coefficients_DM[part], converged_D[part] = fitted
    return coefficients_DM, converged_D


def _newton(
    design_RM: FloatArray,
    outcome_R: FloatArray,
    weight_DR: FloatArray,
    precision_M: FloatArray | None,
    flat_MM: FloatArray | None,
) -> tuple[FloatArray, BoolArray]:
    """Fit all draws of one chunk; see `fit_weighted`."""
    columns = design_RM.shape[1]
    precision_M = np.zeros(columns) if precision_M is None else precision_M
    # A small ridge keeps the matrix regular if a draw leaves a coefficient undetermined.
    ridge_MM = np.diag(precision_M + 1e-10) + (0.0 if flat_MM is None else flat_MM)
    # Outer products are computed once; the curvature of every draw is then a single matrix product.
    products_RMM = (design_RM[:, :, None] * design_RM[:, None, :]).reshape(len(design_RM), -1)
    coefficients_DM = np.zeros((len(weight_DR), columns))
    converged_D = np.zeros(len(weight_DR), dtype=bool)
    active = np.arange(len(weight_DR))  # draws that have not converged yet
    for _ in range(STEPS):
        weight_aR = weight_DR[active]
        probability_aR = sigmoid(coefficients_DM[active] @ design_RM.T)
        gradient_aM = (weight_aR * (outcome_R - probability_aR)) @ design_RM - precision_M * coefficients_DM[active]
        curvature_aR = weight_aR * probability_aR * (1 - probability_aR)
        curvature_aMM = (curvature_aR @ products_RMM).reshape(-1, columns, columns) + ridge_MM
        step_aM = np.linalg.solve(curvature_aMM, gradient_aM[:, :, None])[:, :, 0]
        change_a = np.abs(step_aM @ design_RM.T).max(axis=1, initial=0.0)
        # Shrink steps that change a linear predictor by more than LARGEST_STEP; leave the others unchanged.
        shrink_a = np.minimum(1.0, LARGEST_STEP / np.maximum(change_a, LARGEST_STEP))
        step_aM *= shrink_a[:, None]
        coefficients_DM[active] += step_aM
        converged_D[active] = change_a < TOLERANCE
        active = active[change_a >= TOLERANCE]
        if not active.size:
            break
    return coefficients_DM, converged_D


def is_separated(design_NM: FloatArray, outcome_N: FloatArray) -> bool:
    """Return True if the data are separable: the likelihood increases forever in some direction (Konis 2007).

    In such a direction d, x·d ≥ 0 for every won row, ≤ 0 for every lost row and = 0 for every tied row, and it is not
    0 everywhere. A linear programme searches for it. No finite estimate exists for separable data.
    """
    sign_N = np.where(outcome_N == 1, 1.0, np.where(outcome_N == 0, -1.0, 0.0))
    # The rows of losses are negated, so that a separating direction has x·d ≥ 0 in every decided row.
    decided_NM = sign_N[sign_N != 0, None] * design_NM[sign_N != 0]
    tied_NM = design_NM[sign_N == 0]
    if not len(decided_NM):
        return False
    # Maximise Σ x·d over −1 ≤ d ≤ 1; it is above 0 exactly if a separating direction exists.
    found = linprog(
        -decided_NM.sum(axis=0),
        A_ub=-decided_NM,
        b_ub=np.zeros(len(decided_NM)),
        A_eq=tied_NM if len(tied_NM) else None,
        b_eq=np.zeros(len(tied_NM)) if len(tied_NM) else None,
        bounds=(-1, 1),
    )
    return bool(found.fun < -1e-7)  # tolerance of the solver


@dataclass(frozen=True)
class LogisticFit:
    """Coefficients of a logistic regression with their cluster-robust covariance.

    Attributes:
        coefficients_M, covariance_MM: estimates in logits; NaN and inf if there is no finite estimate.
        problem: reason why there is no finite estimate; empty if there is one.
        by_prior: True if the estimate is finite only because of a prior.
    """

    coefficients_M: FloatArray
    covariance_MM: FloatArray
    n: int
    clusters: int
    unscored: int
    problem: str = ""
    by_prior: bool = False

    def estimate(self, column: int, *, level: float = LEVEL) -> Estimate:
        """Return a coefficient with its t interval on G − 1 degrees of freedom."""
        value = float(self.coefficients_M[column])
        variance = float(self.covariance_MM[column, column])
        if not math.isfinite(value) or not math.isfinite(variance) or self.clusters < 2:
            return Estimate(value, -math.inf, math.inf, self.n, self.clusters, level, self.unscored)
        t_quantile = float(stats.t.ppf((1 + level) / 2, self.clusters - 1))
        half_width = t_quantile * math.sqrt(variance)
        return Estimate(value, value - half_width, value + half_width, self.n, self.clusters, level, self.unscored)


def clustered_logistic(
    design_NM: FloatArray, outcome_N: ArrayLike, clusters_N: ArrayLike, *, separated_sd: float | None = None
) -> LogisticFit:
    """Fit a logistic regression with a cluster-robust (CR1) covariance.

        H = Σ p_i(1 − p_i)·x_i x_iᵀ    S_g = Σ_{i in g} (y_i − p_i)·x_i    V = G/(G − 1) · H⁻¹ (Σ_g S_g S_gᵀ) H⁻¹

    Args:
        design_NM: (N, M) columns; include a column of ones for an intercept.
        outcome_N: (N,) outcomes in [0, 1]; NaN = unscored. A row with a NaN in its design is also left out.
        clusters_N: (N,) cluster of each row.
        separated_sd: standard deviation, in logits, of a Gaussian prior around 0 on each coefficient, which is used
            only for separable data. The estimate is then the posterior mode, and the covariance that of the Laplace
            approximation, (H + 1/sd²·I)⁻¹: residuals of separable data are nearly 0, so the CR1 covariance would be
            too small. None reports the problem instead.
    Raises:
        NumericError: the lengths differ, or an outcome is outside [0, 1].
    """
    outcome_N = floats(outcome_N)
    clusters_N = cluster_labels(clusters_N)
    if not len(design_NM) == len(outcome_N) == len(clusters_N):
        raise NumericError(
            f"{len(outcome_N)} outcomes, {len(design_NM)} design rows and {len(clusters_N)} cluster labels were given; "
            "give one of each per row"
        )
    scored_N = ~(np.isnan(outcome_N) | np.isnan(design_NM).any(axis=1))
    design_nM, outcome_n = design_NM[scored_N], outcome_N[scored_N]
    if np.any((outcome_n < 0) | (outcome_n > 1)):
        raise NumericError("a logistic regression needs outcomes between 0 and 1, or NaN for unscored rows")
    _, cluster_n = np.unique(clusters_N[scored_N], return_inverse=True)
    n, columns = design_nM.shape
    clusters = int(cluster_n.max()) + 1 if n else 0
    unscored = int((~scored_N).sum())
    problem = _why_not_finite(design_nM, outcome_n)
    if problem == SEPARATION and separated_sd is not None:
        precision_M = np.full(columns, separated_sd**-2)
        coefficients_DM, _ = fit_weighted(design_nM, outcome_n, np.ones((1, n)), precision_M=precision_M)
        hessian_MM = _curvature(design_nM, sigmoid(design_nM @ coefficients_DM[0])) + np.diag(precision_M)
        laplace_MM: FloatArray = np.linalg.inv(hessian_MM).astype(np.float64)
        return LogisticFit(coefficients_DM[0], laplace_MM, n, clusters, unscored, by_prior=True)
    if problem:
        missing_M = np.full(columns, np.nan)
        unbounded_MM = np.full((columns, columns), np.inf)
        return LogisticFit(missing_M, unbounded_MM, n, clusters, unscored, problem)
    coefficients_DM, _ = fit_weighted(design_nM, outcome_n, np.ones((1, n)))
    probability_n = sigmoid(design_nM @ coefficients_DM[0])
    # Sandwich estimator: inverse curvature around the sum of squared cluster scores.
    curvature_MM = _curvature(design_nM, probability_n)
    sums_GM = np.zeros((clusters, columns))
    # Scores S_g of the clusters; np.add.at adds up rows of the same cluster.
    np.add.at(sums_GM, cluster_n, (outcome_n - probability_n)[:, None] * design_nM)
    inverse_MM = np.linalg.inv(curvature_MM)
    correction = clusters / (clusters - 1) if clusters > 1 else math.inf
    with np.errstate(invalid="ignore"):  # with one cluster the correction is inf, and inf · 0 is NaN
        covariance_MM = correction * (inverse_MM @ (sums_GM.T @ sums_GM) @ inverse_MM)
    return LogisticFit(coefficients_DM[0], covariance_MM, n, clusters, unscored)


SEPARATION = "the columns predict every outcome without an exception (separation)"
"""Reason why separable data have no finite estimate; see `is_separated`."""


def _curvature(design_nM: FloatArray, probability_n: FloatArray) -> FloatArray:
    """Return H = Σ p_i(1 − p_i)·x_i x_iᵀ, the negative second derivative of the log-likelihood, (M, M)."""
    weighted_nM: FloatArray = design_nM * (probability_n * (1 - probability_n))[:, None]
    return weighted_nM.T @ design_nM


def _why_not_finite(design_nM: FloatArray, outcome_n: FloatArray) -> str:
    """Return the reason why some coefficient has no finite estimate; empty if all have one."""
    if not len(design_nM):
        return "no outcome is scored"
    if np.linalg.matrix_rank(design_nM) < design_nM.shape[1]:
        return "a column is constant, or is a linear combination of the others"
    if is_separated(design_nM, outcome_n):
        return SEPARATION
    return ""
