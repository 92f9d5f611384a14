"""Python interface to recipes, for notebooks and scripts: `run("dpo", model="tiny", **{"algorithm.beta": 0.1})`.

It composes, checks, plans and stores exactly like the command line, so a stored result is reused. Results are returned
as data frames. The state of the process that the command line changes (arguments, environment, threads, logging) is
restored.
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

from rich.console import Console, RenderableType
from rich.text import Text

from rlhf_lab import main
from rlhf_lab.cli.summary import number_blocks
from rlhf_lab.config import command_line
from rlhf_lab.config.overrides import literal
from rlhf_lab.core.console import LOG_WIDTH
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import read_object
from rlhf_lab.stages import artifacts
from rlhf_lab.sweeps.sweep import study_dir

if TYPE_CHECKING:
    import pandas as pd

    from rlhf_lab.results.rundir import StoredRun
    from rlhf_lab.studies.frame import Study


@dataclass(frozen=True)
class CommandResult:
    """Result of a command in the store.

    Attributes:
        directory: the run or study directory.
    """

    directory: Path

    @property
    def report(self) -> Path:
        """Path of the report (report.html)."""
        return self.directory / "report.html"


def _as_html(blocks: Sequence[RenderableType]) -> str:
    """Return console output as HTML; all text in it is escaped."""
    # In a notebook, rich would show each block at once, in addition to the result.
    file = io.StringIO()
    recorder = Console(file=file, record=True, width=LOG_WIDTH, highlight=False, emoji=False, force_jupyter=False)
    for block in blocks:
        recorder.print(block)
    return recorder.export_html(inline_styles=True, code_format='<pre style="line-height: 1.3">{code}</pre>')


class RunResult(CommandResult):
    """Completed run. A notebook shows its answer and its table."""

    def _repr_html_(self) -> str:
        from rlhf_lab.results.answer import answer

        conclusion = answer(self._run)
        result = read_object(self.directory / "result.json")
        numbers = number_blocks(result, self._run.stage.evidence.clusters)
        return _as_html([Text(conclusion.sentence, style="bold"), Text(conclusion.caveat, style="dim"), *numbers])

    @cached_property
    def _run(self) -> StoredRun:
        """The run directory in memory."""
        # Imported here because it imports pandas, which is not needed to run a recipe.
        from rlhf_lab.results.rundir import read_run

        return read_run(self.directory)

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the stage itself, such as "accuracy" of a reward model, and its cost; estimates as their means."""
        estimates = {**self._run.results, **self._run.cost}
        return {name: estimate.mean for name, estimate in estimates.items()}

    @cached_property
    def estimates(self) -> pd.DataFrame:
        """One row per metric of the stage: "mean", "low" and "high" (95 %; NaN for counts), "n"."""
        import pandas as pd

        rows: list[dict[str, Any]] = []
        for name, estimate in self._run.results.items():
            bounds = (estimate.low, estimate.high) if estimate.bounded else (float("nan"), float("nan"))
            rows.append({"metric": name, "mean": estimate.mean, "low": bounds[0], "high": bounds[1], "n": estimate.n})
        return pd.DataFrame(rows).set_index("metric") if rows else pd.DataFrame()

    @cached_property
    def policies(self) -> pd.DataFrame:
        """One row per evaluated policy; per metric m the columns m (mean), "m/low", "m/high" (95 %) and "m/n"."""
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
        """One row per logged step of training (metrics.jsonl)."""
        return self._run.metrics

    @property
    def samples(self) -> pd.DataFrame:
        """One row per scored response (evaluation.jsonl)."""
        return self._run.evaluation


class StudyResult(CommandResult):
    """Jobs of a study or sweep, complete or not. A notebook shows its finding and its table."""

    def _repr_html_(self) -> str:
        from rlhf_lab.studies.finding import finding_blocks

        return _as_html(finding_blocks(self._study))

    @cached_property
    def _study(self) -> Study:
        """The study directory in memory."""
        from rlhf_lab.studies.frame import read_study

        return read_study(self.directory)

    @property
    def jobs(self) -> pd.DataFrame:
        """One row per job: status, error, run, swept settings; per metric m the columns m, "m/low", "m/high", "m/n"."""
        return self._study.frame

    @cached_property
    def table(self) -> pd.DataFrame:
        """Table of the study: one row per metric and level of the compared factor."""
        from rlhf_lab.studies.table import build_sections, table_frame

        return table_frame(self._study, build_sections(self._study))

    @property
    def runs(self) -> list[RunResult]:
        """Runs of the completed jobs, in job order."""
        return [RunResult(Path(directory)) for directory in self._study.completed["run"]]


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
        recipe: name of the recipe, as in `+recipe=NAME`.
        overrides: overrides as on the command line, without the quotes that a shell needs.
        sweep: setting → values; runs a job for each combination and returns a StudyResult.
        config_dir: your own directory with `recipe/NAME.yaml`.
        quiet: True prints nothing.
        settings: setting → value; dotted names as `**{"algorithm.beta": 0.1}`. A list is one value, not a sweep.
    Raises:
        LabError: a ConfigError for wrong settings, or any other error that the command line would print. A failed job
            of a sweep does not raise; the error is in `jobs`.
        KeyboardInterrupt: the run was stopped; the same call resumes from what is saved.
    """
    words = [f"+recipe={recipe}", *overrides]
    # `literal` quotes values for the grammar of Hydra's overrides.
    words += [f"{name}={literal(_to_plain(value))}" for name, value in settings.items()]
    for name, values in (sweep or {}).items():
        levels = [literal(_to_plain(value)) for value in values]
        if not levels:
            raise ConfigError(f"sweep: {name} has no values; give at least one")
        # A comma-separated list is a sweep in Hydra's grammar; a single value needs `choice`.
        words.append(f"{name}={','.join(levels)}" if len(levels) > 1 else f"{name}=choice({levels[0]})")
    directory = None if config_dir is None else str(config_dir)
    flags = ["--config-dir", directory] if directory else []
    arguments = [*flags, *words]
    with _restored_process(arguments), _silence() if quiet else nullcontext():
        command = command_line.check_command(words, directory)
        status = main.run_command(arguments)
        # A stopped run raises, as Ctrl-C does in other Python code.
        if status == main.INTERRUPTED:
            raise KeyboardInterrupt
        # A sweep has a study directory instead of a single run.
        if len(command.jobs) > 1 or command.study:
            return StudyResult(study_dir(command).resolve())
        stage = artifacts.plan(command.configs[0], recipe)
        return RunResult(stage.directory.resolve())


def _to_plain(value: Any) -> Any:
    """Convert a Python value for a config: tuples and arrays to lists, NumPy numbers to numbers, paths to text."""
    if isinstance(value, Mapping):
        return {str(key): _to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    # arrays and scalars of NumPy and torch
    return value.tolist() if hasattr(value, "tolist") else value


@contextmanager
def _silence() -> Iterator[None]:
    """Discard everything printed."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        yield


@contextmanager
def _restored_process(arguments: Sequence[str]) -> Iterator[None]:
    """Set this process up as for a command line, and restore its state afterwards."""
    # Save the state of the process first, so that it is restored even after an error.
    argv = sys.argv
    environment = dict(os.environ)
    logger = logging.getLogger()
    handlers = list(logger.handlers)
    level = logger.level
    # Importing torch only to read its thread count would take a second, so it is read only if torch is loaded.
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
