"""Bradley-Terry: strengths of players from comparisons, and the uncertainty of their order.

Player i is preferred to player j with probability σ(θ_i − θ_j) (Zermelo 1929; Bradley & Terry 1952); strengths θ are
logits with mean 0 over the rated players. A tie is half a win for each side. Style differences (length, lists, …) may
be fitted jointly; θ are then strengths at equal style.

Comparisons of responses to one prompt are not independent, so the bootstrap resamples prompts with all their
comparisons.

Not implemented: ties with a parameter of their own (Rao & Kupper 1967, Davidson 1970), a home advantage (average the
two orders of a judge first), and strengths that differ between kinds of prompts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations, product

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats
from scipy.sparse.csgraph import connected_components

from rlhf_lab.core.errors import NumericError
from rlhf_lab.core.types import BoolArray, FloatArray
from rlhf_lab.statistics.estimates import LEVEL, POWER, Estimate, cluster_labels, floats
from rlhf_lab.statistics.logistic import fit_weighted, is_separated, sigmoid
from rlhf_lab.statistics.resampling import DRAWS, bootstrap_estimate, resample_weights

DEGENERATE_SD = 4.0
"""Standard deviation, in logits, of the prior that is used for a bootstrap draw without a finite estimate. A player
that wins all of 30 comparisons in a draw is then 5.2 logits ahead, so the draw widens the interval.
"""
MOST_PROMPTS = 1_000_000
"""Maximum suggested number of prompts. Players that need more are practically equal."""


@dataclass(frozen=True)
class Comparisons:
    """N scored comparisons of K players.

    names: (K,) players in the order of their first appearance.
    first_N, second_N: index of the two players.
    score_N: 1 if first is preferred, ½ for a tie, 0 if second is.
    prompt_N: index of the prompt, 0 … P − 1.
    style_NF: style of the first response minus that of the second, one column per name in `style_names`.
    style_names: (F,) names of the style differences.
    unscored: number of comparisons left out because they have no score.
    """

    names: tuple[str, ...]
    first_N: np.ndarray
    second_N: np.ndarray
    score_N: FloatArray
    prompt_N: np.ndarray
    style_NF: FloatArray
    style_names: tuple[str, ...] = ()
    unscored: int = 0

    @property
    def prompts(self) -> int:
        return int(np.unique(self.prompt_N).size)

    @property
    def wins_KK(self) -> FloatArray:
        """(K, K) wins of the row's player against the column's player, ties half."""
        wins_KK = np.zeros((len(self.names), len(self.names)))
        np.add.at(wins_KK, (self.first_N, self.second_N), self.score_N)
        np.add.at(wins_KK, (self.second_N, self.first_N), 1 - self.score_N)
        return wins_KK

    def restrict_to(self, players: Sequence[int]) -> Comparisons:
        """Return the comparisons in which both sides are among these players, renumbered."""
        position = {player: index for index, player in enumerate(players)}
        kept_N = np.isin(self.first_N, players) & np.isin(self.second_N, players)
        _, prompt_n = np.unique(self.prompt_N[kept_N], return_inverse=True)
        return Comparisons(
            names=tuple(self.names[player] for player in players),
            first_N=np.array([position[player] for player in self.first_N[kept_N]], dtype=int),
            second_N=np.array([position[player] for player in self.second_N[kept_N]], dtype=int),
            score_N=self.score_N[kept_N],
            prompt_N=prompt_n,
            style_NF=self.style_NF[kept_N],
            style_names=self.style_names,
            unscored=self.unscored,
        )


def comparisons(
    first_N: Sequence[str],
    second_N: Sequence[str],
    score_N: ArrayLike,
    prompts_N: ArrayLike,
    *,
    style: Mapping[str, ArrayLike] | None = None,
) -> Comparisons:
    """Check N comparisons and replace names and prompts by indices.

    Args:
        first_N, second_N: names of the two players.
        score_N: 1, ½ or 0 for the first one; NaN = unscored: such a comparison is left out, and is not a tie.
        prompts_N: prompt of each comparison, any hashable kind.
        style: name → (N,) style of the first response minus that of the second.
    """
    scores = floats(score_N)
    prompts = cluster_labels(prompts_N)
    columns = {name: floats(values) for name, values in (style or {}).items()}
    lengths = {len(first_N), len(second_N), len(scores), len(prompts), *map(len, columns.values())}
    if len(lengths) > 1:
        raise NumericError(f"columns of comparisons have different lengths ({sorted(lengths)}); pass one value per row")
    if np.any((scores < 0) | (scores > 1)):
        raise NumericError("the score of a comparison must be 1, ½ or 0 for the first player, or NaN")
    same = [name for name, other in zip(first_N, second_N, strict=True) if name == other]
    if same:
        raise NumericError(f"{same[0]} is compared with itself in {len(same)} rows; leave these rows out")
    names = tuple(dict.fromkeys(name for pair in zip(first_N, second_N, strict=True) for name in pair))
    number = {name: index for index, name in enumerate(names)}
    scored_N = ~np.isnan(scores)
    style_NF = np.stack(list(columns.values()), axis=1) if columns else np.zeros((len(scores), 0))
    if np.isnan(style_NF[scored_N]).any():
        raise NumericError("a style difference is NaN; pass a number for every scored comparison")
    _, prompt_n = np.unique(prompts[scored_N], return_inverse=True)
    return Comparisons(
        names=names,
        first_N=np.array([number[name] for name in first_N], dtype=int)[scored_N],
        second_N=np.array([number[name] for name in second_N], dtype=int)[scored_N],
        score_N=scores[scored_N],
        prompt_N=prompt_n,
        style_NF=style_NF[scored_N],
        style_names=tuple(columns),
        unscored=int((~scored_N).sum()),
    )


@dataclass(frozen=True)
class LeagueConnectivity:
    """Groups of players that can be rated on one scale, given all comparisons.

    Attributes:
        groups: players that can be rated together, the largest group first. All strengths have finite estimates if
            there is one group (Ford 1957): a chain of wins or ties leads from every player to every other.
        problems: one sentence per reason why there are several groups.
        judge_next: pairs of players whose comparison could connect two groups.
    """

    groups: tuple[tuple[str, ...], ...]
    problems: tuple[str, ...] = ()
    judge_next: tuple[tuple[str, str], ...] = ()

    @property
    def connected(self) -> bool:
        return len(self.groups) <= 1


def connection(league: Comparisons) -> LeagueConnectivity:
    """Check Ford's condition on the graph with an edge from every player to those that it beat or tied with."""
    wins_KK = league.wins_KK
    # strongly connected components: players that reach each other by wins and ties
    count, group_K = connected_components(wins_KK > 0, directed=True, connection="strong")
    members: list[list[int]] = [np.flatnonzero(group_K == group).tolist() for group in range(count)]
    members.sort(key=lambda group: (-len(group), group[0]))
    groups = tuple(tuple(league.names[player] for player in group) for group in members)
    if count <= 1:
        return LeagueConnectivity(groups)
    problems = []
    judge_next = []
    # first kind of problem: players without any comparison with the main group
    islands, island_K = connected_components(wins_KK + wins_KK.T > 0, directed=False)
    main = members[0][0]
    for island in range(islands):
        if island == island_K[main]:
            continue
        here = np.flatnonzero(island_K == island)
        names = ", ".join(league.names[player] for player in here)
        problems.append(f"{names}: no scored comparison with {league.names[main]} or anyone compared with it")
        judge_next.append((league.names[here[0]], league.names[main]))
    # second kind: players that were compared with others, but won or lost all of these comparisons
    for group in members[1:]:
        reached = np.flatnonzero(island_K == island_K[group[0]])
        others = [int(player) for player in reached if player not in group]
        if not others:
            continue
        # a tie counts as half a win for both, so it connects in both directions
        won = wins_KK[np.ix_(group, others)].sum() > 0
        lost = wins_KK[np.ix_(others, group)].sum() > 0
        outcome = "lost every comparison with players above them and won every one with players below"
        if not (won and lost):
            outcome = f"{'won' if won else 'lost'} every comparison with the others"
        names = ", ".join(league.names[player] for player in group)
        problems.append(f"{names}: {outcome}, so the distance has no finite estimate without a prior")
        judge_next.append(_min_comparisons(league, wins_KK, group, others))
    return LeagueConnectivity(groups, tuple(problems), tuple(dict.fromkeys(judge_next)))


