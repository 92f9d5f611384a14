"""The numbers of a league: strengths, win rates, biases of the judge, and what people's labels say of them."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from rlhf_lab.core.errors import DataError, NumericError
from rlhf_lab.core.types import FloatArray
from rlhf_lab.packs.judging.leaderboard.judgements import SCORES, Judgement, Judgements, Label
from rlhf_lab.packs.judging.leaderboard.style import length_difference, style_differences
from rlhf_lab.packs.judging.statistics.agreement import cohen_kappa, krippendorff_alpha, percent_agreement
from rlhf_lab.packs.judging.statistics.judge_bias import (
    ChoiceModel,
    PositionBias,
    choice_model,
    excess_preference,
    position_bias,
)
from rlhf_lab.packs.judging.statistics.prediction_powered import Corrected, prediction_powered_mean
from rlhf_lab.packs.judging.statistics.ranking import Ranking, comparisons, rank
from rlhf_lab.packs.judging.statistics.win_rates import (
    LengthControlled,
    length_controlled_win_rate,
    saturated,
    win_rate,
)
from rlhf_lab.statistics.estimates import Estimate

IDENTICAL = "of identical responses"
OUTCOMES = {score: outcome for outcome, score in SCORES.items()}
"""Score of the first reply → outcome."""


@dataclass(frozen=True)
class Player:
    """One line of the table.

    Attributes:
        prompts, comparisons: on and in which it was compared and scored.
        unscored: reason → comparisons without a score.
        win_rate, length_controlled: against the baseline; None for the baseline and without a comparison with it.
        corrected: the same win rate with people's labels; None without such labels.
    """

    name: str
    prompts: int
    comparisons: int
    unscored: dict[str, int]
    win_rate: Estimate | None = None
    length_controlled: LengthControlled | None = None
    corrected: Corrected | None = None


@dataclass(frozen=True)
class People:
    """A judge against people who labelled some of the same comparisons.

    Attributes:
        matched, unmatched: labels of judged comparisons, and labels of others, which are not used.
        comparisons, annotators: labelled comparisons that the judge scored; people.
        agreement, kappa: of the judge and what most people say.
        alpha: Krippendorff's, of the judge and every annotator as raters.
        alpha_of_people: of the annotators alone; None when there is one.
        longer: how much more often the judge prefers the longer reply than people do.
        own: the same of replies by the judge's own model; None when it is no player.
        choices: what the judge's single votes follow, with people's labels held fixed.
    """

    matched: int
    unmatched: int
    comparisons: int
    annotators: int
    agreement: Estimate
    kappa: Estimate
    alpha: Estimate
    alpha_of_people: Estimate | None
    longer: Estimate
    own: Estimate | None
    choices: ChoiceModel


@dataclass(frozen=True)
class Board:
    """A league.

    Attributes:
        players: those with a strength first, strongest first.
        ranking: strengths; `styled` the same at equal style, None when that cannot be fitted, `style_problem` says why.
        position: the judge's bias for a place; identical replies, which no judge is asked about, do not count.
        comparisons, prompts, unscored: of all judgements; reason → count.
        with_itself: judgements of two replies by one player: they count for the position bias only.
        repeated: rows left out because they stand twice.
        people: None without labels of people.
    """

    players: tuple[Player, ...]
    baseline: str
    ranking: Ranking
    styled: Ranking | None
    style_problem: str
    position: PositionBias
    comparisons: int
    prompts: int
    unscored: dict[str, int]
    with_itself: int
    repeated: int
    people: People | None = None


def build_board(
    judgements: Judgements,
    labels: Sequence[Label] = (),
    *,
    baseline: str | None = None,
    judge: str | None = None,
    prior_sd: float | None = None,
) -> Board:
    """Compute everything that the table, the page and the JSON file show.

    Args:
        labels: of people, for comparisons among these.
        baseline: whom win rates are against; None is the first player of the file.
        judge: the player that the judge's own model is, for self-preference; None is no player.
        prior_sd: of a Gaussian prior on strengths, in logits; None is none.

    Raises:
        DataError: fewer than two players, or a name that is none.
    """
    judged = _unscore_identical_sides(judgements.rows)
    rows = [row for row in judged if row.names[0] != row.names[1]]
    names = list(dict.fromkeys(name for row in rows for name in row.names))
    if len(names) < 2:
        raise DataError("these judgements compare nobody with anybody else; a league needs two names or more")
    for option, name in (("baseline", baseline), ("judge", judge)):
        if name is not None and name not in names:
            raise DataError(f"{option}={name} is none of the players: {', '.join(names)}")
    baseline = baseline or names[0]
    scores_of_people = match_labels(rows, labels)
    ranking, styled, style_problem = _rank(rows, prior_sd)
    people_N = np.array([_mean_over_people(scores) for scores in scores_of_people])
    players = [_player(name, baseline, rows, people_N) for name in names]
    place = {name: number for number, name in enumerate(ranking.order)}
    players.sort(key=lambda player: place.get(player.name, len(place)))
    return Board(
        players=tuple(players),
        baseline=baseline,
        ranking=ranking,
        styled=styled,
        style_problem=style_problem,
        position=_position(judgements.rows),
        comparisons=len(judgements.rows),
        prompts=len({row.prompt for row in judgements.rows}),
        unscored=dict(Counter(row.unscored for row in judged if row.unscored)),
        with_itself=len(judgements.rows) - len(rows),
        repeated=judgements.repeated,
        people=_people(rows, labels, scores_of_people, people_N, judge) if labels else None,
    )


def _unscore_identical_sides(rows: Sequence[Judgement]) -> list[Judgement]:
    """The judgements; those of two players that never gave different responses are unscored instead of ties."""
    differ = {frozenset(row.names) for row in rows if row.first != row.second}
    judged = []
    for row in rows:
        if frozenset(row.names) not in differ:
            no_score = math.nan
            row = dataclasses.replace(
                row, score=no_score, shown_first=no_score, shown_second=no_score, unscored=IDENTICAL
            )
        judged.append(row)
    return judged


def _rank(rows: Sequence[Judgement], prior_sd: float | None) -> tuple[Ranking, Ranking | None, str]:
    """Strengths, strengths at equal style, and why there are none of these."""
    firsts = [row.names[0] for row in rows]
    seconds = [row.names[1] for row in rows]
    scores = [row.score for row in rows]
    prompts = [row.prompt for row in rows]
    ranking = rank(comparisons(firsts, seconds, scores, prompts), prior_sd=prior_sd)
    differences = style_differences([row.first for row in rows], [row.second for row in rows])
    rated = set(ranking.order)
    counts_N = np.array([{*row.names} <= rated and not math.isnan(row.score) for row in rows], dtype=bool)
    style = {name: column for name, column in differences.items() if column[counts_N].any()}
    if not rated or not style:
        return ranking, None, "no difference in style"
    try:
        return ranking, rank(comparisons(firsts, seconds, scores, prompts, style=style), prior_sd=prior_sd), ""
    except NumericError as error:
        return ranking, None, str(error)


Scores = dict[str, list[float]]
"""Annotator → scores that they gave the first reply of one comparison."""


def match_labels(rows: Sequence[Judgement], labels: Sequence[Label]) -> list[Scores]:
    """What people said of every judgement; a label matches by its texts, in either order."""
    by_texts: dict[tuple[str, str, str], list[tuple[str, float]]] = defaultdict(list)
    for label in labels:
        by_texts[label.prompt, label.first, label.second].append((label.annotator, label.score))
        if label.first != label.second:
            by_texts[label.prompt, label.second, label.first].append((label.annotator, 1 - label.score))
    matched = []
    for row in rows:
        scores: Scores = defaultdict(list)
        for annotator, score in by_texts.get((row.prompt, row.first, row.second), ()):
            scores[annotator].append(score)
        matched.append(dict(scores))
    return matched


def _mean_over_people(scores: Scores) -> float:
    """Every annotator counts once; NaN without any."""
    return float(np.mean([np.mean(values) for values in scores.values()])) if scores else math.nan


def _player(name: str, baseline: str, rows: Sequence[Judgement], people_N: FloatArray) -> Player:
    mine = [row for row in rows if name in row.names]
    scored = [row for row in mine if not math.isnan(row.score)]
    against = [number for number, row in enumerate(rows) if {*row.names} == {name, baseline}]
    player = Player(
        name=name,
        prompts=len({row.prompt for row in scored}),
        comparisons=len(scored),
        unscored=dict(Counter(row.unscored for row in mine if row.unscored)),
    )
    if not against:
        return player
    sign_n = np.array([1 if rows[number].names[0] == name else -1 for number in against])
    prompts = [rows[number].prompt for number in against]
    score_n = _turned([rows[number].score for number in against], sign_n)
    people_n = _turned(people_N[against], sign_n)
    length_n = sign_n * length_difference([rows[n].first for n in against], [rows[n].second for n in against])
    return dataclasses.replace(
        player,
        win_rate=win_rate(score_n, prompts),
        length_controlled=length_controlled_win_rate(score_n, length_n, prompts),
        corrected=prediction_powered_mean(score_n, people_n, prompts) if not np.isnan(people_n).all() else None,
    )


def _turned(score_N: ArrayLike, sign_N: np.ndarray) -> FloatArray:
    """Scores of the first reply as scores of the player who wrote it (1) or the second one (−1)."""
    return 0.5 + sign_N * (np.asarray(score_N, dtype=np.float64) - 0.5)


def _position(rows: Sequence[Judgement]) -> PositionBias:
    asked = [row for row in rows if row.first != row.second]
    shown_first = [row.shown_first for row in asked]
    shown_second = [row.shown_second for row in asked]
    return position_bias(shown_first, shown_second, [row.prompt for row in asked])


def _people(
    rows: Sequence[Judgement],
    labels: Sequence[Label],
    scores_of_people: Sequence[Scores],
    people_N: FloatArray,
    judge: str | None,
) -> People:
    texts = {(row.prompt, *order) for row in rows for order in ((row.first, row.second), (row.second, row.first))}
    matched = sum((label.prompt, label.first, label.second) in texts for label in labels)
    if not matched:
        raise DataError(
            "no label of a person is of a judged comparison: prompt, first and second must be the same texts, in either"
            " order of the two replies"
        )
    prompts = [row.prompt for row in rows]
    judge_N = np.array([row.score for row in rows])
    annotators = sorted({name for scores in scores_of_people for name in scores})
    judged = [_label(score) for score in judge_N]
    majority = [_majority(score) for score in people_N]
    by_annotator = [
        [_label(float(np.mean(scores[name]))) if name in scores else None for scores in scores_of_people]
        for name in annotators
    ]
    # Only what people labelled is about people: other judgements are not "unscored" here.
    labelled = [number for number, score in enumerate(people_N) if not math.isnan(score)]
    prompts_n = [prompts[number] for number in labelled]
    judged_n, majority_n = [judged[n] for n in labelled], [majority[n] for n in labelled]
    raters = [[row[number] for number in labelled] for row in (judged, *by_annotator)]
    judge_n, people_n = judge_N[labelled], people_N[labelled]
    length_n = length_difference([rows[n].first for n in labelled], [rows[n].second for n in labelled])
    own_n = _own(rows, judge)[labelled]
    return People(
        matched=matched,
        unmatched=len(labels) - matched,
        comparisons=int((~np.isnan(judge_n)).sum()),
        annotators=len(annotators),
        agreement=percent_agreement(judged_n, majority_n, prompts_n),
        kappa=cohen_kappa(judged_n, majority_n, prompts_n),
        alpha=krippendorff_alpha(raters, prompts_n),
        alpha_of_people=krippendorff_alpha(raters[1:], prompts_n) if len(annotators) > 1 else None,
        longer=excess_preference(judge_n, people_n, _kind(length_n), prompts_n),
        own=excess_preference(judge_n, people_n, _kind(own_n), prompts_n) if judge else None,
        choices=_choices([rows[n] for n in labelled], people_n, length_n, own_n if judge else None),
    )


def _label(score: float) -> str | None:
    """The outcome of a judgement: both orders have to agree on a winner."""
    return None if math.isnan(score) else OUTCOMES.get(score, "tie")


def _majority(score: float) -> str | None:
    """What more people say than not."""
    if math.isnan(score):
        return None
    return OUTCOMES[float(np.sign(score - 0.5)) / 2 + 0.5]


def _own(rows: Sequence[Judgement], judge: str | None) -> FloatArray:
    """(N,) 1 where the first reply alone is by the judge's own model, −1 where the second one alone is, else 0."""
    return np.array([(row.names[0] == judge) - float(row.names[1] == judge) for row in rows])


def _kind(difference_N: FloatArray) -> FloatArray:
    """1 where the first reply has more, 0 where it has less, NaN where both are alike: see `excess_preference`."""
    return np.where(difference_N == 0, np.nan, (difference_N > 0).astype(np.float64))


def _choices(
    rows: Sequence[Judgement], people_N: FloatArray, length_N: FloatArray, own_N: FloatArray | None
) -> ChoiceModel:
    """The model of single votes: two rows per comparison, first in one order, then in the other."""
    vote_2N = np.concatenate([[row.shown_first for row in rows], [row.shown_second for row in rows]])
    columns = {
        "position": np.repeat([1.0, -1.0], len(rows)),
        "length": np.tile(saturated(length_N), 2),
        "people": np.tile(2 * people_N - 1, 2),
    }
    if own_N is not None:
        columns["own"] = np.tile(own_N, 2)
    varying = {name: column for name, column in columns.items() if column.any()}
    return choice_model(vote_2N, varying, [row.prompt for row in rows] * 2)
