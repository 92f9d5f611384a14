"""Leaderboard report: sentences, tables and charts for the console, leaderboard.html, and the numbers as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from rlhf_lab.core.console import number_table
from rlhf_lab.core.files import make_dir, write_json
from rlhf_lab.figures.charts import Level, dot_chart
from rlhf_lab.packs.judging.leaderboard.board import Board, People, Player, build_board
from rlhf_lab.packs.judging.leaderboard.judgements import find_files, read_judgements, read_labels
from rlhf_lab.packs.judging.statistics.judge_bias import PositionBias
from rlhf_lab.packs.judging.statistics.ranking import Neighbours, Ranking
from rlhf_lab.packs.judging.statistics.win_rates import LengthControlled
from rlhf_lab.reports.page import write_page
from rlhf_lab.reports.sections import PageSection, ReportPage
from rlhf_lab.results.wording import cell, compact
from rlhf_lab.statistics.estimates import Estimate

DEGENERATE_SHARE = 0.01
"""Fraction of bootstrap draws without a finite estimate above which a note is shown."""
NOT_RATED = "not rated"
STYLE = "at equal style"
STANDING = 6
"""Number of columns of the first table. The second table has the player's name and the other columns."""


def board_view(board: Board) -> dict[str, Any]:
    """Return the text that console and page show."""
    ranking = board.ranking
    return {
        "title": f"{len(board.players)} players, {board.comparisons} comparisons on {board.prompts} prompts",
        "tables": _tables(board),
        "finding": _conclusion(board),
        "connection": _connection_lines(ranking),
        "neighbours": [_neighbours_line(pair, ranking.prompts) for pair in ranking.neighbours],
        "biases": [*_position_lines(board.position), *_style_lines(board), *_length_lines(board)],
        "people": _people_lines(board.people, board) if board.people else [],
        "remarks": _notes(board),
        "matrix": _matrix(ranking),
        "chart": _chart(board) if ranking.order else None,
        "method": _method(ranking),
    }


def league_page(view: Mapping[str, Any], files: Sequence[Path]) -> ReportPage:
    """Return the page of a leaderboard whose judgements were read from `files`."""
    league = PageSection(template=f"{__package__}:league.html.j2", values={**view, "files": files})
    footer = "Every number is measured in these judgements. Written by `python -m rlhf_lab leaderboard`."
    return ReportPage(f"Leaderboard: {view['title']}", {"league": league}, footer)


def _tables(board: Board) -> list[tuple[tuple[str, ...], list[tuple[str, ...]]]]:
    headings: tuple[str, ...] = (
        "player",
        "rank",
        "strength (logits)",
        "prompts",
        "comparisons",
        "unscored",
        f"strength {STYLE}",
    )
    headings += (f"win rate against {board.baseline}", "at equal length")
    if any(player.corrected for player in board.players):
        headings += ("corrected by people",)
    rows = [_cells(board, player)[: len(headings)] for player in board.players]
    standings = (headings[:STANDING], [row[:STANDING] for row in rows])
    rates = ((headings[0], *headings[STANDING:]), [(row[0], *row[STANDING:]) for row in rows])
    return [standings, rates]


def _cells(board: Board, player: Player) -> tuple[str, ...]:
    name = player.name
    strength = board.ranking.strengths.get(name)
    styled = board.styled.strengths.get(name) if board.styled else None
    # players outside the rated group have no strength
    rank = _span(board.ranking.ranks[name]) if strength else NOT_RATED
    controlled = player.length_controlled
    at_equal_length = None if controlled is None or _is_unknown(controlled) else controlled.win_rate
    corrected = player.corrected.mean if player.corrected else None
    counts = (str(player.prompts), str(player.comparisons), _reasons(player.unscored))
    rates = (cell(styled), cell(player.win_rate), cell(at_equal_length), cell(corrected))
    return (name, rank, cell(strength), *counts, *rates)


def _span(ranks: tuple[int, int]) -> str:
    best, worst = ranks
    return str(best) if best == worst else f"{best}–{worst}"