def _min_comparisons(
    league: Comparisons, wins_KK: FloatArray, group: Sequence[int], others: Sequence[int]
) -> tuple[str, str]:
    """Return a player of `group` and one of `others` that have been compared with each other least often."""
    counts_KK = wins_KK + wins_KK.T
    player, other = min(product(group, others), key=lambda pair: (counts_KK[pair], *pair))
    return league.names[player], league.names[other]


@dataclass(frozen=True)
class Neighbours:
    """Two consecutive players of the ranking.

    Attributes:
        win_probability: probability that `above` is preferred to `below`.
        prompts_to_decide: number of prompts, with as many comparisons each as now, that detects a difference as large
            as the observed one with probability `POWER`; None if it is detected already or needs more than
            MOST_PROMPTS.
    """

    above: str
    below: str
    win_probability: Estimate
    prompts_to_decide: int | None

    @property
    def distinguishable(self) -> bool:
        return self.win_probability.low > 0.5


@dataclass(frozen=True)
class Ranking:
    """Strengths of the players that can be rated together, strongest first.

    Attributes:
        strengths: name → logits about the mean of the rated players.
        win_probabilities: (a, b) → P(a is preferred to b), at equal style.
        ranks: name → best and worst rank allowed by the differences to all others, jointly at LEVEL.
        style: name of a style difference → its coefficient, in logits per unit.
        connection: groups that can be rated together; players outside the first group have no strength here.
        prompts, n: number of prompts and comparisons among the rated players.
        draws, degenerate: number of bootstrap draws, and of those without a finite estimate, which are fitted with a
            Gaussian prior of DEGENERATE_SD.
    """

    order: tuple[str, ...]
    strengths: dict[str, Estimate]
    win_probabilities: dict[tuple[str, str], Estimate]
    ranks: dict[str, tuple[int, int]]
    style: dict[str, Estimate]
    neighbours: tuple[Neighbours, ...]
    connection: LeagueConnectivity
    prompts: int
    n: int
    draws: int
    degenerate: int


