"""Statistics of a leaderboard: strengths, win rates, biases of the judge, and comparisons with people's labels."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rlhf_lab.core.errors import DataError, NumericError
from rlhf_lab.core.types import FloatArray
from rlhf_lab.packs.judging.leaderboard.judgements import SCORES, JudgementRow, Judgements, LabelRow
from rlhf_lab.packs.judging.statistics.agreement import cohen_kappa, percent_agreement
from rlhf_lab.packs.judging.statistics.judge_bias import PositionBias, excess_preference, position_bias
from rlhf_lab.packs.judging.statistics.prediction_powered import Corrected, prediction_powered_mean
from rlhf_lab.packs.judging.statistics.ranking import Ranking, comparisons, rank
from rlhf_lab.packs.judging.statistics.win_rates import LengthControlled, length_controlled_win_rate, win_rate
from rlhf_lab.statistics.estimates import Estimate, win_or_tie

# Markdown syntax at the start of a line, or in pairs of markers
LIST_ITEM = re.compile(r"^[ \t]*(?:[-*+]|\d+[.)])[ \t]+\S", re.MULTILINE)
BOLD = re.compile(r"\*\*[^*\n]+\*\*|__[^_\n]+__")  # within a line
HEADER = re.compile(r"^#{1,6}[ \t]+\S", re.MULTILINE)
# blocks of code, of which the last may have no end, and code within a line
CODE = re.compile(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1|\Z)|`[^`\n]+`", re.MULTILINE | re.DOTALL)

STYLE: dict[str, Callable[[str], int]] = {
    "length": len,
    "lists": lambda text: _count_outside_code(LIST_ITEM, text),
    "bold": lambda text: _count_outside_code(BOLD, text),
    "headers": lambda text: _count_outside_code(HEADER, text),
}
"""Name → count in a response. Length is in characters, which need no tokenizer and exist in every language."""


def _count_outside_code(pattern: re.Pattern[str], text: str) -> int:
    # "# comment" and "__init__" are no Markdown in code
    return len(pattern.findall(CODE.sub("", text)))


def style_differences(first: Sequence[str], second: Sequence[str]) -> dict[str, FloatArray]:
    """Return name → (N,) (a − b)/(a + b) of the counts a and b in the two responses; 0 if both are 0.

    The difference is relative, from −1 to 1, because a hundred more characters matter less in a long response.
    """
    # counts are integers, so 1 replaces only a sum of 0
    differences = {}
    for name, count in STYLE.items():
        first_N, second_N = _counts(count, first), _counts(count, second)
        differences[name] = (first_N - second_N) / np.maximum(first_N + second_N, 1)
    return differences


def length_difference(first: Sequence[str], second: Sequence[str]) -> FloatArray:
    """Return (N,) the characters of the first response minus those of the second."""
    return _counts(len, first) - _counts(len, second)


def _counts(count: Callable[[str], int], texts: Sequence[str]) -> FloatArray:
    return np.array([count(text) for text in texts], dtype=np.float64)


IDENTICAL = "of identical responses"
OUTCOMES = {score: outcome for outcome, score in SCORES.items()}
"""Score of the first response → outcome."""


@dataclass(frozen=True)
class Player:
    """One player of a leaderboard: a policy whose responses were judged.

    Attributes:
        prompts, comparisons: number of prompts and comparisons with a score.
        unscored: reason → number of comparisons without a score.
        win_rate, length_controlled: win rate against the baseline; None for the baseline itself and for a player that
            was not compared with it.
        corrected: the same win rate corrected by people's labels; None without such labels.
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
    """Comparison of the judge with people who labelled some of the judged comparisons.

    Attributes:
        matched, unmatched: number of labels of judged comparisons, and of other labels, which are not used.
        comparisons, annotators: number of labelled comparisons that the judge scored, and of annotators.
        agreement, kappa: agreement of the judge with the majority of people.
        longer: how much more often the judge prefers the longer response than people do.
        own: the same for responses by the judge's own model; None if that model is not a player.
    """

    matched: int
    unmatched: int
    comparisons: int
    annotators: int
    agreement: Estimate
    kappa: Estimate
    longer: Estimate
    own: Estimate | None


