"""Leaderboard report: leaderboard.json, leaderboard.html, and the same content as tables for the console."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from rlhf_lab.core.console import number_table
from rlhf_lab.core.files import make_dir, write_json
from rlhf_lab.packs.judging.leaderboard.board import Board, build_board
from rlhf_lab.packs.judging.leaderboard.judgements import find_files, read_judgements, read_labels
from rlhf_lab.packs.judging.leaderboard.view import board_json, board_view, league_page
from rlhf_lab.reports.page import write_page


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
    prior_sd: float | None = None,
) -> Written:
    """Read judgements, rank the authors of the responses, and write leaderboard.json and leaderboard.html.

    Args:
        sources: files of judgements, directories with a judgements.jsonl, or runs that `judge` has compared.
        to: output directory; None is a directory below `outputs`/leaderboards named after these files.
        truth: a file of people's labels of some of these comparisons.
        baseline, judge, prior_sd: see `build_board`.

    Raises:
        DataError: a file is missing or a row is invalid.
    """
    files = find_files(sources, Path(outputs))
    labels = read_labels(Path(truth).expanduser()) if truth else []
    board = build_board(read_judgements(files), labels, baseline=baseline, judge=judge, prior_sd=prior_sd)
    view = board_view(board)
    # a digest of the paths keeps leagues of different files apart
    directory = Path(to) if to else _default_dir(files, Path(outputs))
    make_dir(directory)
    # the same league as numbers for programs and as a page for people
    numbers = directory / "leaderboard.json"
    write_json(numbers, board_json(board))
    page = write_page(directory / "leaderboard.html", league_page(view, files))
    return Written(board, view, page, numbers)


def _default_dir(files: Sequence[Path], outputs: Path) -> Path:
    """Return an output directory for these files: the name of the first one's directory, and a digest of all paths."""
    paths = [str(file.resolve()) for file in files]
    digest = sha256("\n".join(paths).encode()).hexdigest()[:6]
    return outputs / "leaderboards" / f"{files[0].resolve().parent.name or 'judgements'}-{digest}"


def printed(view: dict[str, Any]) -> RenderableType:
    """Return the text and tables of a leaderboard in a form that rich prints to a terminal."""
    blocks: list[RenderableType] = [Text(view["title"], style="bold")]
    blocks += [number_table(headings, rows, wraps=True) for headings, rows in view["tables"]]
    blocks += [Text(f"! {line}", style="yellow") for line in view["connection"]]
    blocks += [Text(line) for line in view["neighbours"]]
    blocks += [Text(line) for line in (*view["biases"], *view["people"])]
    blocks += [Text(f"! {note}", style="yellow") for note in view["remarks"]]
    conclusion = Text(view["finding"], style="bold")
    method = Text(view["method"], style="dim")
    return Group(*blocks, conclusion, method)