def bradley_terry(league: Comparisons) -> tuple[FloatArray, FloatArray]:
    """Return maximum-likelihood strengths (K,) with mean 0, and coefficients of style (F,).

    Raises:
        NumericError: no finite estimate exists; the message gives the reason.
    """
    connected = connection(league)
    if not connected.connected:
        raise NumericError(f"strengths have no finite estimate: {'; '.join(connected.problems)}")
    design_NM = _design(league)
    if league.style_names:
        _check_style(league, design_NM)
    players = len(league.names)
    weight_1N = np.ones((1, len(league.score_N)))
    coefficients_DM, _ = fit_weighted(design_NM, league.score_N, weight_1N, flat_MM=_shift_of_strengths(league))
    return coefficients_DM[0, :players], coefficients_DM[0, players:]


def _check_style(league: Comparisons, design_NM: FloatArray) -> None:
    columns = zip(league.style_names, league.style_NF.T, strict=True)
    constant = [name for name, column in columns if not column.any()]
    if constant:
        raise NumericError(f"the style difference {', '.join(constant)} is 0 in every comparison; leave it out")
    # strengths have K − 1 free parameters, because their mean is 0
    if np.linalg.matrix_rank(design_NM) < len(league.names) - 1 + len(league.style_names):
        raise NumericError("a style difference is a linear function of the players or of the others; leave one out")
    # Ford's condition considers players only; together with style they may still explain every outcome
    if is_separated(design_NM, league.score_N):
        raise NumericError("players and style together explain every outcome; judge more prompts")


def _design(league: Comparisons) -> FloatArray:
    """Return the design matrix (N, K + F): +1 for the first player, −1 for the second, then the style differences."""
    rows = np.arange(len(league.score_N))
    players_NK = np.zeros((len(rows), len(league.names)))
    players_NK[rows, league.first_N] = 1.0
    players_NK[rows, league.second_N] = -1.0
    return np.concatenate([players_NK, league.style_NF], axis=1)


def _shift_of_strengths(league: Comparisons) -> FloatArray:
    """Return the (M, M) curvature of the direction that the likelihood leaves open: a common shift of all strengths."""
    players = len(league.names)
    columns = players + len(league.style_names)
    # any positive curvature works: it only fixes the mean of the strengths at 0
    flat_MM = np.zeros((columns, columns))
    flat_MM[:players, :players] = 1.0
    return flat_MM