@dataclass(frozen=True)
class Board:
    """All statistics of a leaderboard.

    Attributes:
        players: players with a strength first, strongest first.
        styled, style_problem: strengths at equal style, or None and the reason why they cannot be fitted.
        position: the judge's position bias, without identical responses, which no judge sees.
        unscored: reason → number of judgements.
        with_itself: number of judgements of two responses by one player, which count for the position bias only.
        repeated: number of duplicate rows, which are left out.
        unfinished: files of judgements that are not complete.
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
    unfinished: tuple[str, ...]
    people: People | None = None


def build_board(
    judgements: Judgements,
    labels: Sequence[LabelRow] = (),
    *,
    baseline: str | None = None,
    judge: str | None = None,
) -> Board:
    """Compute all statistics of the table, the page and the JSON file.

    Args:
        labels: people's labels of some of these comparisons.
        baseline: player that win rates are against; None is the first player of the files.
        judge: player whose model is also the judge, for self-preference; None is no player.

    Raises DataError if there are fewer than two players, or a name is not a player.
    """
    judged = _unscore_identical_sides(judgements.rows)
    rows = [row for row in judged if row.names[0] != row.names[1]]
    names = list(dict.fromkeys(name for row in rows for name in row.names))
    if len(names) < 2:
        raise DataError("all comparisons are of a player with itself; a leaderboard needs at least two names")
    for option, name in (("baseline", baseline), ("judge", judge)):
        if name is not None and name not in names:
            raise DataError(f"{option}={name} is not a player; name one of {', '.join(names)}")
    baseline = baseline or names[0]
    # people's scores per judgement, then the mean over annotators
    scores_of_people = match_labels(rows, labels)
    ranking, styled, style_problem = _rank(rows)
    people_N = np.array([_mean_over_people(scores) for scores in scores_of_people])
    players = [_player(name, baseline, rows, people_N) for name in names]
    position = {name: index for index, name in enumerate(ranking.order)}
    # rated players in the order of the ranking, the others after them
    players.sort(key=lambda player: position.get(player.name, len(position)))
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
        unfinished=tuple(map(str, judgements.unfinished)),
        people=_people(rows, labels, scores_of_people, people_N, judge) if labels else None,
    )


def _unscore_identical_sides(rows: Sequence[JudgementRow]) -> list[JudgementRow]:
    """Return the judgements. If the responses of two players never differ, their judgements become unscored."""
    differ = {frozenset(row.names) for row in rows if row.first != row.second}
    none: dict[str, Any] = {**dict.fromkeys(("score", "shown_first", "shown_second"), math.nan), "unscored": IDENTICAL}
    return [row if frozenset(row.names) in differ else dataclasses.replace(row, **none) for row in rows]


def _rank(rows: Sequence[JudgementRow]) -> tuple[Ranking, Ranking | None, str]:
    """Return (strengths, strengths at equal style or None, reason why the latter cannot be fitted or "")."""
    firsts = [row.names[0] for row in rows]
    seconds = [row.names[1] for row in rows]
    scores = [row.score for row in rows]
    prompts = [row.prompt for row in rows]
    ranking = rank(comparisons(firsts, seconds, scores, prompts))
    differences = style_differences([row.first for row in rows], [row.second for row in rows])
    rated = set(ranking.order)
    # a style column that is 0 in all comparisons of rated players has no finite coefficient
    counts_N = np.array([set(row.names) <= rated and not math.isnan(row.score) for row in rows], dtype=bool)
    style = {name: column for name, column in differences.items() if column[counts_N].any()}
    if not rated:
        return ranking, None, "no player can be rated"
    if not style:
        return ranking, None, "no difference in style"
    try:
        styled_league = comparisons(firsts, seconds, scores, prompts, style=style)
        return ranking, rank(styled_league), ""
    except NumericError as error:
        return ranking, None, str(error)


Scores = dict[str, list[float]]
"""Annotator → scores of the first response of one comparison."""


def match_labels(rows: Sequence[JudgementRow], labels: Sequence[LabelRow]) -> list[Scores]:
    """Return people's scores of every judgement. A label is matched by its texts, in either order."""
    by_texts: dict[tuple[str, str, str], list[tuple[str, float]]] = defaultdict(list)
    for label in labels:
        by_texts[label.prompt, label.first, label.second].append((label.annotator, label.score))
        if label.first != label.second:
            # a label in the other order counts with the mirrored score
            by_texts[label.prompt, label.second, label.first].append((label.annotator, 1 - label.score))
    matched: list[Scores] = [defaultdict(list) for _ in rows]
    for scores, row in zip(matched, rows, strict=True):
        for annotator, score in by_texts.get((row.prompt, row.first, row.second), ()):
            scores[annotator].append(score)
    return matched


def _mean_over_people(scores: Scores) -> float:
    """Return the mean score in which every annotator counts once; NaN without annotators."""
    return float(np.mean([np.mean(values) for values in scores.values()])) if scores else math.nan


