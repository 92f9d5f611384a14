"""Bradley-Terry: the arithmetic, two libraries and statsmodels, Ford's condition, how often intervals are right."""

from __future__ import annotations

import math
from itertools import combinations

import choix
import evalica
import numpy as np
import pytest
import statsmodels.api as sm

from rlhf_lab.core.errors import NumericError
from rlhf_lab.packs.judging.statistics import ranking as rank_statistics
from rlhf_lab.packs.judging.statistics.ranking import (
    Comparisons,
    bradley_terry,
    comparisons,
    connection,
    draw_strengths,
    rank,
)
from rlhf_lab.statistics.logistic import clustered_logistic, fit_weighted, is_separated, sigmoid
from rlhf_lab.statistics.resampling import resample_weights


def simulated(
    rng: np.random.Generator,
    strength_K: np.ndarray,
    prompts: int,
    per_prompt: int,
    *,
    spread: float = 1.0,
    ties: float = 0.1,
) -> Comparisons:
    """A league in which every prompt suits some players: their strengths there differ by `spread` from the usual."""
    pairs = np.array(list(combinations(range(len(strength_K)), 2)))
    prompt_N = np.repeat(np.arange(prompts), per_prompt)
    chosen_N = np.concatenate([rng.choice(len(pairs), per_prompt, replace=False) for _ in range(prompts)])
    here_PK = strength_K + spread * rng.normal(size=(prompts, len(strength_K)))
    first_N, second_N = pairs[chosen_N].T
    probability_N = sigmoid(here_PK[prompt_N, first_N] - here_PK[prompt_N, second_N])
    score_N = (rng.random(len(prompt_N)) < probability_N).astype(float)
    score_N[rng.random(len(prompt_N)) < ties] = 0.5
    names = [f"p{player}" for player in range(len(strength_K))]
    return comparisons([names[i] for i in first_N], [names[j] for j in second_N], score_N, prompt_N)


def in_order(league: Comparisons, strength_K: np.ndarray) -> np.ndarray:
    """Strengths of p0, p1, …, whichever appeared first."""
    return strength_K[[league.names.index(f"p{player}") for player in range(len(strength_K))]]


def test_two_players_by_hand():
    # A wins 3, loses 1, ties 2: score (3 + 1)/6 = 2/3, so θ_A − θ_B = log 2, and about their mean ±log(2)/2.
    league = comparisons("AAAAAB", "BBBBBA", [1, 1, 1, 0, 0.5, 0.5], range(6))
    strength_K, style_F = bradley_terry(league)
    assert strength_K == pytest.approx([math.log(2) / 2, -math.log(2) / 2])
    assert style_F.size == 0
    assert league.wins_KK.tolist() == [[0, 4], [2, 0]]


def test_three_players_by_hand():
    # A beats B in 2 of 3, B beats C in 2 of 3, A beats C in 4 of 5: odds 2, 2 and 4 = 2·2 fit exactly.
    first, second = "AAABBBAAAAA", "BBBCCCCCCCC"
    strength_K, _ = bradley_terry(comparisons(first, second, [1, 1, 0, 1, 1, 0, 1, 1, 1, 1, 0], range(11)))
    assert strength_K == pytest.approx([math.log(2), 0, -math.log(2)])


def test_strengths_are_those_of_choix_and_evalica():
    rng = np.random.default_rng(0)
    league = simulated(rng, np.array([1.0, 0.4, 0.0, -0.3, -1.1]), 60, 4)
    strength_K, _ = bradley_terry(league)
    # choix knows no ties: every comparison counts twice, a tie once for each side.
    wins = []
    for first, second, score in zip(league.first_N, league.second_N, league.score_N, strict=True):
        wins += [(first, second)] * round(2 * score) + [(second, first)] * round(2 - 2 * score)
    theirs_K = choix.opt_pairwise(5, wins, alpha=0.0, tol=1e-10)
    assert strength_K == pytest.approx(theirs_K - theirs_K.mean(), abs=1e-6)
    winner = {1.0: evalica.Winner.X, 0.5: evalica.Winner.Draw, 0.0: evalica.Winner.Y}
    firsts = [league.names[player] for player in league.first_N]
    seconds = [league.names[player] for player in league.second_N]
    winners = [winner[score] for score in league.score_N]
    scores = evalica.bradley_terry(firsts, seconds, winners, tolerance=1e-12, limit=10_000).scores
    logs_K = np.log([scores[name] for name in league.names])
    assert strength_K == pytest.approx(logs_K - logs_K.mean(), abs=1e-5)


