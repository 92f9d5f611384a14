"""Over-optimisation curves against planted ones, and best-of-n against the enumeration of all subsets."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import norm

from rlhf_lab.core.errors import NumericError
from rlhf_lab.evaluations.best_of_n import estimates
from rlhf_lab.statistics.best_of_n import best_of_n, best_of_n_kl, choice_probabilities
from rlhf_lab.statistics.overoptimization import fit_curve, fit_over_seeds, held_out_advantage


def test_two_points_by_hand():
    # bon through (½, ¾) and (2, 0): ½(α − β/2) = ¾ and 2(α − 2β) = 0 give α = 2, β = 1; d* = 2/2 = 1, gain 4/4 = 1.
    fit = fit_curve("bon", [0.5, 2], [0.75, 0])
    assert (fit.alpha, fit.beta) == pytest.approx((2, 1))
    assert (fit.peak_d, fit.peak_kl, fit.peak_gain) == pytest.approx((1, 1, 1))
    assert fit.position == "inside"
    # rl through (1, 1) and (e, 0): α = 1 and e(α − β) = 0 give α = β = 1; d* = exp(0) = 1, gain β·d* = 1.
    fit = fit_curve("rl", [1, math.e], [1, 0])
    assert (fit.alpha, fit.beta, fit.peak_d, fit.peak_gain) == pytest.approx((1, 1, 1, 1))


@pytest.mark.parametrize("form", ["bon", "rl"])
def test_the_peak_is_the_curves_maximum(form):
    curve = fit_curve(form, [0.4, 1.0, 1.9, 3.0], [0.5, 0.9, 1.0, 0.2])
    d = np.linspace(0, 4, 400_001)
    gain = curve.gain(d)
    assert d[gain.argmax()] == pytest.approx(curve.peak_d, abs=1e-4)
    assert gain.max() == pytest.approx(curve.peak_gain)
    assert gain[0] == 0


def test_the_reference_and_unscored_points_change_nothing():
    d, gain = [0.4, 1.0, 1.9], [0.5, 0.9, 1.0]
    assert fit_curve("rl", [0.0, *d, 2.2], [0.0, *gain, math.nan]) == fit_curve("rl", d, gain)


def test_r_squared_by_hand():
    # One basis column is orthogonal to the residual by construction: rows (1, −1), (1, −1), (2, −4); gains 1, 3, 0.
    # The two points at d = 1 average to 2, the third is met exactly: residuals −1, 1, 0; SSR 2 over 3 − 2.
    fit = fit_curve("bon", [1, 1, 2], [1, 3, 0])
    assert fit.r_squared == pytest.approx(1 - 2 / (14 / 3))  # about the mean 4/3: 1/9 + 25/9 + 16/9


def test_no_turn_is_flagged():
    for form, straight in (("bon", lambda d: d * (1 + 0.1 * d)), ("rl", lambda d: d * (1 + 0.1 * math.log(d)))):
        curve = fit_curve(form, [1, 2, 3], [straight(d) for d in (1, 2, 3)])
        assert curve.beta == pytest.approx(-0.1)
        assert curve.position == "never"
        assert curve.peak_kl == curve.peak_gain == math.inf


def test_a_peak_outside_the_data_is_flagged():
    beyond = fit_curve("bon", [1, 2], [0.9, 1.6])  # d(1 − .1 d): peak at 5
    assert beyond.peak_d == pytest.approx(5) and beyond.position == "beyond"
    before = fit_curve("bon", [2, 3], [-2, -6])  # d(1 − d): peak at ½
    assert before.peak_d == pytest.approx(0.5) and before.position == "before"
    falling = fit_curve("bon", [1, 2], [-1, -3])
    assert (
        falling.alpha < 0 < falling.beta and falling.peak_d == falling.peak_gain == 0 and falling.position == "before"
    )


def test_points_that_cannot_be_fitted_are_refused():
    with pytest.raises(NumericError, match="two or more distances"):
        fit_curve("rl", [0.0, 1.0, 1.0], [0.0, 0.5, 0.6])
    with pytest.raises(NumericError, match="negative"):
        fit_curve("rl", [-1.0, 1.0], [0.5, 0.6])
    with pytest.raises(NumericError, match="one gain per distance"):
        fit_curve("rl", [1.0, 2.0], [0.5])


def planted(form: str, seeds: int, seed: int, *, alpha: float = 1.2, beta: float = 0.5, noise: float = 0.05):
    """Points of `seeds` runs whose α and β scatter, with noise on top: (d, gain, seed)."""
    rng = np.random.default_rng(seed)
    rows = []
    for run in range(seeds):
        a, b = alpha + rng.normal(0, 0.05), beta + rng.normal(0, 0.02)
        for d in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0):
            bent = d if form == "bon" else math.log(d) if d else 0.0
            rows.append((d, d * (a - b * bent) + (rng.normal(0, noise) if d else 0), run))
    return tuple(np.array(column) for column in zip(*rows, strict=True))


@pytest.mark.parametrize(("form", "peak_kl"), [("bon", 1.2**2), ("rl", math.exp(2 * (1.2 / 0.5 - 1)))])
def test_planted_curves_are_covered_at_the_stated_rate(form, peak_kl):
    """The t interval over three seeds holds the planted α, β and peak in about 95 of 100 studies."""
    model_copies = np.zeros(3)
    for trial in range(200):
        found = fit_over_seeds(form, *planted(form, 3, trial)).over_seeds
        assert found.peak_kl is not None
        truths = ((found.alpha, 1.2), (found.beta, 0.5), (found.peak_kl, peak_kl))
        model_copies += [estimate.low <= truth <= estimate.high for estimate, truth in truths]
    assert (model_copies / 200 >= 0.90).all(), model_copies / 200


def test_a_seed_that_does_not_turn_leaves_the_peak_undefined():
    d, gain, seed = planted("bon", 4, 0)
    gain = np.where(seed == 3, d * (1 + 0.01 * d), gain)
    found = fit_over_seeds("bon", d, gain, seed)
    assert [fit.position for fit in found.fits] == ["inside"] * 3 + ["never"]
    assert found.over_seeds.peak_kl is None and found.over_seeds.peak_gain is None


def test_one_seed_has_no_interval_and_a_seed_with_one_distance_is_left_out():
    d, gain, seed = planted("rl", 1, 0)
    found = fit_over_seeds("rl", [*d, 1.0], [*gain, 9.0], [*seed, 7])
    assert found.left_out == 1 and len(found.fits) == 1
    assert not found.over_seeds.alpha.bounded
    with pytest.raises(NumericError, match="several checkpoints"):
        fit_over_seeds("rl", [0.0, 1.0], [0.0, 1.0], [0, 0])


def test_the_mean_of_the_seeds_curves_is_the_curve_of_their_mean_parameters():
    found = fit_over_seeds("rl", *planted("rl", 3, 0))
    at_one = found.over_seeds.alpha.mean  # ln 1 = 0
    assert found.gain([1.0]) == pytest.approx([at_one])


def test_best_of_two_of_three_by_hand():
    # Subsets of ranks {1,2}, {1,3}, {2,3}: rank 2 is best once, rank 3 twice. Weights 0, 1/3, 2/3.
    assert choice_probabilities([1, 2, 3], 2) == pytest.approx([0, 1 / 3, 2 / 3])
    # proxy 5, 1, 3 → ranks 3, 1, 2; gold 0, 6, 9: (9 + 2·0)/3 = 3.
    assert best_of_n([5, 1, 3], [0, 6, 9], [2]) == pytest.approx([3])


def test_the_gain_of_best_of_n_per_nat_starts_from_the_policys_own_reward():
    """Best of 4 has proxy 1.5 and 2.5 at prompts where the policy has .5 and 1.5: a gain of 1 for ln 4 − ¾ nats."""
    found = estimates(4, {"proxy": np.array([1.5, 2.5])}, np.array([0.5, 1.5]))
    assert found["kl"].mean == pytest.approx(0.636294, abs=1e-6)
    assert found["reward_per_nat"].mean == pytest.approx(1 / 0.636294, abs=1e-5)
    assert found["proxy"].mean == 2.0


def test_best_of_n_is_the_mean_over_all_subsets():
    rng = np.random.default_rng(0)
    proxy, gold = rng.normal(size=6), rng.normal(size=6)
    for n in range(1, 7):
        subsets = [max(chosen, key=lambda i: proxy[i]) for chosen in itertools.combinations(range(6), n)]
        assert best_of_n(proxy, gold, [n])[0] == pytest.approx(gold[subsets].mean())


def test_ties_are_broken_at_random():
    proxy, gold = np.array([1, 2, 2, 0, 2, 1]), np.array([3.0, 1, 5, 2, 0, 8])
    for n in range(1, 7):
        means = []
        for chosen in itertools.combinations(range(6), n):
            best = proxy[list(chosen)].max()
            means.append(np.mean([gold[i] for i in chosen if proxy[i] == best]))
        assert best_of_n(proxy, gold, [n])[0] == pytest.approx(np.mean(means))


def test_unscored_samples_cannot_be_chosen():
    found = best_of_n([1, math.nan, 3], [7, 100, 9], [1, 2, 3])
    assert found[:2] == pytest.approx([8, 9]) and math.isnan(found[2])
    assert np.isnan(best_of_n([math.nan], [1], [1])).all()


def test_weights_are_probabilities_for_large_n():
    one, some, all_of_them = (choice_probabilities(range(4096), n) for n in (1, 64, 4096))
    assert one == pytest.approx(np.full(4096, 1 / 4096))
    assert some.sum() == pytest.approx(1) and all_of_them[-1] == 1
    with pytest.raises(NumericError, match="n must be at least 1"):
        best_of_n([1, 2, 3], [1, 2, 3], [0])


def test_the_kl_of_best_of_n_is_exact_without_ties():
    # The best of n has density n·u^(n−1) over the proxy's quantile u: KL = ∫ n u^(n−1) ln(n u^(n−1)) du.
    u = (np.arange(2_000_000) + 0.5) / 2_000_000
    for n in (1, 2, 8):
        density = n * u ** (n - 1)
        assert best_of_n_kl(n) == pytest.approx((density * np.log(density)).mean(), abs=1e-5)


def test_a_seed_is_predicted_by_the_curves_of_the_others():
    """Against scipy: both curves fitted by least squares to one seed, the normal log-density of the other's gains."""
    rng = np.random.default_rng(0)
    distances = np.linspace(0.2, 3.0, 12)
    seeds = [(distances, distances * (1.0 - 0.8 * np.log(distances)) + rng.normal(0, 0.05, 12)) for _ in range(2)]
    columns = {
        "rl": np.stack([distances, -distances * np.log(distances)], axis=1),
        "bon": np.stack([distances, -(distances**2)], axis=1),
    }

    def log_density(form: str, fitted: int, held_out: int) -> float:
        coefficients, squares, *_ = np.linalg.lstsq(columns[form], seeds[fitted][1], rcond=None)
        sd = np.sqrt(squares[0] / (12 - 2))
        return float(norm.logpdf(seeds[held_out][1], columns[form] @ coefficients, sd).mean())

    expected = [log_density("rl", fitted, 1 - fitted) - log_density("bon", fitted, 1 - fitted) for fitted in (1, 0)]
    advantage = held_out_advantage("rl", seeds)
    assert advantage is not None and advantage.mean == pytest.approx(np.mean(expected)) and advantage.mean > 0
    rival = held_out_advantage("bon", seeds)
    assert rival is not None and rival.mean == pytest.approx(-advantage.mean)
    assert held_out_advantage("rl", seeds[:1]) is None  # nothing is held out