def _player(name: str, baseline: str, rows: Sequence[JudgementRow], people_N: FloatArray) -> Player:
    mine = [row for row in rows if name in row.names]
    scored = [row for row in mine if not math.isnan(row.score)]
    # comparisons of this player with the baseline
    against = [index for index, row in enumerate(rows) if set(row.names) == {name, baseline}]
    player = Player(
        name=name,
        prompts=len({row.prompt for row in scored}),
        comparisons=len(scored),
        unscored=dict(Counter(row.unscored for row in mine if row.unscored)),
    )
    if not against:
        return player
    # turn all comparisons so that the player is the first side
    compared = [rows[number] for number in against]
    sign_n = np.array([1 if row.names[0] == name else -1 for row in compared])
    prompts = [row.prompt for row in compared]
    score_n = _turned([row.score for row in compared], sign_n)
    people_n = _turned(people_N[against], sign_n)
    length_n = sign_n * length_difference([row.first for row in compared], [row.second for row in compared])
    return dataclasses.replace(
        player,
        win_rate=win_rate(score_n, prompts),
        length_controlled=length_controlled_win_rate(score_n, length_n, prompts),
        corrected=prediction_powered_mean(score_n, people_n, prompts) if not np.isnan(people_n).all() else None,
    )


def _turned(score_N: ArrayLike, sign_N: np.ndarray) -> FloatArray:
    """Convert scores of first responses to scores of a player who wrote the first (sign 1) or second (−1) response."""
    return 0.5 + sign_N * (np.asarray(score_N, dtype=np.float64) - 0.5)


def _position(rows: Sequence[JudgementRow]) -> PositionBias:
    rows = [row for row in rows if row.first != row.second]
    return position_bias([r.shown_first for r in rows], [r.shown_second for r in rows], [r.prompt for r in rows])


def _people(
    rows: Sequence[JudgementRow],
    labels: Sequence[LabelRow],
    scores_of_people: Sequence[Scores],
    people_N: FloatArray,
    judge: str | None,
) -> People:
    texts = {(row.prompt, row.first, row.second) for row in rows}
    texts |= {(row.prompt, row.second, row.first) for row in rows}
    matched = sum((label.prompt, label.first, label.second) in texts for label in labels)
    if not matched:
        raise DataError(
            "no label of a person matches a judged comparison: prompt, first and second must be the same texts, in "
            "either order of the two responses"
        )
    annotators = sorted({name for scores in scores_of_people for name in scores})
    # restrict everything to labelled comparisons: other judgements are not "unscored" here
    labelled = [index for index, score in enumerate(people_N) if not math.isnan(score)]
    rows = [rows[number] for number in labelled]
    people_n = people_N[labelled]
    prompts_n = [row.prompt for row in rows]
    judge_n = np.array([row.score for row in rows])
    # nominal labels of the judge and of the majority; None for unscored
    judged_n = [_label(score) for score in judge_n]
    majority_n = [_majority(score) for score in people_n]
    length_n = length_difference([row.first for row in rows], [row.second for row in rows])
    own_n = _own(rows, judge)
    return People(
        matched=matched,
        unmatched=len(labels) - matched,
        comparisons=int((~np.isnan(judge_n)).sum()),
        annotators=len(annotators),
        agreement=percent_agreement(judged_n, majority_n, prompts_n),
        kappa=cohen_kappa(judged_n, majority_n, prompts_n),
        longer=excess_preference(judge_n, people_n, _kind(length_n), prompts_n),
        own=excess_preference(judge_n, people_n, _kind(own_n), prompts_n) if judge else None,
    )


def _label(score: float) -> str | None:
    return None if math.isnan(score) else OUTCOMES.get(score, "tie")


def _majority(score: float) -> str | None:
    return None if math.isnan(score) else OUTCOMES[float(win_or_tie(score - 0.5))]


def _own(rows: Sequence[JudgementRow], judge: str | None) -> FloatArray:
    """Return (N,) 1 if only the first response is by the judge's own model, −1 if only the second is, else 0."""
    first_N = np.array([row.names[0] == judge for row in rows], dtype=float)
    second_N = np.array([row.names[1] == judge for row in rows], dtype=float)
    return first_N - second_N


def _kind(difference_N: FloatArray) -> FloatArray:
    """Return 1 for a positive difference, 0 for a negative one, NaN for 0, as input of `excess_preference`."""
    return np.where(difference_N == 0, np.nan, (difference_N > 0).astype(np.float64))