def test_a_draw_without_a_finite_estimate_has_the_prior_of_choix():
    drawn = draw_strengths(comparisons("AAB", "BBC", [1, 1, 1], range(3)), 5)
    assert drawn.degenerate_D.all()
    for strength_K, weight_P in zip(drawn.strength_DK, resample_weights(3, 5), strict=True):
        wins = np.repeat([(0, 1), (0, 1), (1, 2)], weight_P.astype(int), axis=0)
        # choix maximises Σ log P − α·Σθ², so a Gaussian prior of sd 4 is α = 1/(2·4²)
        theirs_K = choix.opt_pairwise(3, wins.tolist(), alpha=1 / 32, tol=1e-12)
        assert strength_K == pytest.approx(theirs_K, abs=1e-6)


def test_style_is_fitted_jointly_as_by_statsmodels():
    rng = np.random.default_rng(1)
    names = rng.permuted(np.tile(["p0", "p1", "p2"], (400, 1)), axis=1)[:, :2]
    player_N2 = np.char.replace(names, "p", "").astype(int)
    # p0 is better by 1, and p1 writes longer responses, which win.
    length_N = rng.normal(size=400) + 1.5 * ((player_N2[:, 0] == 1) * 1.0 - (player_N2[:, 1] == 1))
    logit_N = 1.0 * ((player_N2[:, 0] == 0) * 1.0 - (player_N2[:, 1] == 0)) + 0.8 * length_N
    score_N = (rng.random(400) < sigmoid(logit_N)).astype(float)
    prompt_N = np.arange(400) // 4
    league = comparisons(names[:, 0], names[:, 1], score_N, prompt_N, style={"length": length_N})
    ranking = rank(league, draws=400)
    design_N3 = np.column_stack([*((player_N2[:, 0] == k) * 1.0 - (player_N2[:, 1] == k) for k in (0, 1)), length_N])
    theirs = sm.GLM(score_N, design_N3, family=sm.families.Binomial()).fit()  # p2 stands at 0
    assert ranking.style["length"].mean == pytest.approx(theirs.params[2], abs=1e-6)
    gap = ranking.strengths["p0"].mean - ranking.strengths["p1"].mean
    assert gap == pytest.approx(theirs.params[0] - theirs.params[1], abs=1e-6)
    assert ranking.style["length"].low < 0.8 < ranking.style["length"].high
    # Without style p1 passes for better than p2 by what its length earns; with it they are equal.
    simple = rank(comparisons(names[:, 0], names[:, 1], score_N, prompt_N), draws=400)
    assert simple.win_probabilities["p1", "p2"].low > 0.5
    equal = ranking.win_probabilities["p1", "p2"]
    assert equal.low < 0.5 < equal.high


def test_a_style_that_says_nothing_is_refused():
    scores, prompts = [1, 1, 1, 1], range(4)  # A beats B twice, and B beats A twice
    with pytest.raises(NumericError, match="bold is 0 in every comparison"):
        bradley_terry(comparisons("ABAB", "BABA", scores, prompts, style={"bold": [0, 0, 0, 0]}))
    with pytest.raises(NumericError, match="linear function of the players or of the others"):
        bradley_terry(comparisons("ABAB", "BABA", scores, prompts, style={"length": [1, -1, 1, -1]}))
    with pytest.raises(NumericError, match="explain every outcome"):
        bradley_terry(comparisons("AAAA", "BBBB", [1, 0, 1, 0], prompts, style={"length": [2, -1, 3, -2]}))


def test_the_clustered_logistic_regression_is_that_of_statsmodels():
    rng = np.random.default_rng(2)
    design_N3 = np.column_stack([np.ones(120), rng.normal(size=(120, 2))])
    cluster_N = rng.integers(0, 15, 120)
    outcome_N = (rng.random(120) < sigmoid(design_N3 @ [0.3, 0.8, -0.5])).astype(float)
    fit = clustered_logistic(design_N3, outcome_N, cluster_N)
    model = sm.GLM(outcome_N, design_N3, family=sm.families.Binomial())
    robust = model.fit(cov_type="cluster", cov_kwds={"groups": cluster_N, "use_correction": False})
    assert fit.coefficients_M == pytest.approx(robust.params, abs=1e-7)
    assert fit.covariance_MM == pytest.approx(robust.cov_params() * 15 / 14, rel=1e-5)


def test_separation_is_found():
    design_N2 = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0], [1.0, 4.0]])
    assert is_separated(design_N2, np.array([0.0, 0.0, 1.0, 1.0]))
    assert not is_separated(design_N2, np.array([0.0, 1.0, 0.0, 1.0]))
    # Ties on both sides of the only jump: the line through them is fixed, and so is the slope.
    assert not is_separated(design_N2, np.array([0.0, 0.5, 0.5, 1.0]))


