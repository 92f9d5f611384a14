"""The table of a study: per level its mean over seeds, its difference from the baseline, and what could be found.

Pairs are jobs that agree in every override except the compared factor, seed included; intervals are over seeds
(`replicates.py`). Holm's adjustment runs over the levels of one metric in all panels together. What a study claims is
decided by its claims (`verdict.py`); metrics other than the primary one are exploratory.
"""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rlhf_lab.core import seal
from rlhf_lab.core.files import write_text
from rlhf_lab.results.answer import Answer
from rlhf_lab.results.rundir import TRUE_REWARD
from rlhf_lab.results.wording import compact, judged_title, p_text, rough, signed
from rlhf_lab.statistics.inference import Comparison, Estimate, holm
from rlhf_lab.studies.curves import curve_markdown
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.front import front_markdown
from rlhf_lab.studies.replicates import RULE, RULE_SHARED, level_difference, level_mean
from rlhf_lab.studies.verdict import verdict_markdown


@dataclass(frozen=True)
class Row:
    """One level of one metric. `versus` and `p_holm` are None for the baseline, or when no seed is shared with it."""

    level: str
    jobs: int
    mean: Estimate
    versus: Comparison | None = None
    p_holm: float | None = None

    @property
    def distinguishable(self) -> bool:
        """Whether the level differs from the baseline after Holm's adjustment."""
        return self.p_holm is not None and self.p_holm <= 0.05


@dataclass(frozen=True)
class MetricSection:
    """One metric: a row per level, baseline first; of the jobs with one value of the study's `by`, if it has one."""

    metric: str
    by: str
    rows: tuple[Row, ...]


def build_sections(study: Study) -> list[MetricSection]:
    """Compare every level with the baseline, for every metric, the primary one first, within every value of `by`."""
    sections = []
    for metric in study.metrics:
        panels = [_build_section(panel, metric, by) for by, panel in study.panels()]
        sections += _adjust_panels(panels)
    return sections


def _build_section(study: Study, metric: str, by: str) -> MetricSection:
    rows = []
    for level in study.levels:
        jobs = int((study.completed["level"] == level).sum())
        versus = None if level == study.baseline else level_difference(study, metric, level)
        rows.append(Row(level, jobs, level_mean(study, metric, level), versus))
    return MetricSection(metric, by, tuple(rows))


def _adjust_panels(panels: list[MetricSection]) -> list[MetricSection]:
    """The panels of one metric with Holm's adjustment over all their comparisons."""
    p_values = [row.versus.p_value for panel in panels for row in panel.rows if row.versus]
    adjusted_p = iter(holm(p_values))  # in the order of the rows below
    adjusted_panels = []
    for panel in panels:
        rows = [dataclasses.replace(row, p_holm=next(adjusted_p)) if row.versus else row for row in panel.rows]
        adjusted_panels.append(dataclasses.replace(panel, rows=tuple(rows)))
    return adjusted_panels


def label(study: Study) -> str:
    """Where the numbers come from."""
    if study.gold_source == TRUE_REWARD:
        return "measured, in a simulated world whose true reward is known"
    return f"measured; gold is {study.gold_source}" if study.has_gold else "measured"


def section_title(study: Study, section: MetricSection) -> str:
    """The metric, and which jobs it is of."""
    title = judged_title(section.metric, study.has_gold)
    return f"{title}, {study.panel_label(section.by)}" if section.by else title


def table_frame(study: Study, sections: list[MetricSection]) -> pd.DataFrame:
    """The table as one tidy frame: a row per metric and level."""
    rows = []
    for section in sections:
        for row in section.rows:
            gap = row.versus.difference if row.versus else None
            detectable_low, detectable_high = detectable_bounds(row)
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
                    "p": row.versus.p_value if row.versus else math.nan,
                    "p_holm": math.nan if row.p_holm is None else row.p_holm,
                    "minimum_detectable_effect": row.versus.minimum_detectable_effect if row.versus else math.nan,
                    "detectable_low": detectable_low,
                    "detectable_high": detectable_high,
                    "test": row.versus.test if row.versus else "",
                }
            )
    return pd.DataFrame(rows)


HEADINGS = ("level", "seeds", "mean", "difference", "p", "p (Holm)", "detectable")


def cells(study: Study, row: Row) -> tuple[str, ...]:
    """One row as text, in the order of HEADINGS."""
    level_cells = (study.label(row.level), str(row.mean.clusters), compact(row.mean))
    if row.level == study.baseline:
        return (*level_cells, "baseline", "", "", "")
    if row.versus is None:
        return (*level_cells, "no shared seed", "", "", "")
    p_holm = math.nan if row.p_holm is None else row.p_holm
    return (
        *level_cells,
        signed(row.versus.difference),
        p_text(row.versus.p_value),
        p_text(p_holm),
        detectable(row.versus),
    )


