"""Table of a study: per level the mean over seeds and the difference from the baseline, both with intervals.

Pairs are jobs that agree in every override except the compared factor, including the seed. Intervals are over seeds
(`replicates.py`). The tables are exploratory and have no p-values. Only the claims are tested (`verdict.py`).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Group, RenderableType
from rich.text import Text

from rlhf_lab.config.overrides import literal
from rlhf_lab.config.schema import closest
from rlhf_lab.core import checksums as seal
from rlhf_lab.core.console import number_table
from rlhf_lab.core.files import write_text
from rlhf_lab.core.metrics import catalogue
from rlhf_lab.results.answer import Conclusion
from rlhf_lab.results.rundir import TRUE_REWARD
from rlhf_lab.results.wording import compact, judged_title, markdown_table, signed
from rlhf_lab.statistics.inference import Comparison, Estimate
from rlhf_lab.studies.correlations import correlation_markdown
from rlhf_lab.studies.crossing import crossing_markdown
from rlhf_lab.studies.curves import curve_markdown
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.origin import origin_markdown
from rlhf_lab.studies.pareto_front import pareto_markdown
from rlhf_lab.studies.rates import rate_markdown
from rlhf_lab.studies.registration_text import registration_markdown
from rlhf_lab.studies.replicates import RULE, RULE_SHARED, level_difference, level_mean, shared_bound
from rlhf_lab.studies.search_trials import trials_markdown
from rlhf_lab.studies.verdict import verdict_markdown


@dataclass(frozen=True)
class LevelRow:
    """Result of one level in one metric.

    Attributes:
        jobs: number of completed jobs.
        versus: difference from the baseline; None for the baseline itself, or without a common seed.
        bound: "ceiling" or "floor" if all runs of the level and of the baseline have the best or least possible value.
    """

    level: str
    jobs: int
    mean: Estimate
    versus: Comparison | None = None
    bound: str = ""


@dataclass(frozen=True)
class MetricSection:
    """Results of one metric, one row per level with the baseline first.

    Attributes:
        by: value of the study's `by` that the jobs have; "" if the study has no panels.
    """

    metric: str
    by: str
    rows: tuple[LevelRow, ...]


def build_sections(study: Study) -> list[MetricSection]:
    """Compare every level with the baseline for every metric, the primary one first, within every value of `by`."""
    sections = []
    for metric in study.metrics:
        sections += [_build_section(panel, metric, by) for by, panel in study.panels()]
    return sections


def _build_section(study: Study, metric: str, by: str) -> MetricSection:
    rows = []
    for level in study.levels:
        jobs = int((study.completed["level"] == level).sum())
        versus = None if level == study.baseline else level_difference(study, metric, level)
        bound = shared_bound(study, metric, level) if versus else ""
        rows.append(LevelRow(level, jobs, level_mean(study, metric, level), versus, bound))
    return MetricSection(metric, by, tuple(rows))


def label(study: Study) -> str:
    if study.gold_source == TRUE_REWARD:
        return "measured, in a simulated world whose true reward is known"
    return f"measured; gold is {study.gold_source}" if study.has_gold else "measured"


def section_title(study: Study, section: MetricSection) -> str:
    title = judged_title(section.metric, study.has_gold)
    return f"{title}, {study.panel_label(section.by)}" if section.by else title


def table_frame(study: Study, sections: list[MetricSection]) -> pd.DataFrame:
    rows = []
    for section in sections:
        for row in section.rows:
            gap = row.versus.difference if row.versus else None
            rows.append(
                {
                    "metric": section.metric,
                    **({study.by: section.by} if study.by else {}),
                    study.compare: row.level,
                    "baseline": row.level == study.baseline,
                    "jobs": row.jobs,
                    "seeds": row.mean.clusters,
                    "mean": row.mean.mean,
                    "low": row.mean.low,
                    "high": row.mean.high,
                    "difference": gap.mean if gap else math.nan,
                    "difference_low": gap.low if gap else math.nan,
                    "difference_high": gap.high if gap else math.nan,
                    "pairs": gap.clusters if gap else 0,
                    "bound": row.bound,
                }
            )
    return pd.DataFrame(rows)


HEADINGS = ("level", "seeds", "mean", "difference")


def cells(study: Study, row: LevelRow) -> tuple[str, ...]:
    level_cells = (study.label(row.level), str(row.mean.clusters), compact(row.mean))
    if row.level == study.baseline:
        return (*level_cells, "baseline")
    if row.versus is None:
        return (*level_cells, "no shared seed")
    at_bound = f", both at the {row.bound}" if row.bound else ""
    return (*level_cells, f"{signed(row.versus.difference)}{at_bound}")


def rich_table(study: Study, sections: list[MetricSection]) -> RenderableType:
    """Return the table for a terminal: one block per metric, then the jobs without a result or with changed files."""
    blocks: list[RenderableType] = [Text(study.question or study.recipe, style="bold")]
    for section in sections:
        title = Text(section_title(study, section), style="italic")
        headings = (study.compare.split(".")[-1], *HEADINGS[1:])
        blocks.append(number_table(headings, [cells(study, row) for row in section.rows], title=title))
    for job in study.incomplete.to_dict("records"):
        blocks.append(Text(job_line(job), style="red"))
    blocks += [Text(line, style="yellow") for line in (*missing_metric_lines(study), *changed_lines(study))]
    blocks.append(Text(f"Numbers are {label(study)}; intervals are 95 %.", style="dim"))
    return Group(*blocks)


def arm_markdown(study: Study) -> str:
    """Return the settings of each arm as a Markdown list; "" for a study without arms."""
    lines = []
    for name, settings in study.arms.items():
        words = ", ".join(f"`{key}={literal(value)}`" for key, value in settings.items())
        lines.append(f"- {study.label(name)}: {words or 'the recipe as it is'}\n")
    return "Arms:\n\n" + "".join(lines) + "\n" if lines else ""


def markdown(study: Study, sections: list[MetricSection], conclusion: Conclusion) -> str:
    """Return the table as a Markdown page: the answer, its limits, the claims, then the numbers."""
    parts = [f"# {study.question or study.recipe}\n\n{conclusion.sentence}\n\n"]
    if conclusion.caveat:
        parts.append(f"{conclusion.caveat}\n\n")
    if study.hypothesis:
        parts.append(f"Hypothesis: {study.hypothesis}\n\n")
    parts += [part(study) for part in (verdict_markdown, arm_markdown, registration_markdown)]
    parts.append(f"Command: `{study.command}`. Numbers are {label(study)}. {method(study)}\n")
    # "study.arm" is no setting that a reader knows
    headings = (study.compare.removeprefix("study."), *HEADINGS[1:])
    for section in sections:
        kind = "primary" if section.metric == study.primary else "exploratory"
        numbers = markdown_table(headings, [cells(study, row) for row in section.rows], "lrrr")
        parts.append(f"\n## {section_title(study, section)} ({kind})\n\n{numbers}\n")
    parts.append(trials_markdown(study.path))
    parts += [f"\n{line}\n" for line in missing_metric_lines(study)]
    further = (rate_markdown, correlation_markdown, pareto_markdown, crossing_markdown, curve_markdown)
    parts += [part(study) for part in further]
    unfinished = [job_line(job) for job in study.incomplete.to_dict("records")]
    parts += [_list("Jobs without a result", unfinished), origin_markdown(study)]
    parts.append(_list("Jobs that changed", changed_lines(study)))
    return "".join(parts)


def _list(title: str, lines: Sequence[str]) -> str:
    return f"\n## {title}\n\n" + "".join(f"- {line}\n" for line in lines) if lines else ""


def method(study: Study) -> str:
    return (
        f"Intervals are 95 %. Differences are from {study.label(study.baseline)}, paired by seed. "
        f"{RULE_SHARED if study.replication.shares_prompts else RULE}. "
        "Only claims are tested: their p-values are adjusted over all claims that were registered together (Holm), and "
        "“detectable” is the difference that such a test would find with 80 % power at the strictest level of the "
        "adjustment, with 95 % bounds. The tables are exploratory, and their intervals are not adjusted."
    )


def missing_metric_lines(study: Study) -> list[str]:
    """Return a line for each metric that no completed job has, with the closest name of a metric."""
    if not len(study.completed):
        return []
    lines = []
    for name in study.metrics:
        if study.completed[name].notna().any():
            continue
        # a declared name is spelt right: it may be missing for other reasons, such as data without gold
        close = None if name in catalogue() else closest(name, catalogue())
        hint = f"; did you mean {close}?" if close else ""
        lines.append(f"No completed job has the metric {name}{hint}")
    return lines


def job_line(job: Mapping[Hashable, Any]) -> str:
    """Return one line for a job without a result: its name, its status, and the last line of its error."""
    last_line = str(job["error"]).strip().splitlines()[-1:]  # a list, empty without an error
    return ": ".join([job_name(job), str(job["status"]), *last_line])


def job_name(job: Mapping[Hashable, Any]) -> str:
    """Return the name of a job. As in progress lines it counts from 1, but the directory counts from 0."""
    return f"job {job['index'] + 1} (jobs/{job['index']}), {job['level']}"


def changed_lines(study: Study) -> list[str]:
    return [f"{job_name(job)}: {change(job)}" for job in study.changed.to_dict("records")]


def change(job: Mapping[Hashable, Any]) -> str:
    """Return what changed in the run of a job since it was completed; empty if nothing did."""
    return f"{job['changed']} changed since completion ({seal.NAME})" if job["changed"] else ""


def write_tables(study: Study, sections: list[MetricSection], conclusion: Conclusion) -> tuple[Path, Path]:
    markdown_file, csv_file = study.path / "table.md", study.path / "table.csv"
    write_text(markdown_file, markdown(study, sections, conclusion))
    write_text(csv_file, table_frame(study, sections).to_csv(index=False))
    return markdown_file, csv_file
