"""Read a run directory: recipe, settings, every logged metric, every scored sample, and the result.

A run may have failed, been interrupted, or still be running. Everything missing or unreadable becomes an entry of
`StoredRun.problems`; only a directory that is not a run raises an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import pandas as pd

from rlhf_lab.config import registry
from rlhf_lab.core import checksums as seal
from rlhf_lab.core import measures
from rlhf_lab.core.errors import ConfigError, DataError, NumericError
from rlhf_lab.core.files import parse_json
from rlhf_lab.core.metrics import INPUT
from rlhf_lab.core.yaml_files import parse_yaml
from rlhf_lab.models.model_files import input_identity
from rlhf_lab.statistics.estimates import Estimate, as_estimate
from rlhf_lab.training.settings import StageSettings

P = ParamSpec("P")
T = TypeVar("T")
TRUE_REWARD = "the true reward of a simulated world"
"""Description of gold if the data contain the true reward."""


@dataclass(frozen=True)
class EvaluatedPolicy:
    """Evaluated policy of a run: its name and its metrics, e.g. "gold", "proxy", "kl", "tokens"."""

    name: str
    metrics: Mapping[str, Estimate]


@dataclass(frozen=True, eq=False)
class StoredRun:
    """Content of a run directory. Two objects are equal only if they are the same one.

    Attributes:
        path: the run directory.
        manifest: recipe, key, created, seconds, git_sha, versions, seed, needs, data.
        config: the resolved configuration, as written (YAML).
        metrics: one row per logged step: step, time, stage and metric columns. Empty if nothing was logged.
        evaluation: one row per scored sample: policy, prompt_id, prompt, response, proxy, gold, kl, tokens, …
        status: completed, failed, interrupted, paused (by the monitor), or "unfinished" if no result was written.
        error: message of the error that stopped the run, or None.
        seconds: duration of the stage; None if unknown.
        policies: evaluated policies in the order of training; the first is the starting policy, the last the run's own.
        results: flat run-level numbers, e.g. "gold/best".
        cost: `seconds` (of the last attempt) and `peak_gib` of the stage without upstream stages, and the cost of its
            training (training/metrics.py).
        changed: files of a completed run that a report reads and that are missing or have changed since.
        problems: descriptions of missing or unreadable files.
        notes: notes of the run itself, in order.
    """

    path: Path
    manifest: Mapping[str, Any]
    config: str
    metrics: pd.DataFrame
    evaluation: pd.DataFrame
    status: str
    error: str | None
    seconds: float | None
    policies: tuple[EvaluatedPolicy, ...]
    results: Mapping[str, Estimate]
    cost: Mapping[str, Estimate]
    changed: tuple[str, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def recipe(self) -> str:
        """Name of the recipe; the directory's name if the manifest has none."""
        return str(self.manifest.get("recipe") or self.path.name)

    @property
    def has_gold(self) -> bool:
        """True if responses have a gold reward: that of a simulated world, or of the model in `needs.gold`."""
        if "gold" in self.evaluation and bool(self.evaluation["gold"].notna().any()):
            return True
        stored = (policy.metrics.get("gold") for policy in self.policies)
        return any(gold is not None and not math.isnan(gold.mean) for gold in stored)

    @property
    def has_verified_answers(self) -> bool:
        """True if answers of responses, or outcomes of attempts, are checked and are either right or wrong."""
        return any({"correct", "success"} & policy.metrics.keys() for policy in self.policies)

    @property
    def gold_source(self) -> str:
        """Source of gold, as the end of the sentence "gold is …"; empty if there is none."""
        if not self.has_gold:
            return ""
        needs = self.settings.get("needs") or {}
        if model := needs.get("gold"):
            return f"the score of the reward model {model}"
        if rubric := needs.get("judge"):
            judge = self.settings.get("judge") or {}
            who = " ".join(str(judge[key]) for key in ("kind", "model") if judge.get(key))
            return f"the grade of the judge {who} on the rubric {rubric}"
        return TRUE_REWARD

    @property
    def world(self) -> str:
        """Data against which this run's gold, correct answers and successes are measured, e.g. "mini_hh".

        Empty if the run does not record it. Sizes and seeds of a world are ignored: they change prompts, not the
        measure.
        """
        name = str((self.manifest.get("data") or {}).get("name") or "")
        settings = self.settings.get("data") or {}
        # Tasks of an environment have a truth of their own.
        if environment := settings.get("environment"):
            return f"{name} {environment}"
        # A mixture is identified by the kinds of its sources.
        if sources := settings.get("sources"):
            kinds = {str(source.get("kind")) for source in sources.values() if isinstance(source, Mapping)}
            return f"{name} of {', '.join(sorted(kinds))}"
        return name

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The resolved config as values; empty if it is missing or unreadable."""
        try:
            values = parse_yaml(self.config, f"{self.path}/config.yaml")
        except ConfigError:
            return {}
        return values if isinstance(values, dict) else {}

    @cached_property
    def stage(self) -> type[StageSettings]:
        """Settings class of the algorithm of the run."""
        return algorithm_settings(str((self.settings.get("algorithm") or {}).get("kind", "")))

    def metric(self, name: str) -> Estimate | None:
        """Return a run-level number, or that metric of the run's own policy; None if there is neither.

        "reward:accuracy" is `accuracy` of the run that this one used as `needs.reward`.
        """
        role, separator, name_of_input = name.partition(INPUT)
        if separator:
            used = _input_run(self, role)
            return used.metric(name_of_input) if used else None
        if name in self.cost:
            return self.cost[name]
        if name in self.results:
            return self.results[name]
        return self.policies[-1].metrics.get(name) if self.policies else None


def algorithm_settings(kind: str) -> type[StageSettings]:
    """Return the settings class of an algorithm; the base class if its plug-in is no longer installed."""
    if kind in registry.kinds("algorithm"):
        return registry.settings_class("algorithm", kind)
    return StageSettings


def once_per_run(function: Callable[Concatenate[StoredRun, P], T]) -> Callable[Concatenate[StoredRun, P], T]:
    """Return the function with its results remembered for as long as the run exists.

    Sections of a page ask for the same comparisons, and a comparison takes longer than drawing it. The other arguments
    must be hashable, and nobody may change a result.
    """
    results: WeakKeyDictionary[StoredRun, dict[Any, T]] = WeakKeyDictionary()

    @wraps(function)
    def remembered(run: StoredRun, *args: P.args, **kwargs: P.kwargs) -> T:
        of_run = results.setdefault(run, {})
        key = (args, tuple(sorted(kwargs.items())))
        if key not in of_run:
            of_run[key] = function(run, *args, **kwargs)
        return of_run[key]

    return remembered


@once_per_run
def _input_run(run: StoredRun, role: str) -> StoredRun | None:
    """Return the run that made the input of a role; None for a model from elsewhere, or if it is missing."""
    directory = input_directory(run.path, (run.manifest.get("needs") or {}).get(role) or {})
    return read_run(directory) if directory else None


def input_directory(run: Path, need: Mapping[str, Any]) -> Path | None:
    """Return the run directory of an input; None if no run made it, or if it is missing or has changed.

    Args:
        run: directory of the run that used the input.
        need: the input's entry in the run's manifest: recipe, key, dir. Without a recipe, the user named the directory
            of a model or of a run.
    """
    written = Path(str(need.get("dir", "")))
    # Stages of one store are next to each other, also after the store was moved.
    if need.get("recipe"):
        candidates = (run.parent / written.name, written.resolve())
        return next((directory for directory in candidates if is_run(directory)), None)
    for directory in (run.parent / written.parent.name / written.name, run.parent / written.name, written.resolve()):
        owner = directory.parent if directory.name == "model" else directory
        # An input that the user named may have been replaced since.
        if is_run(owner) and input_identity(str(directory)) == need.get("key"):
            return owner
    return None


def is_run(directory: Path) -> bool:
    """Return True if the directory holds a run, complete or not."""
    return (directory / "manifest.json").is_file() or (directory / "result.json").is_file()


def read_run(directory: Path | str) -> StoredRun:
    """Read a run directory, complete or partial. Raise DataError if the directory is not a run."""
    directory = Path(directory)
    if not is_run(directory):
        raise DataError(f"{directory} is not a run directory: it has neither manifest.json nor result.json")
    problems: list[str] = []
    manifest = read_json(directory / "manifest.json", problems)
    result = read_json(directory / "result.json", problems)
    measures.recall(directory)  # metrics that a world declared get their titles from the manifest
    # Every file is optional, because the run may have stopped at any time.
    config_file = directory / "config.yaml"
    metrics = read_rows(directory / "metrics.jsonl", problems)
    evaluation = _typed_evaluation(read_rows(directory / "evaluation.jsonl", problems))
    policies = []
    for index, row in enumerate(result.get("policies") or []):
        if isinstance(row, Mapping):
            name = str(row.get("name", f"policy {index}"))
            policies.append(EvaluatedPolicy(name, estimates(row.get("metrics"), problems)))
    if changed := seal.changed(directory):
        problems.append(f"{', '.join(changed)} changed since completion ({seal.NAME})")
    seconds = result.get("seconds")
    stage_cost = {key: result[key] for key in ("seconds", "peak_gib") if result.get(key) is not None}
    return StoredRun(
        path=directory,
        manifest=manifest,
        config=config_file.read_text(encoding="utf-8", errors="replace") if config_file.is_file() else "",
        metrics=metrics,
        evaluation=evaluation,
        status=str(result.get("status") or "unfinished"),
        error=result.get("error"),
        seconds=None if seconds is None else float(seconds),
        policies=tuple(policies),
        results=estimates(result.get("metrics"), problems),
        cost=estimates(stage_cost | (result.get("training") or {}), problems),
        changed=tuple(changed),
        problems=tuple(problems),
        notes=tuple(str(note) for note in result.get("notes") or []),
    )


def read_json(file: Path, problems: list[str]) -> dict[str, Any]:
    """Return a JSON object; empty, with an entry in `problems`, if the file is missing or damaged."""
    if not file.is_file():
        problems.append(f"{file.name} is missing")
        return {}
    try:
        content = parse_json(file.read_text(encoding="utf-8"))
    except ValueError as fault:
        problems.append(f"{file.name} is not readable JSON ({fault})")
        return {}
    if not isinstance(content, dict):
        problems.append(f"{file.name} contains a {type(content).__name__}, not an object")
        return {}
    return content


def read_rows(file: Path, problems: list[str]) -> pd.DataFrame:
    """Read a JSONL file as a frame. A line that is not JSON (the last one of a killed process) is skipped and noted."""
    if not file.is_file():
        return pd.DataFrame()
    rows, broken = [], []
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except ValueError:
            row = None
        if isinstance(row, dict):
            rows.append(row)
        else:
            broken.append(number)
    if broken:
        lines = ", ".join([*map(str, broken[:5]), *["…"] * (len(broken) > 5)])
        total = len(rows) + len(broken)
        problems.append(f"{file.name}: {len(broken)} of {total} lines are cut off (line {lines})")
    return pd.DataFrame(rows)


def estimates(values: object, problems: list[str]) -> dict[str, Estimate]:
    """Return every numeric entry of a metrics object. An impossible estimate is rejected, with a note in `problems`."""
    if not isinstance(values, Mapping):
        return {}
    parsed: dict[str, Estimate] = {}
    for name, value in values.items():
        try:
            estimate = as_estimate(value)
        except (NumericError, TypeError, ValueError) as fault:
            problems.append(f"result.json: {name} is rejected: {fault}")
            continue
        if estimate is not None:
            parsed[str(name)] = estimate
    return parsed


def _typed_evaluation(rows: pd.DataFrame) -> pd.DataFrame:
    """Convert numeric columns to floats (null = unscored = NaN) and text columns to strings."""
    if rows.empty:
        return rows
    # JSON has null for unscored values; statistics need NaN.
    for column in ("proxy", "gold", "kl", "tokens", "verbose", "garble", "ended"):
        if column in rows:
            rows[column] = pd.to_numeric(rows[column], errors="coerce").astype(float)
    for column in ("policy", "prompt", "response"):
        rows[column] = rows[column].fillna("").astype(str) if column in rows else ""
    # Rows without an id are identified by the text of the prompt.
    rows["prompt_id"] = rows["prompt_id" if "prompt_id" in rows else "prompt"].astype(str)
    return rows
