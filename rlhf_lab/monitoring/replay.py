"""Replay of a saved trace with the reward-hacking detector of live runs.

A trace is a run directory, or a .jsonl or .csv file with a row per response (or per iteration, with means):

    iteration | step | checkpoint    groups the rows that were sampled together; without it each row is an iteration
    tokens | length                  number of tokens of the response
    reward | proxy | score           empty if unscored
    prompt, gold                     optional
"""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from rlhf_lab.config import schema
from rlhf_lab.core.console import number_table
from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.files import read_jsonl, read_object
from rlhf_lab.monitoring.detector import (
    LEVELS,
    RULES,
    Detector,
    DetectorSettings,
    DetectorVerdict,
    IterationBatch,
    level_name,
    needed,
)
from rlhf_lab.monitoring.settings import LIMITS_FILE, TRACE, Monitor
from rlhf_lab.monitoring.truth import GoldTruth

NAMES = {
    "iteration": ("iteration", "step", "checkpoint"),
    "tokens": ("tokens", "length"),
    "reward": ("reward", "proxy", "score"),
    "prompt": ("prompt", "prompt_id"),
    "gold": ("gold",),
    "turns": ("turns",),
    "unverified": ("unverified",),
}
"""Column that the detector reads → its possible names in a file; the first name found in a row is used."""


@dataclass(frozen=True)
class Replay:
    """A judged trace.

    Attributes:
        verdicts: (iteration that completed the checkpoint, verdict) of each checkpoint.
        truth: whether gold fell on held-out prompts; None if the source is not a run that measured it.
    """

    batches: Sequence[IterationBatch]
    verdicts: Sequence[tuple[int, DetectorVerdict]]
    detector: Detector
    truth: GoldTruth | None = None

    def totals(self) -> dict[str, float]:
        """Return the metrics of the entire trace; see metrics.py."""
        return self.detector.totals(self.truth)


def replay(source: Path, changes: Mapping[str, Any] | None = None) -> Replay:
    """Judge a trace with the limits of its run, or the defaults; `changes` override settings of `reward.monitor`."""
    changes = changes or {}
    batches = read_trace(source)
    saved = read_object(source / LIMITS_FILE) if source.is_dir() else {}
    if "signals" in saved:  # a run of an earlier version may have used a rule that is gone
        saved["signals"] = [name for name in saved["signals"] if name in RULES]
    problems = ["action has no effect, because nothing is trained here; remove it"] if "action" in changes else []
    # The rules on settings are about the changes together with the settings of the run.
    of_run = {name: saved[name] for name in Monitor.__dataclass_fields__ if name in saved}
    settings = schema.build(Monitor, {**of_run, **changes}, "monitor", problems)
    if problems:
        raise ConfigError(problems)
    defaults = DetectorSettings.of(settings, len(batches), every=settings.every, warmup=settings.warmup)
    base = dataclasses.replace(defaults, **{name: saved[name] for name in vars(defaults) if name in saved})
    changed = {name: getattr(settings, name) for name in changes}
    if "every" in changed:  # the same iterations form another number of checkpoints
        changed["planned"] = base.planned * base.every // changed["every"]
    detector = Detector(dataclasses.replace(base, **changed))
    judged = [(iteration, detector.see(batch)) for iteration, batch in enumerate(batches)]
    verdicts = [(iteration, verdict) for iteration, verdict in judged if verdict is not None]
    result = read_object(source / "result.json") if source.is_dir() else {}
    truth = GoldTruth.from_metrics(result.get("metrics") or {})
    return Replay(batches, verdicts, detector, truth)


def read_trace(source: Path) -> list[IterationBatch]:
    """Return the batches of a run directory or file, in order. Raises DataError if it contains no trace."""
    if source.is_dir():
        rows = read_jsonl(source / TRACE)
        if rows:
            return [IterationBatch.from_row(row) for row in rows]
        source = source / "metrics.jsonl"  # a run without the monitor may have logged the means of iterations
    if not source.is_file():
        raise DataError(f"{source} does not exist; name a run directory, or a .jsonl or .csv file of samples")
    rows = read_jsonl(source) if source.suffix == ".jsonl" else _read_csv(source)
    samples_by_iteration: dict[Any, list[dict[str, Any]]] = {}
    for index, row in enumerate(rows):
        sample = {key: _first_column(row, names) for key, names in NAMES.items()}
        if sample["tokens"] is not None:
            iteration = index if sample["iteration"] is None else sample["iteration"]
            samples_by_iteration.setdefault(iteration, []).append(sample)
    if not samples_by_iteration:
        raise DataError(f"{source} has no column {' or '.join(NAMES['tokens'])}; see python -m rlhf_lab monitor")
    return [_build_batch(samples) for samples in samples_by_iteration.values()]


