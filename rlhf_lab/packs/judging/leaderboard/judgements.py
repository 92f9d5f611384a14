"""Reading of judgements.jsonl, one row per comparison, and of files with people's labels."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.files import fingerprint, parse_json, read_object
from rlhf_lab.data.text_files import file_lines
from rlhf_lab.data.transcript import as_prompt
from rlhf_lab.reports.comparison.report import outputs_dir
from rlhf_lab.results.folders import find_run

FILE, RESULT = "judgements.jsonl", "result.json"
SCORES = {"first": 1.0, "tie": 0.5, "second": 0.0}
"""Outcome → score of the first response."""
NO_REASON = "no reason given"
FORM = (
    'a row is {"prompt": "…", "first": "…", "second": "…", "names": ["A", "B"], "votes": […], '
    '"winner": "first" | "second" | "tie" | null, "score": 0 to 1 | null}'
)


@dataclass(frozen=True)
class JudgementRow:
    """A judge's comparison of two responses to one prompt.

    Attributes:
        prompt, first, second: texts of the prompt, as a transcript, and of the responses.
        names: authors of first and second.
        score: score of `first`: the mean of its votes; NaN if unscored.
        shown_first, shown_second: score of `first` when it was shown first or second; NaN without that vote.
        unscored: reason why there is no score; "" if there is one.
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
class LabelRow:
    """A person's comparison of two responses. `score` is that of `first`."""

    prompt: str
    first: str
    second: str
    score: float
    annotator: str


@dataclass(frozen=True)
class Judgements:
    """The rows of one or more files.

    Attributes:
        repeated: number of rows left out because an earlier one has the same id and texts (a file named twice, or a
            copy).
        unfinished: files of judgements that have stopped before their end, or are still running.
    """

    rows: tuple[JudgementRow, ...]
    repeated: int = 0
    unfinished: tuple[Path, ...] = ()


def find_files(sources: Sequence[str], outputs: Path = Path("outputs")) -> list[Path]:
    """Return the files of judgements for the sources: files, directories with judgements.jsonl, and runs or files of
    responses that `judge` has compared with each other.

    Args:
        outputs: an outputs directory to search for judgements, in addition to those of the sources.

    Raises DataError with all sources that have no judgements, or if `judge` has compared the sources in several ways.
    """
    paths = [Path(source).expanduser() for source in sources]
    # a run is a source if `judge` has compared it with another source of this command
    compared = _judgements_between(paths, outputs)
    files = []
    problems = []
    for source, path in zip(sources, paths, strict=True):
        if path.is_dir() and (path / FILE).is_file():
            files.append(path / FILE)
        elif found := compared.get(path):
            files += found
        elif path.is_file():
            files.append(path)
        else:
            problems.append(f"{source}: not a file, not a directory with {FILE}, not compared with the other sources")
    if problems:
        raise DataError(
            "; ".join(problems) + f"; name files or directories of judgements, leaderboard outputs/…/{FILE}, or runs "
            "that judge has compared: judge A B, then leaderboard A B"
        )
    return list(dict.fromkeys(files))


def _judgements_between(paths: Sequence[Path], outputs: Path) -> dict[Path, list[Path]]:
    """Return path → files in which `judge` compared this source with another one of these paths.

    Raises DataError if they differ in the judge or in its question: their scores mean different things.
    """
    # judgements record resolved paths, so sources are resolved the same way
    path_of = {_compared_path(path): path for path in paths}
    roots = {outputs.resolve(), *filter(None, (outputs_dir(path) for path in path_of))}
    found: dict[Path, list[Path]] = {}
    ways: dict[Path, dict[str, Any]] = {}
    results = [file for root in roots for file in root.glob(f"judgements/*/{RESULT}")]
    for result in sorted(results):
        stored = read_object(result)
        compared = [Path(source["path"]).resolve() for source in stored.get("sources", ())]
        file = result.with_name(FILE)
        if file.is_file() and all(path in path_of for path in compared):
            for path in compared:
                found.setdefault(path_of[path], []).append(file)
            if compared:
                ways[file.parent] = _way(stored)
    _refuse_several(ways)
    return found


