"""Selection of pairs: DPO's headroom m − β·c, and why a further cycle chooses by |m|: labels leak through folds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlhf_lab.algorithms.pair_selection.selection import headroom, prompt_folds, top_fraction
from rlhf_lab.losses.preference import PairLogps, idealised_ranking


def test_by_hand():
    """The reference prefers the rejected reply by 2 nats: c = 2.

    At β = 0.5 the preference needs log-odds above β·c = 1: m = 1.5 has 0.5 to spare, m = 0.5 lacks 0.5. The critical β
    of m = 1.5 is m/c = 0.75. Where the reference ranks the pair right (c = −2), even m = −0.5 is above β·c = −1.
    """
    margin, gap = np.array([1.5, 0.5, -0.5]), np.array([-2.0, -2.0, 2.0])
    assert headroom(margin, gap, beta=0.5).tolist() == [0.5, -0.5, 0.5]
    assert headroom(margin[:1], gap[:1], beta=0.75) == pytest.approx(0.0)
    assert headroom(margin[:1], gap[:1], beta=0.8)[0] < 0 < headroom(margin[:1], gap[:1], beta=0.7)[0]


@pytest.mark.parametrize("beta", [0.05, 0.3, 1.0, 4.0])
def test_it_is_what_the_optimum_ranks_right(beta):
    """π* ∝ π_ref·exp(r/β) on five replies, first against second: β times their log-ratio is the headroom."""
    rng = np.random.default_rng(1)
    ref, reward = np.log(rng.dirichlet(np.ones(5), 400)), rng.normal(0, 2, (400, 5))
    optimum = ref + reward / beta
    optimum -= np.logaddexp.reduce(optimum, axis=1, keepdims=True)
    found = headroom(reward[:, 0] - reward[:, 1], ref[:, 0] - ref[:, 1], beta=beta)
    assert found == pytest.approx(beta * (optimum[:, 0] - optimum[:, 1]))
    assert ((found > 0) == (optimum[:, 0] > optimum[:, 1])).all()
    logps = PairLogps(torch.tensor(ref[:, 0]), torch.tensor(ref[:, 1]))
    p_chosen = torch.sigmoid(torch.tensor(reward[:, 0] - reward[:, 1]))
    assert ((found > 0) == idealised_ranking(logps, p_chosen, beta=beta).numpy()).all()
    assert 0 < (found > 0).mean() < 1


def test_the_loss_at_the_threshold():
    """A pair is flipped exactly where its DPO loss is −log σ(β·c) (arXiv:2405.19534, theorem 4.1): c = 2, β = 0.5."""
    from rlhf_lab.losses.preference import dpo

    ref = PairLogps(torch.tensor([-5.0]), torch.tensor([-3.0]))
    tie = PairLogps(torch.tensor([-4.0]), torch.tensor([-4.0]))
    loss = dpo(tie, ref, beta=0.5).per_pair_B
    assert float(loss) == pytest.approx(-np.log(1 / (1 + np.exp(-1.0))))


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