def detectable_bounds(row: Row) -> tuple[float, float]:
    return row.versus.detectable_range() if row.versus else (math.nan, math.nan)


def detectable(comparison: Comparison) -> str:
    """The minimum detectable effect, with its bounds where few repetitions leave it open."""
    effect = comparison.minimum_detectable_effect
    if math.isinf(effect):
        return "nothing"
    if not comparison.freedom < 30 or effect == 0:  # many repetitions: the bounds are close to the value
        return compact(effect)
    low, high = comparison.detectable_range()
    return f"{rough(effect)} ({rough(low)}–{rough(high)})"


def rich_table(study: Study, sections: list[MetricSection]) -> RenderableType:
    """The table for a terminal: one block per metric, then the jobs without a result or not as they were."""
    blocks: list[RenderableType] = [Text(study.question or study.recipe, style="bold")]
    for section in sections:
        title = Text(section_title(study, section), style="italic")
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for number, heading in enumerate((study.compare.split(".")[-1], *HEADINGS[1:])):
            table.add_column(heading, justify="left" if number == 0 else "right", no_wrap=number > 0)
        for row in section.rows:
            table.add_row(*map(escape, cells(study, row)), style="bold" if row.distinguishable else "")
        blocks.append(table)
    for job in study.incomplete.to_dict("records"):
        blocks.append(Text(job_line(job), style="red"))
    blocks += [Text(line, style="yellow") for line in changed_lines(study)]
    blocks.append(Text(f"Numbers are {label(study)}; intervals are 95 %.", style="dim"))
    return Group(*blocks)


def markdown(study: Study, sections: list[MetricSection], finding: Answer) -> str:
    """The table as a page of Markdown: the answer, what limits it, the claims, then the numbers."""
    page = io.StringIO()
    page.write(f"# {study.question or study.recipe}\n\n{finding.sentence}\n\n")
    if finding.caveat:
        page.write(f"{finding.caveat}\n\n")
    if study.hypothesis:
        page.write(f"Hypothesis: {study.hypothesis}\n\n")
    page.write(verdict_markdown(study))
    page.write(f"Command: `{study.command}`. Numbers are {label(study)}. {method(study)}\n")
    for section in sections:
        kind = "primary" if section.metric == study.primary else "exploratory"
        page.write(f"\n## {section_title(study, section)} ({kind})\n\n")
        page.write(_markdown_row((study.compare, *HEADINGS[1:])))
        page.write(_markdown_row(["---"] + ["---:"] * 6))
        for row in section.rows:
            page.write(_markdown_row(cells(study, row)))
    page.write(front_markdown(study))
    page.write(curve_markdown(study))
    if len(study.incomplete):
        page.write("\n## Jobs without a result\n\n")
        for job in study.incomplete.to_dict("records"):
            page.write(f"- {job_line(job)}\n")
    if lines := changed_lines(study):
        page.write("\n## Jobs that changed\n\n" + "".join(f"- {line}\n" for line in lines))
    return page.getvalue()


def method(study: Study) -> str:
    """How the numbers of the tables are made, for a reader who wants to check them."""
    return (
        f"Intervals are 95 %. Differences are from {study.label(study.baseline)}, paired by seed. "
        f"{RULE_SHARED if study.replication.shares_prompts else RULE}. "
        "“p (Holm)” is adjusted over all comparisons of a metric on this page; claims are decided by their own p, "
        "adjusted over all claims. "
        "“Detectable” is the difference that would be found with 80 % power, with its own 95 % bounds."
    )


def job_line(job: Mapping[Hashable, Any]) -> str:
    """One job without a result: which, its status, and the last line of its error."""
    last_line = str(job["error"]).strip().splitlines()[-1:]  # a list: empty without an error
    return ": ".join([f"job {job['index']}, {job['level']}", str(job["status"]), *last_line])


def changed_lines(study: Study) -> list[str]:
    """A line for each job whose run has changed since it was completed: which files."""
    return [f"job {job['index']}, {job['level']}: {change(job)}" for job in study.changed.to_dict("records")]


def change(job: Mapping[Hashable, Any]) -> str:
    """What changed in the run of a job since it was completed; empty where nothing did."""
    return f"{job['changed']} changed since it was sealed ({seal.NAME})" if job["changed"] else ""


def write_tables(study: Study, sections: list[MetricSection], finding: Answer) -> tuple[Path, Path]:
    """Write table.md and table.csv into the study directory."""
    markdown_file = study.path / "table.md"
    csv_file = study.path / "table.csv"
    write_text(markdown_file, markdown(study, sections, finding))
    write_text(csv_file, table_frame(study, sections).to_csv(index=False))
    return markdown_file, csv_file


def _markdown_row(values: tuple[str, ...] | list[str]) -> str:
    return "| " + " | ".join(str(value).replace("|", "\\|") for value in values) + " |\n"
