"""Judges a saved trace with the reward-hacking detector that watches live runs.

A trace is a run directory, or a .jsonl or .csv file with a row per reply (or per iteration, then of means):

    iteration | step | checkpoint    what was sampled together; rows without it are an iteration each
    tokens | length                  of the reply
    reward | proxy | score           empty where unscored
    prompt, disagreement, gold       where they are known
"""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from rlhf_lab.config import schema
from rlhf_lab.config.sections import Monitor
from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.files import read_json, read_jsonl
from rlhf_lab.monitoring.detector import LEVELS, RULES, Batch, Detector, Limits, Verdict, level_name
from rlhf_lab.monitoring.monitor import LIMITS_FILE, TRACE, limits

NAMES = {
    "iteration": ("iteration", "step", "checkpoint"),
    "tokens": ("tokens", "length"),
    "reward": ("reward", "proxy", "score"),
    "prompt": ("prompt", "prompt_id"),
    "disagreement": ("disagreement",),
    "gold": ("gold",),
}
"""What the detector reads → columns that it may be called, the first one there."""


@dataclass(frozen=True)
class Replay:
    """A judged trace: its batches, each checkpoint's verdict after the iteration that completed it, the detector."""

    batches: Sequence[Batch]
    verdicts: Sequence[tuple[int, Verdict]]
    detector: Detector


def replay(source: Path, changes: Mapping[str, Any] | None = None) -> Replay:
    """Judge a trace with the limits of its run, or the defaults; `changes` are settings of `reward.monitor`."""
    batches = read_trace(source)
    found = read_json(source / LIMITS_FILE) if source.is_dir() else None
    problems: list[str] = []
    settings = schema.build(Monitor, changes or {}, "monitor", problems)
    if problems:
        raise ConfigError(problems)
    base = Limits(**found) if found else limits(settings, len(batches), settings.every, settings.warmup, 0)
    own = {name: getattr(settings, name) for name in changes or {} if hasattr(base, name)}
    if "every" in own:
        own["planned"] = base.planned * base.every // own["every"]
    detector = Detector(dataclasses.replace(base, **own))
    verdicts = [(i, verdict) for i, batch in enumerate(batches) if (verdict := detector.see(batch)) is not None]
    return Replay(batches, verdicts, detector)


def read_trace(source: Path) -> list[Batch]:
    """The batches of a run directory or file, in order. Raises DataError for what is no trace."""
    if source.is_dir():
        rows = read_jsonl(source / TRACE)
        if rows:
            return [Batch.from_row(row) for row in rows]
        source = source / "metrics.jsonl"
    if not source.is_file():
        raise DataError(f"{source} does not exist; name a run directory, or a .jsonl or .csv file of samples")
    rows = read_jsonl(source) if source.suffix == ".jsonl" else _read_csv(source)
    groups: dict[Any, list[dict[str, Any]]] = {}
    for number, row in enumerate(rows):
        known = {key: next((row[n] for n in names if n in row), None) for key, names in NAMES.items()}
        if known["tokens"] is not None:
            groups.setdefault(number if known["iteration"] is None else known["iteration"], []).append(known)
    if not groups:
        raise DataError(f"{source} has no column {' or '.join(NAMES['tokens'])}; see python -m rlhf_lab monitor")
    return [_batch(rows) for rows in groups.values()]


def _read_csv(source: Path) -> list[dict[str, Any]]:
    with source.open(newline="", encoding="utf-8") as handle:
        return [{key: value or None for key, value in row.items()} for row in csv.DictReader(handle)]


def _batch(rows: list[dict[str, Any]]) -> Batch:
    try:
        columns = {key: [_number(row[key]) for row in rows] for key in NAMES if key not in ("iteration", "prompt")}
    except ValueError as error:
        raise DataError(f"a sample is not a number: {error}") from None
    places = {text: i for i, text in enumerate(dict.fromkeys(row["prompt"] for row in rows))}
    if None not in places:
        columns["prompt"] = [float(places[row["prompt"]]) for row in rows]
    return Batch.from_row(columns)


def _number(value: Any) -> float | None:
    return None if value is None or not math.isfinite(float(value)) else float(value)


def rule_rows(found: Replay) -> tuple[list[str], list[list[str]]]:
    """(headings, a row per rule): first alarm, share of checkpoints, and the lead where the truth is known."""
    totals = found.detector.totals()
    last, known = found.verdicts[-1][1].statistics if found.verdicts else {}, "hacked" in totals
    rows = []
    for name in (*RULES, *LEVELS[1:]):
        if f"alarm/{name}" in totals:
            at, share = totals[f"alarm_at/{name}"], totals[f"alarm_share/{name}"]
            cells = [_cell(at + 1, 0), f"{share:.0%}", _cell(last.get(name, math.nan), 2)]
            rows.append(
                [
                    level_name(name, found.detector.limits.needed),
                    *cells,
                    *([_cell(totals[f"lead/{name}"], 0)] if known else []),
                ]
            )
    return ["rule", "first alarm", "share of checkpoints", "last value", *(["lead"] if known else [])], rows


def table(found: Replay) -> Table:
    """The rows of `rule_rows` for a terminal."""
    shown, (columns, rows) = Table(box=box.SIMPLE_HEAD, pad_edge=False), rule_rows(found)
    for number, name in enumerate(columns):
        shown.add_column(name, justify="right" if number else "left")
    for row in rows:
        shown.add_row(*row)
    return shown


def summary(found: Replay) -> str:
    """What was judged, and what the true reward did where it is known."""
    detector, limit = found.detector, found.detector.limits
    text = (
        f"{len(found.batches)} iterations, {limit.warmup} of warm-up, {detector.checkpoints} judged; "
        f"{', '.join(limit.signals)} count, {limit.needed} at once are a strong warning"
    )
    totals = detector.totals()
    if totals.get("hacked"):
        peak, fall = totals["gold_peak"] + 1, totals["gold_fall"] + 1
        return f"{text}\ntrue reward of the samples: best until iteration {peak:.0f}, fallen at {fall:.0f}"
    if "hacked" not in totals:
        return f"{text}\ntrue reward of the samples: not known"
    alarmed = totals.get("alarm/warning") == 1
    comment = ", so no alarm announced a fall" if alarmed else ""
    return f"{text}\ntrue reward of the samples: does not fall{comment}"


def _cell(value: float, digits: int) -> str:
    return "–" if math.isnan(value) else f"{value:.{digits}f}"