def rank(league: Comparisons, *, draws: int = DRAWS, seed: int = 0) -> Ranking:
    """Return strengths, win probabilities and ranks with intervals from a bootstrap over prompts.

    Intervals are expanded percentile intervals (`resampling.expanded_tail`). The interval of a rank follows from the
    differences to all other players at once (Mogstad et al. 2024, arXiv:2001.04785). A player's best rank is one more
    than the number of players above it by more than c standard errors. c is the quantile of the maximum of
    |difference* − difference| / se over the others. The worst rank is defined likewise.

    Only the largest group that can be rated together is rated (`LeagueConnectivity`).
    """
    connected = connection(league)
    rated = league
    if not connected.connected:
        rated = league.restrict_to([league.names.index(name) for name in connected.groups[0]])
    if len(rated.names) < 2:
        return Ranking((), {}, {}, {}, {}, (), connected, 0, 0, 0, 0)
    strength_K, style_F = bradley_terry(rated)
    selected = draw_strengths(rated, draws, seed=seed)
    return _summarise(rated, strength_K, style_F, selected, connected)


@dataclass(frozen=True)
class StrengthDraws:
    """Bootstrap draws: strengths (D, K), coefficients of style (D, F), and flags of degenerate draws (D,)."""

    strength_DK: FloatArray
    style_DF: FloatArray
    degenerate_D: BoolArray


def draw_strengths(league: Comparisons, draws: int, *, seed: int = 0) -> StrengthDraws:
    """Fit bootstrap draws of prompts, each with all its comparisons."""
    # equal rows are merged and weighted by their count, which makes the fits much smaller
    design_NM = _design(league)
    rows_RM, row_N = np.unique(np.column_stack([design_NM, league.score_N]), axis=0, return_inverse=True)
    counts_PR = np.zeros((league.prompts, len(rows_RM)))
    np.add.at(counts_PR, (league.prompt_N, row_N.ravel()), 1.0)
    weight_DR = resample_weights(league.prompts, draws, seed=seed) @ counts_PR
    design_RM = rows_RM[:, :-1]
    score_R = rows_RM[:, -1]
    flat_MM = _shift_of_strengths(league)
    coefficients_DM, converged_D = fit_weighted(design_RM, score_R, weight_DR, flat_MM=flat_MM)
    degenerate_D = ~converged_D | ~_draws_connected(design_RM[:, : len(league.names)], score_R, weight_DR)
    if degenerate_D.any():
        precision_M = np.full(design_RM.shape[1], DEGENERATE_SD**-2)
        coefficients_DM[degenerate_D], _ = fit_weighted(
            design_RM, score_R, weight_DR[degenerate_D], precision_M=precision_M, flat_MM=flat_MM
        )
    players = len(league.names)
    strength_DK = coefficients_DM[:, :players]
    return StrengthDraws(strength_DK, coefficients_DM[:, players:], degenerate_D)


def _draws_connected(player_RK: FloatArray, score_R: FloatArray, weight_DR: FloatArray) -> BoolArray:
    """Return (D,) flags of draws in which Ford's condition holds: wins and ties connect every pair of players."""
    players = player_RK.shape[1]
    first_R = player_RK.argmax(axis=1)
    second_R = player_RK.argmin(axis=1)
    reach_DKK = np.zeros((len(weight_DR), players, players), dtype=np.float32)
    for row, (first, second, score) in enumerate(zip(first_R, second_R, score_R, strict=True)):
        sampled_D = weight_DR[:, row] > 0
        if score > 0:
            reach_DKK[sampled_D, first, second] = 1.0
        if score < 1:
            reach_DKK[sampled_D, second, first] = 1.0
    # every player reaches itself, so squaring keeps shorter chains
    reach_DKK[:, np.arange(players), np.arange(players)] = 1.0
    # reachability by repeated squaring of the adjacency matrix, which doubles the maximum length of a chain
    for _ in range(math.ceil(math.log2(max(players, 2)))):
        reach_DKK = np.minimum(reach_DKK @ reach_DKK, 1.0)
    return np.asarray((reach_DKK > 0).all(axis=(1, 2)))


