"""Trials of a search over settings as its directory records them, in search.json. Needs no Optuna."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rlhf_lab.config.overrides import literal
from rlhf_lab.config.search_space import SearchGoal
from rlhf_lab.core.files import read_object, write_json
from rlhf_lab.results.rundir import is_run, read_run
from rlhf_lab.results.wording import compact, markdown_table, metric_phrase, metric_title
from rlhf_lab.studies.frame import COMPLETED

FILE = "search.json"
TITLE = "Trials of the search"
RUNNING = "running"
"""Status of a trial that runs, or that was interrupted."""


@dataclass(frozen=True)
class SearchTrial:
    """One trial.

    Attributes:
        values: searched key → value.
        status: status of its run, or RUNNING.
        score: value of the goal's metric; None if the trial is not complete.
    """

    index: int
    values: Mapping[str, Any]
    status: str
    score: float | None = None
    run: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class SearchTrials:
    """Trials of a search.

    Attributes:
        metrics: metrics of the table; the goal's metric first.
        limit: maximum number of trials.
        stopped: why the search stopped before `limit`; empty if it did not.
        command: command line of the best trial; empty if no trial is complete.
        shared_prompts: True if all seeds are tested on the same prompts.
    """

    goal: SearchGoal
    metrics: tuple[str, ...]
    limit: int
    trials: tuple[SearchTrial, ...] = ()
    stopped: str = ""
    command: str = ""
    shared_prompts: bool = False

    @property
    def best(self) -> SearchTrial | None:
        """The complete trial with the best score, the first of equal ones; None if no trial is complete."""
        best = None
        for trial in self.trials:
            if trial.score is None:
                continue
            if best is None or best.score is None or self.goal.better(trial.score, best.score):
                best = trial
        return best

    def trials_since_best(self) -> int:
        """Return the number of finished trials after the best one; 0 before there is one."""
        best = self.best
        return sum(trial.index > best.index and trial.status != RUNNING for trial in self.trials) if best else 0

    def write(self, directory: Path) -> None:
        write_json(directory / FILE, asdict(self))


def read_trials(directory: Path) -> SearchTrials | None:
    """Return the trials of a search directory; None for the directory of any other study."""
    stored = read_object(directory / FILE)
    if not stored:
        return None
    trials = tuple(SearchTrial(**trial) for trial in stored["trials"])
    values = {**stored, "goal": SearchGoal(**stored["goal"]), "metrics": tuple(stored["metrics"]), "trials": trials}
    return SearchTrials(**values)


def words_of(values: Mapping[str, Any]) -> str:
    """Return the values of a trial as overrides: "algorithm.beta=0.0731 algorithm.lr=0.0002"."""
    return " ".join(f"{key}={literal(value)}" for key, value in values.items())


def table(search: SearchTrials) -> tuple[list[str], list[list[str]]]:
    keys = list(dict.fromkeys(key for trial in search.trials for key in trial.values))
    headings = ["trial", *keys, *map(metric_title, search.metrics), "status"]
    best = search.best
    rows = []
    for trial in search.trials:
        status = "best" if best is not None and trial.index == best.index else trial.status
        if trial.error:
            status = f"{status}: {trial.error.strip().splitlines()[-1]}"
        values = [literal(trial.values[key]) for key in keys]
        rows.append([str(trial.index + 1), *values, *_measured(trial, search.metrics), status])
    return headings, rows


def _measured(trial: SearchTrial, metrics: Sequence[str]) -> list[str]:
    if trial.status != COMPLETED or trial.run is None or not is_run(Path(trial.run)):
        return ["–"] * len(metrics)
    run = read_run(Path(trial.run))
    estimates = [run.metric(name) for name in metrics]
    return ["–" if estimate is None else compact(estimate) for estimate in estimates]


def selection_note(search: SearchTrials) -> str:
    """Return what the value of the best trial means, and how it is confirmed."""
    count = sum(trial.score is not None for trial in search.trials)
    better = "high" if search.goal.direction == "higher" else "low"
    note = (
        f"The best of {count} trials was selected on the prompts and the seed that measured it, so its "
        f"{metric_phrase(search.goal.metric)} is too {better} on average. The comparison on fresh seeds is not "
        "selected."
    )
    if search.shared_prompts:
        note += " The fresh seeds are tested on the same prompts, so the comparison covers training alone."
    return note


def summary(search: SearchTrials) -> str:
    """Return how many trials there are, why the search stopped, and what its best trial means."""
    sentences = [f"{len(search.trials)} of at most {search.limit} trials."]
    if search.stopped:
        sentences.append(f"The search {search.stopped}.")
    if search.command:
        sentences.append(f"{selection_note(search)} One run with the best values: `{search.command}`.")
    return " ".join(sentences)


def trials_markdown(directory: Path) -> str:
    """Return the trials of a search as a section in Markdown; "" for any other study, and before the first trial."""
    search = read_trials(directory)
    if search is None or not search.trials:
        return ""
    headings, rows = table(search)
    alignment = "r" * (len(headings) - 1) + "l"
    return f"\n## {TITLE}\n\n{summary(search)}\n\n{markdown_table(headings, rows, alignment)}\n"


def stopped_after(search: SearchTrials, patience: int | None) -> SearchTrials:
    """Return the search with the reason to stop before its limit, if there is one."""
    if patience is None or search.trials_since_best() < patience:
        return replace(search, stopped="")
    return replace(search, stopped=f"stopped after {patience} trials without an improvement")