def _reasons(counts: Mapping[str, int]) -> str:
    parts = [f"{count} {reason}" for reason, count in sorted(counts.items())]
    return ", ".join(parts) or "0"


def _conclusion(board: Board) -> str:
    """Return a sentence that names the players that may be the strongest, and those at equal style if they differ."""
    if not board.ranking.order:
        return "No player can be rated."
    conclusion = f"Strongest: {_strongest(board.ranking)}."
    if board.styled and _first_positions(board.styled) != _first_positions(board.ranking):
        conclusion += f" {STYLE.capitalize()}: {_strongest(board.styled)}."
    return conclusion


def _first_positions(ranking: Ranking) -> set[str]:
    return {name for name in ranking.order if ranking.ranks[name][0] == 1}


def _strongest(ranking: Ranking) -> str:
    first = [name for name in ranking.order if name in _first_positions(ranking)]
    if len(first) == len(ranking.order):
        return "undecided, it may be any of them"
    if len(first) == 1:
        return f"{first[0]} (strength {compact(ranking.strengths[first[0]])} logits)"
    return f"one of {', '.join(first)}"


def _connection_lines(ranking: Ranking) -> list[str]:
    """Return why players are missing from the order, and what to judge next; empty if all are on one scale."""
    connection = ranking.connection
    if connection.connected:
        return []
    lines = [f"{problem}." for problem in connection.problems]
    pairs = "; ".join(f"{one} against {other}" for one, other in connection.judge_next)
    lines.append(f"Judge next, on more prompts: {pairs}. One win or tie in the other direction suffices.")
    return lines


def _neighbours_line(pair: Neighbours, prompts: int) -> str:
    preferred = f"{pair.above} is preferred to {pair.below} with probability {compact(pair.win_probability)}"
    if pair.distinguishable:
        return f"{preferred}."
    needed = "no feasible number of prompts would decide at this difference"
    if pair.prompts_to_decide is not None:
        needed = f"about {_rounded(pair.prompts_to_decide)} prompts would decide at this difference, not {prompts}"
    return f"{preferred}: not distinguishable; {needed}."


def _rounded(count: int) -> int:
    """Return two significant digits, rounded up: more digits would suggest that the difference is known exactly."""
    size = 10 ** max(len(str(count)) - 2, 0)
    return math.ceil(count / size) * size


def _position_lines(position: PositionBias) -> list[str]:
    if math.isnan(position.first_shown_wins.mean):
        return ["Position: no comparison was judged in both orders, so the position bias is unknown."]
    first = position.first_shown_wins
    verdict = "no bias is detected" if first.low <= 0.5 <= first.high else "the judge favours a position"
    return [
        f"Position: the response shown first gets {compact(first)} of the votes (½ is no bias; {verdict}). Both orders "
        f"agree in {compact(position.consistent)} of {first.n} comparisons; the first position won both in "
        f"{compact(position.first_both)}, the second in {compact(position.second_both)}."
    ]


def _style_lines(board: Board) -> list[str]:
    if board.styled is None:
        return [f"Style: strengths {STYLE} are unknown: {board.style_problem}."]
    effects = ", ".join(f"{name} {compact(estimate)}" for name, estimate in board.styled.style.items())
    return [f"Style, in logits for a response with all of a property against one with none: {effects}."]


def _length_lines(board: Board) -> list[str]:
    lines = []
    for player in board.players:
        controlled = player.length_controlled
        if controlled is not None and controlled.note:
            lines.append(f"Length: {player.name}: {controlled.note}.")
        elif controlled is not None and _is_unknown(controlled):
            lines.append(f"Length: {player.name}: the win rate at equal length is unknown: {controlled.problem}.")
    return lines


def _is_unknown(controlled: LengthControlled) -> bool:
    """Return True if there are scored comparisons, but no win rate at equal length."""
    return bool(controlled.problem) and controlled.win_rate.n > 0


