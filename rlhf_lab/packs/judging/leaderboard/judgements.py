"""Reads judgements.jsonl, a row per comparison, and files of people's labels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.files import parse_json
from rlhf_lab.data.lines import file_lines

FILE = "judgements.jsonl"
SCORES = {"first": 1.0, "tie": 0.5, "second": 0.0}
"""Outcome → score of the first reply."""
NO_REASON = "no reason given"
FORM = (
    'a row is {"prompt": "…", "first": "…", "second": "…", "names": ["A", "B"], "votes": […], '
    '"winner": "first" | "second" | "tie" | null, "score": 0 to 1 | null}'
)


@dataclass(frozen=True)
class Judgement:
    """A judge's comparison of two replies to one prompt.

    Attributes:
        prompt, first, second: texts.
        names: who wrote first and second.
        score: of `first`: the mean of its votes; NaN when unscored.
        shown_first, shown_second: score of `first` where it was shown first, and where second; NaN without that vote.
        unscored: why there is no score; empty when there is one.
    """

    prompt: str
    first: str
    second: str
    names: tuple[str, str]
    score: float
    shown_first: float
    shown_second: float
    unscored: str = ""


@dataclass(frozen=True)
class Label:
    """A person's comparison of the same kind. `score` is that of `first`."""

    prompt: str
    first: str
    second: str
    score: float
    annotator: str


@dataclass(frozen=True)
class Judgements:
    """The rows of one or more files.

    Attributes:
        repeated: rows left out because an earlier one has the same id and texts: a file given twice, or a copy.
    """

    rows: tuple[Judgement, ...]
    repeated: int = 0


def find_files(sources: Sequence[str]) -> list[Path]:
    """The files behind files and folders. Raises DataError for what is neither, all of them at once."""
    files, problems = [], []
    for source in sources:
        path = Path(source).expanduser()
        if path.is_dir():
            path = path / FILE
        if path.is_file():
            files.append(path)
        else:
            problems.append(f"{source}: no such file, and no folder with a {FILE}")
    if problems:
        raise DataError("; ".join(problems) + f"; name files or folders of judgements: leaderboard outputs/…/{FILE}")
    return files


def read_judgements(files: Sequence[Path]) -> Judgements:
    """All judgements in their order.

    Raises:
        DataError: naming file, row and field of the first row that is not a judgement.
    """
    judgements: dict[tuple[str, str, str, str, tuple[str, str]], Judgement] = {}
    repeated = 0
    for file in files:
        for number, row in _rows(file):
            judgement = _judgement(row, f"{file}: row {number}")
            identity = str(row.get("id", f"{file}:{number}"))
            key = (identity, judgement.prompt, judgement.first, judgement.second, judgement.names)
            repeated += key in judgements
            judgements.setdefault(key, judgement)
    if not judgements:
        raise DataError(f"{', '.join(map(str, files))}: no judgement; {FORM}")
    return Judgements(tuple(judgements.values()), repeated)


def read_labels(file: Path) -> list[Label]:
    """All labels of people. A label without a winner (skipped) is left out. Raises DataError as `read_judgements`."""
    if not file.is_file():
        raise DataError(f"truth={file}: no such file; name a .jsonl file of labels: {FORM_OF_LABELS}")
    labels = []
    for number, row in _rows(file):
        place = f"{file}: row {number}"
        score = _score_of(row.get("winner"), f"{place}: winner")
        if not math.isnan(score):
            prompt, first, second = (_text(row, field, place) for field in ("prompt", "first", "second"))
            labels.append(Label(prompt, first, second, score, str(row.get("annotator") or "")))
    if not labels:
        raise DataError(f"truth={file}: no label; {FORM_OF_LABELS}")
    return labels


FORM_OF_LABELS = (
    'a row is {"prompt": "…", "first": "…", "second": "…", "winner": "first" | "second" | "tie", "annotator": "…"}'
)


def _rows(file: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Numbered rows; empty lines are passed over."""
    for number, line in file_lines(file):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except ValueError as error:
            raise DataError(f"{file}: row {number} is not JSON ({error}); write one object per line") from error
        if not isinstance(row, dict):
            raise DataError(f"{file}: row {number} is no object; {FORM}")
        yield number, row


def _judgement(row: Mapping[str, Any], place: str) -> Judgement:
    shown_first, shown_second, reason = _votes(row.get("votes"), place)
    score = _score_of(row.get("winner"), f"{place}: winner")
    given = row.get("score")
    if given is not None:
        if not isinstance(given, (int, float)) or isinstance(given, bool) or not 0 <= given <= 1:
            raise DataError(f"{place}: score is {given!r}; write a number from 0 to 1, of the first reply, or null")
        score = float(given)
    return Judgement(
        prompt=_text(row, "prompt", place),
        first=_text(row, "first", place),
        second=_text(row, "second", place),
        names=_names(row.get("names"), place),
        score=score,
        shown_first=shown_first,
        shown_second=shown_second,
        unscored=(reason or NO_REASON) if math.isnan(score) else "",
    )


def _votes(votes: Any, place: str) -> tuple[float, float, str]:
    """Score of `first` where it was shown first and second, and the first reason for which a vote is unscored."""
    if votes is None:
        return math.nan, math.nan, ""
    if not isinstance(votes, list) or not all(isinstance(vote, dict) for vote in votes):
        raise DataError(f'{place}: votes is no list of objects; write [{{"shown": "first", "winner": "first"}}, …]')
    scores = {"first": math.nan, "second": math.nan}
    reason = ""
    for number, vote in enumerate(votes):
        shown = vote.get("shown")
        if shown not in scores:
            raise DataError(f'{place}: votes[{number}].shown is {shown!r}; write "first" or "second"')
        scores[shown] = _score_of(vote.get("winner"), f"{place}: votes[{number}].winner")
        reason = reason or str(vote.get("unscored") or "")
    return scores["first"], scores["second"], reason


def _score_of(winner: Any, place: str) -> float:
    if winner is None:
        return math.nan
    if not isinstance(winner, str) or winner not in SCORES:
        raise DataError(f'{place} is {winner!r}; write "first", "second", "tie" or null')
    return SCORES[winner]


def _text(row: Mapping[str, Any], field: str, place: str) -> str:
    value = row.get(field)
    if not isinstance(value, str):
        problem = "is missing" if field not in row else f"is {type(value).__name__}, not text"
        raise DataError(f"{place}: {field} {problem}; {FORM}")
    return value


def _names(names: Any, place: str) -> tuple[str, str]:
    if isinstance(names, list) and len(names) == 2 and all(isinstance(name, str) and name for name in names):
        return names[0], names[1]
    raise DataError(f'{place}: names is {names!r}; write who wrote the two replies: ["A", "B"]')