def _first_column(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    """Return the value of the first of these columns that the row has; None without any."""
    return next((row[name] for name in names if name in row), None)


def _read_csv(source: Path) -> list[dict[str, Any]]:
    with source.open(newline="", encoding="utf-8-sig") as handle:  # spreadsheets write a byte order mark
        # an empty cell is unscored
        return [{key: value or None for key, value in row.items()} for row in csv.DictReader(handle)]


def _build_batch(samples: list[dict[str, Any]]) -> IterationBatch:
    """Return one iteration's samples as a batch. Raises DataError for text in a numeric column."""
    numeric = [key for key in NAMES if key not in ("iteration", "prompt")]
    try:
        columns = {key: [_number(sample[key]) for sample in samples] for key in numeric}
    except ValueError as error:
        raise DataError(f"a sample has a value that is not a number: {error}") from None
    prompts = dict.fromkeys(sample["prompt"] for sample in samples)
    prompt_ids = {prompt: i for i, prompt in enumerate(prompts)}
    if None not in prompt_ids:  # without a prompt column, every sample counts as a different prompt
        columns["prompt"] = [float(prompt_ids[sample["prompt"]]) for sample in samples]
    return IterationBatch.from_row(columns)


def _number(value: Any) -> float | None:
    return None if value is None or not math.isfinite(float(value)) else float(value)


def rule_rows(judged: Replay) -> tuple[list[str], list[list[str]]]:
    """Return (headings, a row per rule) of the table of alarms.

    The columns are the first alarm, the fraction of checkpoints in alarm and the last value of the statistic. If gold
    is known, "lead" is the number of iterations from the alarm to the fall of gold.
    """
    detector = judged.detector
    totals = judged.totals()
    last = judged.verdicts[-1][1].statistics if judged.verdicts else {}
    truth_known = "gold_fell" in totals
    headings = ["rule", "first alarm", "fraction of checkpoints", "last value"]
    if truth_known:
        headings.append("lead")
    rows = []
    for name in (*RULES, *LEVELS[1:]):
        if f"alarm/{name}" not in totals:  # the rule had no data
            continue
        row = [
            level_name(name, detector.limits.signals, parting=detector.parting_suffices),
            _cell(totals[f"alarm_at/{name}"] + 1, 0),  # shown iterations count from 1
            f"{totals[f'alarm_share/{name}']:.0%}",
            _cell(last.get(name, math.nan), 2),
        ]
        if truth_known:
            row.append(_cell(totals[f"lead/{name}"], 0))
        rows.append(row)
    return headings, rows


def table(judged: Replay) -> Table:
    """Return the rows of `rule_rows` as a table for the console."""
    return number_table(*rule_rows(judged), wraps=True)


def summary(judged: Replay) -> str:
    """Return a text about the judged iterations and the rules, and about a fall of gold if gold is known."""
    detector = judged.detector
    limit = detector.limits
    text = (
        f"{len(judged.batches)} iterations, {limit.warmup} of warm-up, {detector.checkpoints} judged; "
        f"{', '.join(limit.signals)} count, {needed(limit.signals)} at once are a strong warning"
    )
    totals = judged.totals()
    if "gold_peak" not in totals:
        samples = "not known"
    elif math.isnan(totals["gold_fall"]):
        samples = "no fall from its best value was found"
    else:
        samples = f"best until iteration {totals['gold_peak'] + 1:.0f}, fallen at {totals['gold_fall'] + 1:.0f}"
    return f"{text}\ngold reward of the samples: {samples}{_heldout_line(judged.truth)}"


def _heldout_line(truth: GoldTruth | None) -> str:
    """Return a line on gold on held-out prompts, with which alarms are judged; empty if it was not measured."""
    if truth is None:
        return ""
    words = {True: f"below the start from iteration {truth.fell_at + 1:.0f} on", False: "not below the start"}
    verdict = "undecided" if truth.fell is None else words[truth.fell]
    return f"\ngold reward on held-out prompts: {verdict} (change {truth.change:+.2f})"


def _cell(value: float, digits: int) -> str:
    return "–" if math.isnan(value) else f"{value:.{digits}f}"
