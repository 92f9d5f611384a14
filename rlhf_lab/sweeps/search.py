"""Run of a search over settings (`study.search`): trials one after another, then the best one on fresh seeds.

The directory has Optuna's journal, search.json (the trials, readable without Optuna) and trials/<index>/. The
comparison of the best trial with the default settings is a study in the same directory: study.json and
jobs/<index>/. So `report` works on an unfinished search.

Trials are not stopped early by their evaluations during training, because these measure another metric in each
algorithm (pairs in DPO, samples in PPO), and rarely the goal. `study.patience` stops the search instead.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from rlhf_lab.config import command_line, schema, search_space, typed_overrides, typed_sweep
from rlhf_lab.config.overrides import as_overrides
from rlhf_lab.config.smoke import NOTICE
from rlhf_lab.config.study_settings import StudySettings
from rlhf_lab.core import invocation
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import check_outputs, make_dir, write_json
from rlhf_lab.core.redaction import redacted, redacted_arguments
from rlhf_lab.stages import artifacts, preflight
from rlhf_lab.studies.frame import COMPLETED
from rlhf_lab.studies.replication import replication
from rlhf_lab.studies.search_trials import (
    RUNNING,
    SearchTrial,
    SearchTrials,
    selection_note,
    stopped_after,
    table,
    words_of,
)
from rlhf_lab.sweeps.job_lines import JobLines, job_finished
from rlhf_lab.sweeps.job_record import OUTPUT, output_to, plan_tracked, record_job
from rlhf_lab.sweeps.optuna_trials import OptunaTrials
from rlhf_lab.sweeps.sweep import study_dir, write_results

RunStage = Callable[[artifacts.Stage], tuple[int, dict[str, Any]]]
COMPARED = "settings"
"""Compared factor of the confirmation study, with the levels BEST and DEFAULT. It is not the key of a setting, because
a trial changes several settings at once."""
BEST, DEFAULT = "best", "default"
"""Levels of the confirmation."""


def run(command: command_line.Command, config_dir: str | None, run_stage: RunStage) -> int:
    """Run the trials of a checked command and confirm the best one. Return the exit status."""
    study = command.study
    assert study is not None and study.goal is not None
    launchers = [word for word in command.overrides if word.startswith("hydra")]
    if launchers:
        raise ConfigError(f"{' '.join(launchers)}: a search runs its trials in this process, one by one; remove it")
    check_outputs(Path(command.configs[0].outputs))
    preflight.check(preflight.planned(command))
    directory = study_dir(command)
    make_dir(directory)
    space = {key: search_space.dimension(written) for key, written in study.search.items()}
    trials = OptunaTrials(directory, space, study.goal, command.configs[0].seed)
    search = SettingsSearch(command, study, config_dir, directory, run_stage)
    confirmation = search.plan_confirmation({})
    shared_prompts = replication(confirmation.stages, confirmation.jobs).shares_prompts
    search.write_study(confirmation)
    console.inform(f"[bold]{command.recipe}[/]: {escape(redacted(search.question))}", markup=True)
    if command.configs[0].size == "smoke":
        console.inform(f"  [yellow]{NOTICE}[/]", markup=True)
    console.inform(f"  at most {study.trials} trials; directory {directory}")
    invocation.start_building()

    state = SearchTrials(study.goal, tuple(study.metrics), study.trials, shared_prompts=shared_prompts)
    state = search.run_trials(state, trials)
    console.print(trial_table(state))
    best = state.best
    if best is None:
        console.print(f"no trial is complete; their output is in {directory}/trials")
        return 1
    if state.stopped:
        console.print(f"The search {state.stopped}.")
    console.print(selection_note(state), style="dim")
    console.print(f"best    {state.command}\n")
    try:
        search.confirm(search.plan_confirmation(best.values))
    finally:
        failed = write_results(directory, 2 * study.confirm_seeds)
    return 1 if failed else 0


def trial_table(state: SearchTrials) -> Table:
    headings, rows = table(state)
    grid = Table(title="Trials", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        grid.add_column(escape(heading), overflow="fold")
    for row in rows:
        grid.add_row(*map(escape, row))
    return grid


@dataclass(frozen=True)
class Confirmation:
    """Level, seed and last stage of the jobs that compare the best trial with the defaults, on fresh seeds."""

    jobs: list[dict[str, Any]]
    stages: list[artifacts.Stage]


@dataclass(frozen=True)
class SettingsSearch:
    """A running search of a checked command, with the user's own directory of recipes and that of the search."""

    command: command_line.Command
    study: StudySettings
    config_dir: str | None
    directory: Path
    run_stage: RunStage

    @property
    def question(self) -> str:
        """Question of the study; if it has none, a question that names the searched keys."""
        keys = ", ".join(self.study.search)
        return self.study.question or f"Which values of {keys} give the best {self.study.metrics[0]}?"

    def run_trials(self, state: SearchTrials, trials: OptunaTrials) -> SearchTrials:
        """Run trials up to the limit, interrupted ones first, and return them.

        Raises:
            KeyboardInterrupt: a trial was interrupted; it is continued by the next call.
            ConfigError: the first complete trial has no metric of the goal's name.
        """
        state = self.record(state, trials)
        while not state.stopped and (len(state.trials) < state.limit or state.trials[-1].status == RUNNING):
            trial = self.run_trial(trials.next(), is_first=state.best is None)
            if trial.status == "interrupted":
                console.print(trial_table(self.record(state, trials)))
                raise KeyboardInterrupt
            trials.finish(trial)
            state = self.record(state, trials)
            self.print_trial(trial, state)
        return state

    def run_trial(self, trial: SearchTrial, *, is_first: bool) -> SearchTrial:
        """Run a trial, and return it with its outcome.

        Without any score so far (`is_first`), a trial without the metric is an error: the others would lack it too.
        """
        stage = self._stage(trial.values, self.command.configs[0].seed)
        record = self._run_job(stage, self.directory / "trials" / str(trial.index))
        score, error = None, record["error"]
        if record["status"] == COMPLETED:
            score = self._score(stage, is_first=is_first)
            if score is None:
                error = f"its result has no {self.study.metrics[0]}"
        # Without a score the trial counts as failed: nothing can be learned from it.
        status = "failed" if record["status"] == COMPLETED and score is None else record["status"]
        return dataclasses.replace(trial, status=status, score=score, run=record["run"], error=error)

    def _score(self, stage: artifacts.Stage, *, is_first: bool) -> float | None:
        """Return the value of the metric of `study.goal`; None if the run has none, see `run_trial`."""
        from rlhf_lab.results.rundir import read_run

        name, run = self.study.metrics[0], read_run(stage.directory)
        estimate = run.metric(name)
        if estimate is None and is_first:
            known = {*run.results, *(run.policies[-1].metrics if run.policies else ())}
            raise ConfigError(
                f"study.goal: the result of the first trial, {stage.directory}, has no {name}"
                f"{schema.did_you_mean(name, known)}"
            )
        return None if estimate is None or math.isnan(estimate.mean) else estimate.mean

    def _run_job(self, stage: artifacts.Stage, directory: Path) -> dict[str, Any]:
        make_dir(directory)

        def work(record: dict[str, Any]) -> None:
            record["run"] = str(stage.directory.resolve())
            with output_to(directory / OUTPUT):
                _, result = self.run_stage(stage)
            record |= {"status": result["status"], "error": result.get("error")}

        return record_job(directory, work)

    def _stage(self, values: Mapping[str, Any], seed: int, level: str = "") -> artifacts.Stage:
        """Return the stage of the command with some values and a seed, or of a compared level of the confirmation."""
        words = [*self._shared_words(), "study=null", f"seed={seed}", *as_overrides(values)]
        config = command_line.check_command(words, self.config_dir).configs[0]
        if self.command.configs[0].question:
            config = config.replace(question=self.command.configs[0].question)
        swept = {COMPARED: level, "seed": seed} if level else values
        return plan_tracked(config, self.command.names[0], group=self.directory.name, swept=swept)

    def _shared_words(self) -> list[str]:
        """Return the overrides of the command without those of the study and the seed."""
        return [
            word
            for word in self.command.overrides
            if typed_overrides.key_of(word).partition(".")[0] not in ("study", "seed")
        ]

    def record(self, state: SearchTrials, trials: OptunaTrials) -> SearchTrials:
        """Return the state with all trials so far, and write it to search.json."""
        state = stopped_after(dataclasses.replace(state, trials=trials.trials()), self.study.patience)
        if state.best is not None:
            state = dataclasses.replace(state, command=self.command_line(state.best.values))
        state.write(self.directory)
        return state

    def command_line(self, values: Mapping[str, Any]) -> str:
        words = self._shared_words()
        is_in_recipe = not any(typed_overrides.key_of(word) == "study.search" for word in self.command.overrides)
        if is_in_recipe:
            words.append("study=null")  # one run of the recipe, not the search
        if self.config_dir:
            words = ["--config-dir", self.config_dir, *words]
        if seed := self.command.configs[0].seed:
            words.append(f"seed={seed}")
        return shlex.join([*invocation.program(), *redacted_arguments(words), *as_overrides(values)])

    def print_trial(self, trial: SearchTrial, state: SearchTrials) -> None:
        words = words_of(trial.values)
        name = f"trial {trial.index + 1} of {self.study.trials}"
        if trial.score is None:
            console.print(f"  [red]{name} failed:[/] {escape(words)}: {escape(str(trial.error))}", markup=True)
            return
        best = state.best
        assert best is not None
        note = "the best so far" if best.index == trial.index else f"best: {best.score:.4g}, trial {best.index + 1}"
        console.inform(f"  {name}: {words}: {state.goal.metric} {trial.score:.4g}; {note}")

    def plan_confirmation(self, best: Mapping[str, Any]) -> Confirmation:
        """Return the jobs of the confirmation. The seeds follow the seed of the trials, which selected the best one."""
        first = self.command.configs[0].seed + 1
        jobs, stages = [], []
        for level, values in ((DEFAULT, {}), (BEST, best)):
            for seed in range(first, first + self.study.confirm_seeds):
                jobs.append({COMPARED: level, "seed": seed})
                stages.append(self._stage(values, seed, level))
        return Confirmation(jobs, stages)

    def write_study(self, confirmation: Confirmation, *, best_is_known: bool = False) -> None:
        """Write study.json of the confirmation, and remove the records of jobs of an earlier best trial."""
        jobs = []
        for index, (job, stage) in enumerate(zip(confirmation.jobs, confirmation.stages, strict=True)):
            is_planned = best_is_known or job[COMPARED] == DEFAULT
            run_dir = str(stage.directory.resolve()) if is_planned else None
            jobs.append({"index": index, "overrides": job, "run": run_dir, "seed": job["seed"], "name": stage.recipe})
            (self.directory / "jobs" / str(index) / "job.json").unlink(missing_ok=True)
        plan = {
            "recipe": self.command.recipe,
            "command": invocation.command_line(),
            "overrides": redacted_arguments(self._shared_words()),
            "question": redacted(self.question),
            "hypothesis": redacted(self.study.hypothesis),
            "compare": COMPARED,
            "baseline": DEFAULT,
            "metrics": self.study.metrics,
            "primary": self.study.metrics[0],
            "metrics_from": typed_sweep.WRITTEN,
            "labels": {COMPARED: {DEFAULT: "the default settings", BEST: "the best trial"}},
            "replication": replication(confirmation.stages, confirmation.jobs).to_dict(),
            "size": "smoke" if self.command.configs[0].size == "smoke" else self.study.size,
            "jobs": jobs,
        }
        write_json(self.directory / "study.json", plan)

    def confirm(self, confirmation: Confirmation) -> None:
        self.write_study(confirmation, best_is_known=True)
        stages = confirmation.stages
        console.inform(f"  the best trial on {self.study.confirm_seeds} fresh seeds:")
        stored = {index for index, stage in enumerate(stages) if stage.result() is not None}
        with JobLines(self.directory, stored, 1, estimates=True).shown(in_process=True):
            for index, stage in enumerate(stages):
                record = self._run_job(stage, self.directory / "jobs" / str(index))
                job_finished()
                if record["status"] == "interrupted":
                    raise KeyboardInterrupt