def _summarise(
    league: Comparisons,
    strength_K: FloatArray,
    style_F: FloatArray,
    drawn: StrengthDraws,
    connected: LeagueConnectivity,
) -> Ranking:
    counts = {"clusters": league.prompts, "n": len(league.score_N), "unscored": league.unscored}
    # draws of ties do not vary, but do not prove that the next outcome is a tie: then there is no interval
    varies = bool((league.score_N != 0.5).any())

    def estimate(value: float, draws_D: FloatArray) -> Estimate:
        return bootstrap_estimate(value, draws_D if varies else draws_D[:0], **counts)

    order = [int(player) for player in np.argsort(-strength_K, kind="stable")]
    names = league.names
    win_probabilities = {}
    for i, j in permutations(order, 2):
        draws_D = sigmoid(drawn.strength_DK[:, i] - drawn.strength_DK[:, j])
        value = float(sigmoid(strength_K[i] - strength_K[j]))
        win_probabilities[names[i], names[j]] = estimate(value, draws_D)
    neighbours = [
        _neighbours(league, above, below, strength_K, drawn.strength_DK, win_probabilities)
        for above, below in pairwise(order)
    ]
    ranks = _rank_intervals(strength_K, drawn.strength_DK, league.prompts)
    return Ranking(
        order=tuple(names[player] for player in order),
        strengths={names[i]: estimate(float(strength_K[i]), drawn.strength_DK[:, i]) for i in order},
        win_probabilities=win_probabilities,
        ranks={names[i]: ranks[i] for i in order},
        style={name: estimate(float(style_F[f]), drawn.style_DF[:, f]) for f, name in enumerate(league.style_names)},
        neighbours=tuple(neighbours),
        connection=connected,
        prompts=league.prompts,
        n=len(league.score_N),
        draws=len(drawn.strength_DK),
        degenerate=int(drawn.degenerate_D.sum()),
    )


def _neighbours(
    league: Comparisons,
    above: int,
    below: int,
    strength_K: FloatArray,
    strength_DK: FloatArray,
    win_probabilities: Mapping[tuple[str, str], Estimate],
) -> Neighbours:
    names = league.names[above], league.names[below]
    probability = win_probabilities[names]
    gap = float(strength_K[above] - strength_K[below])
    error = float((strength_DK[:, above] - strength_DK[:, below]).std())
    needed = None
    if probability.low <= 0.5 and gap > 0:
        # the standard error falls with the root of the number of prompts; with many prompts normal quantiles suffice
        shift = float(stats.norm.ppf((1 + LEVEL) / 2) + stats.norm.ppf(POWER))
        prompts = max(league.prompts * (shift * error / gap) ** 2, league.prompts + 1)
        needed = math.ceil(prompts) if prompts <= MOST_PROMPTS else None
    return Neighbours(*names, probability, needed)


def _rank_intervals(strength_K: FloatArray, strength_DK: FloatArray, prompts: int) -> list[tuple[int, int]]:
    """Return the best and worst rank of each player, from simultaneous intervals of its differences to all others."""
    players = len(strength_K)
    # one prompt says nothing about the spread, so every rank is possible
    if prompts < 2:
        return [(1, players)] * players
    # a maximum over bootstrap draws has the tails of a normal distribution; few prompts need those of t
    upper = (1 + LEVEL) / 2
    inflation = float(stats.t.ppf(upper, prompts - 1) / stats.norm.ppf(upper))
    inflation *= math.sqrt(prompts / (prompts - 1))
    intervals = []
    for player in range(players):
        others = [other for other in range(players) if other != player]
        gap_O = strength_K[others] - strength_K[player]
        gap_DO = strength_DK[:, others] - strength_DK[:, [player]]
        error_O = np.maximum(gap_DO.std(axis=0), 1e-12)  # avoids a division by zero if all draws are equal
        largest_D = (np.abs(gap_DO - gap_O) / error_O).max(axis=1)
        margin_O = inflation * float(np.quantile(largest_D, LEVEL)) * error_O
        stronger = int((gap_O > margin_O).sum())
        weaker = int((gap_O < -margin_O).sum())
        intervals.append((1 + stronger, players - weaker))
    return intervals