def _way(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return what determines the meaning of a judgement's scores: the judge, and what it is asked."""
    identity = stored.get("judge") or {}
    rubric = stored.get("rubric") or {}
    settings = stored.get("settings") or {}
    return {
        **{f"judge.{name}": value for name, value in identity.items()},
        "rubric": f"{rubric['name']} ({rubric['digest'][:6]})" if rubric else "none",
        "reference": settings.get("reference") or "none",
        "max_tokens": settings.get("max_tokens"),
    }


def _refuse_several(ways: Mapping[Path, Mapping[str, Any]]) -> None:
    """Raise DataError with what differs between directories of judgements, if anything does."""
    names = dict.fromkeys(name for way in ways.values() for name in way)
    differing = [name for name in names if len({fingerprint(way.get(name)) for way in ways.values()}) > 1]
    if not differing:
        return
    listed = []
    for directory, way in ways.items():
        parts = [f"{name}={way[name]}" for name in differing if name in way]
        listed.append(f"{directory} ({', '.join(parts)})")
    raise DataError(
        f"these sources were judged in different ways, whose scores do not mean the same: {'; '.join(listed)}. Name "
        f"directories instead: leaderboard {next(iter(ways))}"
    )


def _compared_path(path: Path) -> Path:
    """Return the path that `judge` records for a source: for a job of a study, that of its run."""
    return (find_run(path) if (path / "job.json").is_file() else path).resolve()


def read_judgements(files: Sequence[Path]) -> Judgements:
    """Read all judgements, in their order, with the names of the players that `_players` gives.

    Raises DataError for the first invalid row, with its file, row number and field.
    """
    judgements: dict[tuple[str, str, str, str, tuple[str, str]], JudgementRow] = {}
    repeated = 0
    records = {file: read_object(file.with_name(RESULT)) for file in files}
    players = _players(records)
    for file in files:
        for number, row in _rows(file):
            judgement = _judgement(row, f"{file}: row {number}", players[file])
            identity = str(row.get("id", f"{file}:{number}"))
            # several files may use one id for different texts
            key = (identity, judgement.prompt, judgement.first, judgement.second, judgement.names)
            repeated += key in judgements
            judgements.setdefault(key, judgement)
    if not judgements:
        raise DataError(f"{', '.join(map(str, files))}: no judgement; {FORM}")
    unfinished = [file for file, stored in records.items() if stored.get("status", "completed") != "completed"]
    return Judgements(tuple(judgements.values()), repeated, tuple(unfinished))


def _players(records: Mapping[Path, Mapping[str, Any]]) -> dict[Path, dict[str, str]]:
    """Return file → name in its rows → name of the player, one per source over all files.

    `judge` chooses names that distinguish two sources. In another file the same name may stand for another source, and
    the same source may have another name. A player is named after its policy, and after its directory too if another
    source has that policy. Names without a recorded source stay as they are.

    Args:
        records: file → result.json beside it; empty if there is none.
    """
    sources: dict[Path, dict[str, tuple[Path, str]]] = {}  # file → name in its rows → (path, policy or "")
    candidates: dict[tuple[Path, str], list[str]] = {}
    for file, stored in records.items():
        sources[file] = {}
        for name, source in zip(stored.get("names", ()), stored.get("sources", ()), strict=False):
            path, policy = Path(source["path"]).resolve(), source["policy"] or ""
            sources[file][name] = path, policy
            # a source without a policy is a file of responses, which has the name of its author
            by_position = [f"{path.name} {policy}".strip(), f"{path} {policy}".strip()]
            candidates.setdefault((path, policy), [policy or name, *by_position])
    counts = Counter(name for names in candidates.values() for name in set(names))
    player_of = {
        source: next(name for name in names if counts[name] == 1 or name == names[-1])
        for source, names in candidates.items()
    }
    return {file: {name: player_of[source] for name, source in of_file.items()} for file, of_file in sources.items()}


def read_labels(file: Path) -> list[LabelRow]:
    """Read all labels of people. Skipped items have no winner and are left out. Raises as `read_judgements`."""
    if not file.is_file():
        raise DataError(f"truth={file}: no such file; name a .jsonl file of labels: {FORM_OF_LABELS}")
    labels = []
    for number, row in _rows(file):
        location = f"{file}: row {number}"
        score = _score_of(row.get("winner"), f"{location}: winner")
        if not math.isnan(score):
            prompt, first, second = (_text(row, field, location) for field in ("prompt", "first", "second"))
            labels.append(LabelRow(as_prompt(prompt), first, second, score, str(row.get("annotator") or "")))
    if not labels:
        raise DataError(f"truth={file}: no label; {FORM_OF_LABELS}")
    return labels


FORM_OF_LABELS = (
    'a row is {"prompt": "…", "first": "…", "second": "…", "winner": "first" | "second" | "tie", "annotator": "…"}'
)


def _rows(file: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in file_lines(file):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except ValueError as error:
            raise DataError(f"{file}: row {number} is not JSON ({error}); write one object per line") from error
        if not isinstance(row, dict):
            raise DataError(f"{file}: row {number} is not an object; {FORM}")
        yield number, row


def _judgement(row: Mapping[str, Any], location: str, players: Mapping[str, str]) -> JudgementRow:
    shown_first, shown_second, reason = _votes(row.get("votes"), location)
    score = _score_of(row.get("winner"), f"{location}: winner")
    provided = row.get("score")
    # an explicit score, e.g. the mean of two orders, has precedence over the winner
    if provided is not None:
        if not isinstance(provided, (int, float)) or isinstance(provided, bool) or not 0 <= provided <= 1:
            raise DataError(
                f"{location}: score is {provided!r}; expected a number from 0 to 1 for the first response, or null"
            )
        score = float(provided)
    return JudgementRow(
        prompt=as_prompt(_text(row, "prompt", location)),
        first=_text(row, "first", location),
        second=_text(row, "second", location),
        names=_names(row.get("names"), location, players),
        score=score,
        shown_first=shown_first,
        shown_second=shown_second,
        unscored=(reason or NO_REASON) if math.isnan(score) else "",
    )


def _votes(votes: Any, location: str) -> tuple[float, float, str]:
    """Return the score of `first` when shown first and when shown second, and the first reason of an unscored vote."""
    if votes is None:
        return math.nan, math.nan, ""
    if not isinstance(votes, list) or not all(isinstance(vote, dict) for vote in votes):
        raise DataError(
            f'{location}: votes is not a list of objects; write [{{"shown": "first", "winner": "first"}}, …]'
        )
    # one vote per order; a missing vote stays NaN
    scores = {"first": math.nan, "second": math.nan}
    reason = ""
    for index, vote in enumerate(votes):
        shown = vote.get("shown")
        if shown not in scores:
            raise DataError(f'{location}: votes[{index}].shown is {shown!r}; write "first" or "second"')
        scores[shown] = _score_of(vote.get("winner"), f"{location}: votes[{index}].winner")
        reason = reason or str(vote.get("unscored") or "")
    return scores["first"], scores["second"], reason


def _score_of(winner: Any, location: str) -> float:
    # a missing winner is unscored, not a tie
    if winner is None:
        return math.nan
    if not isinstance(winner, str) or winner not in SCORES:
        raise DataError(f'{location} is {winner!r}; write "first", "second", "tie" or null')
    return SCORES[winner]


def _text(row: Mapping[str, Any], field: str, location: str) -> str:
    value = row.get(field)
    if not isinstance(value, str):
        problem = "is missing" if field not in row else f"is {type(value).__name__}, not text"
        raise DataError(f"{location}: {field} {problem}; {FORM}")
    return value


def _names(names: Any, location: str, players: Mapping[str, str]) -> tuple[str, str]:
    is_pair = isinstance(names, list) and len(names) == 2
    if is_pair and all(isinstance(name, str) and name for name in names):
        first, second = (players.get(name, name) for name in names)
        return first, second
    raise DataError(f'{location}: names is {names!r}; write the authors of the two responses: ["A", "B"]')