def _people_lines(people: People, board: Board) -> list[str]:
    annotators = f"{people.annotators} annotator{'s' if people.annotators != 1 else ''}"
    lines = [
        f"{people.comparisons} of {board.comparisons} comparisons are labelled by {annotators}. The judge agrees with "
        f"the majority in {compact(people.agreement)}; Cohen's κ is {_coefficient(people.kappa)}.",
        f"The judge prefers the longer response {_points(people.longer)} more often than people do.",
    ]
    if people.own is not None:
        lines.append(f"It prefers responses of its own model {_points(people.own)} more often than people do.")
    return lines + _gap_lines(board)


def _coefficient(estimate: Estimate) -> str:
    """Format a coefficient of agreement, which is undefined if all labels are the same."""
    return "undefined" if estimate.n and math.isnan(estimate.mean) else compact(estimate)


def _points(share: Estimate) -> str:
    """Format a difference of fractions in words that fit a positive and a negative difference."""
    return f"{compact(share)} (as a fraction of comparisons)"


def _gap_lines(board: Board) -> list[str]:
    lines = []
    for player in board.players:
        gap = player.corrected.judge_gap if player.corrected else None
        # a gap means that people labelled a selection of the comparisons
        if gap is not None and gap.bounded and gap.excludes_zero:
            lines.append(
                f"{player.name}: the judge's scores differ by {compact(gap)} between comparisons that people labelled "
                "and the others. Unless people labelled a random sample, the corrected win rate is invalid."
            )
    return lines


def _notes(board: Board) -> list[str]:
    notes = [
        f"{file} is not complete: the judgement stopped before its end, or is still running. The same judge command "
        "continues it."
        for file in board.unfinished
    ]
    if board.unscored:
        notes.append(f"Unscored, and not counted as ties: {_reasons(board.unscored)}.")
    if board.ranking.draws and board.ranking.degenerate > DEGENERATE_SHARE * board.ranking.draws:
        notes.append(
            f"{board.ranking.degenerate} of {board.ranking.draws} bootstrap draws have no finite estimate: some player "
            "almost always wins or loses. The bounds of such strengths are rough; more prompts help."
        )
    if board.with_itself:
        notes.append(f"{board.with_itself} comparisons of a player with itself count for the position bias only.")
    if board.repeated:
        notes.append(f"{board.repeated} rows are duplicates and count once.")
    if board.people and board.people.unmatched:
        notes.append(f"{board.people.unmatched} labels are of comparisons that were not judged; they are not used.")
    return notes


def _matrix(ranking: Ranking) -> list[tuple[str, ...]]:
    chances = ranking.win_probabilities
    return [(name, *(cell(chances.get((name, other))) for other in ranking.order)) for name in ranking.order]


def _chart(board: Board) -> Any:
    strengths = board.ranking.strengths
    levels = [Level(name, strengths[name], colour=index) for index, name in enumerate(board.ranking.order)]
    return dot_chart(levels, title="Strength of every player", x_label="strength, logits about the mean")


def _method(ranking: Ranking) -> str:
    return (
        f"Bradley-Terry, ties half a win; 95 % intervals from {ranking.draws} draws of {ranking.prompts} prompts with "
        "all their comparisons. The interval of a rank holds for all differences jointly; the others hold separately."
    )


def board_json(board: Board) -> dict[str, Any]:
    """Return the statistics as JSON values: estimates as {mean, low, high, n, clusters, level, unscored}."""
    counts = ("baseline", "comparisons", "prompts", "unscored", "with_itself", "repeated", "unfinished")
    return {
        **{name: _json(getattr(board, name)) for name in counts},
        "players": [_player_json(board, player) for player in board.players],
        "ranking": _ranking_json(board.ranking),
        "at_equal_style": _ranking_json(board.styled) if board.styled else None,
        "style_problem": board.style_problem or None,
        "position": _json(board.position),
        "people": _json(board.people),
    }