def test_without_connection_the_players_are_named():
    # A beats B; C and D beat each other; nobody crosses. A has no loss.
    league = comparisons("ABACD", "BAEDC", [1, 0, 1, 1, 1], range(5))
    found = connection(league)
    assert not found.connected
    assert ("C", "D") in found.groups
    with pytest.raises(NumericError, match="no finite estimate"):
        bradley_terry(league)
    problems = " | ".join(found.problems)
    assert "B: lost every comparison" in problems
    assert "A: won every comparison" in problems
    assert "no scored comparison with C" in problems
    assert any({"A", "B", "E"} & set(pair) and {"C", "D"} & set(pair) for pair in found.judge_next)


def test_the_rest_of_a_league_is_rated():
    # A, B and C each beat one another; D lost all it played.
    league = comparisons("ABCABC" + "ABC", "BCAACB"[:3] + "CAA"[:3] + "DDD", [1, 1, 1, 1, 1, 1, 1, 1, 1], range(9))
    ranking = rank(league, draws=50)
    assert set(ranking.order) == {"A", "B", "C"}
    assert ranking.connection.groups[1] == ("D",)
    assert ranking.n == 6
    # Leaving D out is the limit of the likelihood: strengths of the others are those of a D infinitely far below.
    rated_K, _ = bradley_terry(league.restrict_to([league.names.index(name) for name in "ABC"]))
    assert {n: ranking.strengths[n].mean for n in "ABC"} == pytest.approx(dict(zip("ABC", rated_K, strict=True)))


def test_a_draw_is_a_fit_of_the_drawn_prompts():
    rng = np.random.default_rng(3)
    league = simulated(rng, np.array([0.5, 0.0, -0.5]), 25, 2)
    selected = draw_strengths(league, 5)
    weights_DP = resample_weights(league.prompts, 5)
    for draw in range(5):
        repeats_N = weights_DP[draw][league.prompt_N].astype(int)
        rows = np.repeat(np.arange(len(league.score_N)), repeats_N)
        again = Comparisons(
            league.names,
            league.first_N[rows],
            league.second_N[rows],
            league.score_N[rows],
            league.prompt_N[rows],
            league.style_NF[rows],
        )
        assert bradley_terry(again)[0] == pytest.approx(selected.strength_DK[draw], abs=1e-6)
    assert not selected.degenerate_D.any()


def test_draws_without_a_finite_estimate_are_counted_and_widen_the_interval():
    # A loses once in 12: a draw lacks that prompt with probability (11/12)¹² = .352.
    league = comparisons(["A"] * 12, ["B"] * 12, [1] * 11 + [0], range(12))
    ranking = rank(league, draws=1000)
    assert ranking.degenerate / 1000 == pytest.approx((11 / 12) ** 12, abs=0.05)
    upper = ranking.strengths["A"].high - ranking.strengths["A"].mean
    assert upper > ranking.strengths["A"].mean - ranking.strengths["A"].low - 1
    assert ranking.strengths["A"].high > math.log(12 / 1) / 2


def test_more_comparisons_of_the_same_prompts_do_not_narrow_an_interval():
    rng = np.random.default_rng(4)
    league = simulated(rng, np.array([0.5, -0.5]), 40, 1, ties=0.0)
    names = ["p0" if first == 0 else "p1" for first in league.first_N]
    others = ["p1" if name == "p0" else "p0" for name in names]
    once = rank(comparisons(names, others, league.score_N, league.prompt_N))
    copies = rank(comparisons(names * 5, others * 5, np.tile(league.score_N, 5), np.tile(league.prompt_N, 5)))
    assert copies.strengths["p0"].low == pytest.approx(once.strengths["p0"].low, abs=1e-6)


def test_neighbours_say_how_many_prompts_would_decide():
    rng = np.random.default_rng(5)
    strength_K = np.array([0.25, 0.0, -2.0])
    league = simulated(rng, strength_K, 60, 3, spread=0.0, ties=0.0)
    ranking = rank(league)
    close, far = ranking.neighbours
    assert {close.above, close.below} == {"p0", "p1"}
    assert far.below == "p2"
    assert far.distinguishable and far.prompts_to_decide is None
    assert not close.distinguishable
    # (z_.975 + z_.8)²·se²·P/gap² with se from the draws: decides four times in five at the observed gap.
    gap = abs(ranking.strengths["p0"].mean - ranking.strengths["p1"].mean)
    estimate = close.win_probability
    error = (math.log(estimate.high / (1 - estimate.high)) - math.log(estimate.low / (1 - estimate.low))) / 2 / 1.96
    assert close.prompts_to_decide == pytest.approx(60 * (2.8016 * error / gap) ** 2, rel=0.2)
    assert ranking.ranks["p2"] == (3, 3)
    assert ranking.ranks["p0"] == (1, 2) and ranking.ranks["p1"] == (1, 2)


