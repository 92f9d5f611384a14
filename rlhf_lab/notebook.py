"""Recipes from Python, for notebooks and scripts: `run("dpo", model="tiny", **{"algorithm.beta": 0.1})`.

It composes, checks, plans and stores exactly as the command line does, so a stored result is reused. Results come back
as data frames. What the command line changes in a process (arguments, environment, threads, logging) is restored.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_lab import main
from rlhf_lab.config import compose
from rlhf_lab.config.overrides import literal
from rlhf_lab.stages import artifacts
from rlhf_lab.sweeps.sweep import study_folder

if TYPE_CHECKING:
    import pandas as pd

    from rlhf_lab.results.rundir import Run
    from rlhf_lab.studies.frame import Study


@dataclass(frozen=True)
class Result:
    """What a command left in the store.

    Attributes:
        folder: the run or study directory.
    """

    folder: Path

    @property
    def report(self) -> Path:
        """Path of its report.html."""
        return self.folder / "report.html"


class RunResult(Result):
    """A run that is complete."""

    @cached_property
    def _run(self) -> Run:
        from rlhf_lab.results.rundir import read_run

        return read_run(self.folder)

    @property
    def metrics(self) -> dict[str, float]:
        """The stage's own metrics, such as "accuracy" of a reward model, and its cost; means of estimates."""
        estimates = {**self._run.results, **self._run.cost}
        return {name: estimate.mean for name, estimate in estimates.items()}

    @cached_property
    def policies(self) -> pd.DataFrame:
        """A row per evaluated policy; per metric m the columns m (mean), "m/low", "m/high" (95 %) and "m/n"."""
        import pandas as pd

        rows: list[dict[str, Any]] = []
        for policy in self._run.policies:
            row: dict[str, Any] = {"policy": policy.name}
            for name, estimate in policy.metrics.items():
                row |= {name: estimate.mean, f"{name}/low": estimate.low, f"{name}/high": estimate.high}
                row[f"{name}/n"] = estimate.n
            rows.append(row)
        return pd.DataFrame(rows).set_index("policy") if rows else pd.DataFrame()

    @property
    def steps(self) -> pd.DataFrame:
        """A row per logged step of training (metrics.jsonl)."""
        return self._run.metrics

    @property
    def samples(self) -> pd.DataFrame:
        """A row per scored reply (evaluation.jsonl)."""
        return self._run.evaluation


class StudyResult(Result):
    """The jobs of a study or sweep, complete or not."""

    @cached_property
    def _study(self) -> Study:
        from rlhf_lab.studies.frame import read_study

        return read_study(self.folder)

    @property
    def jobs(self) -> pd.DataFrame:
        """A row per job: status, error, run, what it swept; per metric m the columns m, "m/low", "m/high" and "m/n"."""
        return self._study.frame

    @cached_property
    def table(self) -> pd.DataFrame:
        """The study's table: a row per level of what is compared."""
        from rlhf_lab.studies.table import build_sections, table_frame

        return table_frame(self._study, build_sections(self._study))

    @property
    def runs(self) -> list[RunResult]:
        """The runs of the completed jobs, in job order."""
        return [RunResult(Path(folder)) for folder in self._study.completed["run"]]


def run(
    recipe: str,
    *overrides: str,
    sweep: Mapping[str, Sequence[Any]] | None = None,
    config_dir: str | Path | None = None,
    quiet: bool = False,
    **settings: Any,
) -> RunResult | StudyResult:
    """Run a recipe, or a study or sweep of one. Stored results are reused.

    Args:
        recipe: its name, as behind `+recipe=`.
        overrides: as on the command line, without the quotes that a shell needs.
        sweep: setting → values: a job for each combination, and a StudyResult.
        config_dir: a folder of one's own with `recipe/NAME.yaml`.
        quiet: print nothing.
        settings: setting → value; dotted names as `**{"algorithm.beta": 0.1}`. A list is one value.
    Raises:
        LabError: ConfigError for settings that are wrong, and every other error that the command line would print. A
            failed job of a sweep does not raise; `jobs` has its error.
        KeyboardInterrupt: the run was stopped; the same call resumes from what is saved.
    """
    words = [f"+recipe={recipe}", *overrides]
    words += [f"{name}={literal(_plain(value))}" for name, value in settings.items()]
    for name, values in (sweep or {}).items():
        levels = [literal(_plain(value)) for value in values]
        words.append(f"{name}={','.join(levels)}")
    folder = None if config_dir is None else str(config_dir)
    flags = ["--config-dir", folder] if folder else []
    arguments = [*flags, *words]
    with _restored_process(arguments), _silence() if quiet else nullcontext():
        command = compose.check_command(words, folder)
        status = main.run_command(arguments)
        if status == main.INTERRUPTED:
            raise KeyboardInterrupt
        if len(command.jobs) > 1 or command.study:
            return StudyResult(study_folder(command).resolve())
        return RunResult(artifacts.plan(command.configs[0], recipe).folder.resolve())


def _plain(value: Any) -> Any:
    """A Python value as a config has it: tuples become lists, NumPy numbers become numbers, paths become text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value.item() if hasattr(value, "item") else value


@contextmanager
def _silence() -> Iterator[None]:
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        yield


@contextmanager
def _restored_process(arguments: Sequence[str]) -> Iterator[None]:
    """Set this process up as for a command line, and restore it afterwards."""
    argv = sys.argv
    environment = dict(os.environ)
    logger = logging.getLogger()
    handlers = list(logger.handlers)
    level = logger.level
    # torch may not be imported yet, and importing it only to ask would cost a second
    threads = sys.modules["torch"].get_num_threads() if "torch" in sys.modules else None
    sys.argv = ["rlhf_lab", *arguments]
    for name, value in main.ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        yield
    finally:
        sys.argv = argv
        os.environ.clear()
        os.environ.update(environment)
        logger.handlers = handlers
        logger.level = level
        if threads is not None:
            sys.modules["torch"].set_num_threads(threads)