def _player_json(board: Board, player: Player) -> dict[str, Any]:
    name = player.name
    controlled = player.length_controlled
    row: dict[str, Any] = {
        "name": name,
        "rank": _json(board.ranking.ranks.get(name)),
        "strength": _json(board.ranking.strengths.get(name)),
        "strength_at_equal_style": _json(board.styled.strengths.get(name) if board.styled else None),
        "win_rate": _json(player.win_rate),
        "win_rate_at_equal_length": _json(controlled.win_rate if controlled else None),
        "length": _json(controlled.length if controlled else None),
        "length_problem": (controlled.problem or None) if controlled else None,
        "length_note": (controlled.note or None) if controlled else None,
        **{count: getattr(player, count) for count in ("prompts", "comparisons", "unscored")},
    }
    # the key exists only with people's labels
    if player.corrected is not None:
        names = {"mean": "win_rate", "people": "people_alone", "judge": "judge_alone"}
        row["with_people"] = {names.get(key, key): value for key, value in _json(player.corrected).items()}
    return row


def _ranking_json(ranking: Ranking) -> dict[str, Any]:
    pairs = ranking.win_probabilities.items()
    connection = ranking.connection
    of_pair = ("above", "below", "distinguishable", "prompts_to_decide")
    return {
        **{name: _json(getattr(ranking, name)) for name in ("order", "strengths", "ranks", "style")},
        "win_probabilities": [{"player": a, "opponent": b, **estimate.to_dict()} for (a, b), estimate in pairs],
        "neighbours": [{name: getattr(pair, name) for name in of_pair} for pair in ranking.neighbours],
        "connected": connection.connected,
        **{name: _json(getattr(connection, name)) for name in ("groups", "problems", "judge_next")},
        "prompts": ranking.prompts,
        "comparisons": ranking.n,
        "draws": ranking.draws,
        "degenerate_draws": ranking.degenerate,
    }


def _json(value: Any) -> Any:
    if isinstance(value, Estimate):
        return value.to_dict()
    if is_dataclass(value):
        return {field.name: _json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: _json(item) for name, item in value.items()}
    return [_json(item) for item in value] if isinstance(value, tuple) else value


@dataclass(frozen=True)
class Written:
    """Statistics of a leaderboard, their text, and the paths of the written page and JSON file."""

    board: Board
    view: dict[str, Any]
    page: Path
    numbers: Path


def leaderboard(
    sources: Sequence[str],
    *,
    to: Path | str | None = None,
    outputs: Path | str = "outputs",
    truth: Path | str | None = None,
    baseline: str | None = None,
    judge: str | None = None,
) -> Written:
    """Read judgements, rank the authors of the responses, and write leaderboard.json and leaderboard.html.

    Args:
        sources: files of judgements, directories with a judgements.jsonl, or runs that `judge` has compared.
        to: output directory; None is a directory below `outputs`/leaderboards named after these files.
        truth: a file of people's labels of some of these comparisons.
        baseline, judge: see `build_board`.

    Raises DataError if a file is missing or a row is invalid.
    """
    files = find_files(sources, Path(outputs))
    labels = read_labels(Path(truth).expanduser()) if truth else []
    board = build_board(read_judgements(files), labels, baseline=baseline, judge=judge)
    view = board_view(board)
    directory = Path(to) if to else _default_dir(files, Path(outputs))
    numbers = directory / "leaderboard.json"
    make_dir(directory)
    write_json(numbers, board_json(board))
    page = write_page(directory / "leaderboard.html", league_page(view, files))
    return Written(board, view, page, numbers)


def _default_dir(files: Sequence[Path], outputs: Path) -> Path:
    """Return an output directory for these files: the name of the first one's directory, and a digest of all paths."""
    paths = [str(file.resolve()) for file in files]
    digest = sha256("\n".join(paths).encode()).hexdigest()[:6]
    return outputs / "leaderboards" / f"{files[0].resolve().parent.name or 'judgements'}-{digest}"


def printed(view: dict[str, Any]) -> RenderableType:
    """Return the text and tables of a leaderboard for a terminal."""
    blocks: list[RenderableType] = [Text(view["title"], style="bold")]
    blocks += [number_table(headings, rows, wraps=True) for headings, rows in view["tables"]]
    blocks += [Text(f"! {line}", style="yellow") for line in view["connection"]]
    blocks += [Text(line) for line in (*view["neighbours"], *view["biases"], *view["people"])]
    blocks += [Text(f"! {note}", style="yellow") for note in view["remarks"]]
    return Group(*blocks, Text(view["finding"], style="bold"), Text(view["method"], style="dim"))