@pytest.mark.parametrize(("prompts", "undecided", "decided"), [(5, 2.9, 3.1), (100, 1.92, 1.95), (100_000, 1.89, 1.91)])
def test_a_difference_of_few_prompts_has_to_be_larger_to_decide_a_rank(prompts, undecided, decided):
    """Draws lie −2, −1.9, … 2 about the observed difference; 95 % of the distances, 39 of 41, are up to 1.9.

    Of many prompts a difference above 1.9 decides. Of five it does not: t with 4 degrees of freedom has its quantile at
    2.7764, where a normal has 1.96, and draws of five are too narrow by √(4/5). It takes 1.9·(2.7764/1.96)·√(5/4) =
    3.009; of a hundred 1.9·(1.9842/1.96)·√(100/99) = 1.933.
    """
    for difference, ranks in ((undecided, [(1, 2), (1, 2)]), (decided, [(1, 1), (2, 2)])):
        strength_K = np.array([difference, 0.0])
        draws_DK = np.stack([difference + np.linspace(-2, 2, 41), np.zeros(41)], axis=1)
        assert rank_statistics._rank_intervals(strength_K, draws_DK, prompts) == ranks


@pytest.mark.parametrize(("difference", "ranks"), [(1.95, (1, 3)), (2.05, (1, 1))])
def test_a_place_is_decided_by_all_differences_at_once(difference, ranks):
    """Draws of both others lie −2, −1.9, … 2 about their strength, the largest of one where the other's are small.

    Of 41 distances to one other 39 are up to 1.9; of the larger one of both distances four are 2.0, and 95 % are up to
    2.0. A difference of 1.95 would decide a rank between two players, and does not among three.
    """
    steps_D = np.linspace(-2, 2, 41)
    draws_DK = np.stack([np.full(41, difference), steps_D, np.roll(steps_D, 20)], axis=1)
    intervals = rank_statistics._rank_intervals(np.array([difference, 0.0, 0.0]), draws_DK, 100_000)
    assert intervals[0] == ranks


def test_one_prompt_decides_no_rank():
    draws_DK = np.stack([np.linspace(8.9, 9.1, 11), np.zeros(11)], axis=1)
    assert rank_statistics._rank_intervals(np.array([9.0, 0.0]), draws_DK, 1) == [(1, 2), (1, 2)]


def test_bad_comparisons_are_refused():
    with pytest.raises(NumericError, match="A is compared with itself in 1 rows"):
        comparisons("AA", "AB", [1, 0], [0, 1])
    with pytest.raises(NumericError, match="must be 1, ½ or 0"):
        comparisons("A", "B", [2], [0])
    with pytest.raises(NumericError, match="different lengths"):
        comparisons("AB", "BA", [1, 0], [0])
    assert comparisons("AB", "BA", [1, None], [0, 1]).unscored == 1


@pytest.mark.slow
@pytest.mark.parametrize("prompts", [12, 30, 100])
def test_intervals_cover_in_simulated_leagues(prompts: int):
    """Nominal 95 %: ≥ 90 % of strengths, of win probabilities and of ranks, in 200 leagues of four players.

    Prompts suit some players, so comparisons of one prompt are dependent, and the strengths that a league is about are
    those of infinitely many prompts. These are measured with 40,000.
    """
    rng = np.random.default_rng(6)
    dialled_K = np.array([0.9, 0.3, -0.3, -0.9])
    population = simulated(rng, dialled_K, 40_000, 6)
    truth_K = in_order(population, bradley_terry(population)[0])
    strengths, probabilities, ranks = [], [], []
    for number in range(200):
        league = simulated(rng, dialled_K, prompts, 4)
        ranking = rank(league, draws=300, seed=number)
        for player in range(4):
            name = f"p{player}"
            if name not in ranking.order:  # twelve prompts may leave a player without a win
                continue
            estimate = ranking.strengths[name]
            low, high = ranking.ranks[name]
            if len(ranking.order) == 4:  # strengths are about the mean of those rated
                strengths.append(estimate.low <= truth_K[player] <= estimate.high)
                ranks.append(low <= player + 1 <= high)
            for other in range(player):
                if f"p{other}" in ranking.order:
                    model_copies = ranking.win_probabilities[name, f"p{other}"]
                    probabilities.append(
                        model_copies.low <= sigmoid(truth_K[player] - truth_K[other]) <= model_copies.high
                    )
    assert np.mean(strengths) >= 0.9
    assert np.mean(probabilities) >= 0.9
    assert np.mean(ranks) >= 0.95  # simultaneous over all others, so more than nominal


def test_a_fit_that_has_no_end_says_so():
    design_RM = np.array([[1.0], [1.0]])
    _, converged_D = fit_weighted(design_RM, np.array([1.0, 0.0]), np.array([[3.0, 0.0], [3.0, 1.0]]))
    assert converged_D.tolist() == [False, True]
