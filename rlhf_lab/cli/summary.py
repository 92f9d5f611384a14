"""Console output of a run: problems, the plan, the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from rich.console import RenderableType
from rich.markup import escape
from rich.text import Text

from rlhf_lab.config import command_line, root
from rlhf_lab.config.overrides import literal
from rlhf_lab.core import measures
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import LabError
from rlhf_lab.core.redaction import redacted
from rlhf_lab.reports.policy_table import PolicyTable, number
from rlhf_lab.results import written
from rlhf_lab.stages import artifacts
from rlhf_lab.training.stage_spec import ClusterUnit


def print_problems(error: LabError, *, ran: bool = False) -> None:
    """Print every problem as a list item.

    Args:
        ran: True if a stage had started before the problem occurred.
    """
    problems = getattr(error, "problems", None) or [str(error)]
    plural = "" if len(problems) == 1 else "s"
    count = f"{len(problems)} problem{plural}"
    outcome = "; completed stages are kept" if ran else ", nothing was run"
    console.print(f"[bold red]{count}{outcome}:[/]", markup=True)
    for problem in problems:
        item = f"  • {problem}"
        console.print(item.replace("\n", "\n    "))  # indent the lines after the first


def print_config(command: command_line.Command) -> None:
    """Print all settings of the run as YAML; for a sweep, those of the first job."""
    # `print` instead of the console: the output must stay valid YAML, without line breaks and markup.
    for line in _sweep_lines(command):
        print(f"# {line}")
    values = root.to_values(command.configs[0])
    print(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), end="")


def _sweep_lines(command: command_line.Command) -> list[str]:
    """Return which job of a sweep is shown; empty for a single run."""
    if len(command.jobs) == 1:
        return []
    swept = " ".join(f"{key}={literal(value)}" for key, value in command.jobs[0].items())
    return [f"the first of {len(command.jobs)} jobs: {swept}"]


def print_plan(stage: artifacts.Stage, started: float) -> None:
    """Print the first lines of a run: its question, the reused stages and the stages to build."""
    question = escape(redacted(stage.config.question))
    console.inform(f"[bold]{stage.recipe}[/]: {question}", markup=True)
    for needed in stage.upstream():
        line = escape(f"{needed.recipe:<14} {needed.directory}")
        if needed.result() and not stage.config.artifacts.refresh:
            console.inform(f"  reuse  {line}  [dim]{artifacts.age(needed)}[/]", markup=True)
        else:
            resumed = " from its checkpoint" if (needed.directory / "checkpoint.pt").exists() else ""
            reason = None if needed.config.artifacts.refresh else needed.changed_code()
            again = f"  [dim]again: {escape(reason)}[/]" if reason else ""
            console.inform(f"  build  {line}{resumed}{again}", markup=True)


def print_memory(lines: Sequence[str]) -> None:
    """Print the memory that the run needs."""
    for line in lines:
        console.inform(f"  {line}")


def print_result(stage: artifacts.Stage, result: dict[str, Any], seconds: float) -> None:
    """Print the last lines of a run: the answer to its question, notes, numbers, and the paths of its files."""
    # A report that is still current is not written again, because drawing its figures takes seconds.
    sentence, caveat = written.recall(stage.directory) or _write_report(stage.directory)
    console.print(f"[bold]{escape(sentence)}[/]", markup=True, soft_wrap=False)
    if caveat:
        console.print(f"[dim]{escape(caveat)}[/]", markup=True, soft_wrap=False)
    for note in result.get("notes", []):
        console.print(f"  [dim]note: {escape(note)}[/]", markup=True)
    # A run whose stages are all reused has built no world, so the measures come from its manifest.
    measures.recall(stage.directory)
    for block in number_blocks(result, stage.config.algorithm.evidence.clusters):
        console.print(block)
    paths = f"run     {stage.directory}\nreport  {stage.directory / 'report.html'}"
    console.print(paths)
    console.print(f"[dim]{seconds:.0f} s[/]", markup=True)


def number_blocks(result: Mapping[str, Any], clusters: ClusterUnit) -> list[RenderableType]:
    """Return the numbers of a run: the table of its policies, and the metrics of the stage itself.

    Args:
        result: content of result.json.
        clusters: unit by which the intervals are clustered.
    """
    policies = PolicyTable(result["policies"], clusters=clusters)
    blocks: list[RenderableType] = [policies] if policies.columns else []
    shown = [name for name in result.get("primary", []) if name in result["metrics"]]
    # Align the numbers in one column.
    width = max(map(len, shown), default=0)
    for name in shown:
        blocks.append(Text(f"  {name:<{width}}  {number(result['metrics'][name])}"))
    return blocks


def _write_report(directory: Path) -> tuple[str, str]:
    """Write the report of a run. Return its answer as (sentence, caveat)."""
    from rlhf_lab.reports.report import write_report_of
    from rlhf_lab.results.answer import answer
    from rlhf_lab.results.rundir import read_run

    console.inform("  writing the report")
    run = read_run(directory)
    run_answer = answer(run)
    write_report_of(run)
    written.remember(directory, run_answer.sentence, run_answer.caveat)
    return run_answer.sentence, run_answer.caveat


def print_rescored(policies: list[dict[str, Any]]) -> None:
    """Print two tables: the responses that each weighting selects, and how its ranking agrees with other rankings."""
    names = [key.removeprefix("reward/") for key in policies[0]["metrics"] if key.startswith("reward/")]
    order = {"rank_gold": "ρ gold", "rank_first": "ρ first", "same_choice": "same choice"}
    console.print(PolicyTable(policies))
    terms = {f"reward/{name}": name for name in names if "/" not in name}
    console.print(PolicyTable(policies, order | terms))
