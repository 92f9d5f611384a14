"""Table of a study: per level the mean over seeds, the difference from the baseline and the detectable difference.

Pairs are jobs that agree in every override except the compared factor, including the seed. Intervals are over seeds
(`replicates.py`). Holm's adjustment covers the levels of one metric in all panels together. The claims of a study are
decided separately (`verdict.py`); metrics other than the primary one are exploratory.
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

from rlhf_lab.core import checksums as seal
from rlhf_lab.core.files import write_text
from rlhf_lab.results.answer import Conclusion
from rlhf_lab.results.rundir import TRUE_REWARD
from rlhf_lab.results.wording import compact, judged_title, markdown_row, p_text, signed, two_digits
from rlhf_lab.statistics.inference import Comparison, Estimate, holm
from rlhf_lab.studies.correlations import correlation_markdown
from rlhf_lab.studies.crossing import crossing_markdown
from rlhf_lab.studies.curves import curve_markdown
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.origin import origin_markdown
from rlhf_lab.studies.pareto_front import pareto_markdown
from rlhf_lab.studies.registration_text import registration_markdown
from rlhf_lab.studies.replicates import RULE, RULE_SHARED, level_difference, level_mean
from rlhf_lab.studies.verdict import verdict_markdown


@dataclass(frozen=True)
class LevelRow:
    """Result of one level in one metric.

    Attributes:
        level: the level.
        jobs: number of completed jobs.
        mean: mean over these jobs.
        versus: difference from the baseline; None for the baseline itself, or without a common seed.
        p_holm: p-value after Holm's adjustment; None like `versus`.
    """

    level: str
    jobs: int
    mean: Estimate
    versus: Comparison | None = None
    p_holm: float | None = None

    @property
    def distinguishable(self) -> bool:
        """True if the level differs from the baseline after Holm's adjustment."""
        return self.p_holm is not None and self.p_holm <= 0.05


@dataclass(frozen=True)
class MetricSection:
    """Results of one metric, one row per level with the baseline first.

    Attributes:
        metric: name of the metric.
        by: value of the study's `by` that the jobs have; "" if the study has no panels.
        rows: the levels.
    """

    metric: str
    by: str
    rows: tuple[LevelRow, ...]


def build_sections(study: Study) -> list[MetricSection]:
    """Compare every level with the baseline for every metric, the primary one first, within every value of `by`."""
    sections = []
    for metric in study.metrics:
        panels = [_build_section(panel, metric, by) for by, panel in study.panels()]
        sections += _adjust_panels(panels)
    return sections


def _build_section(study: Study, metric: str, by: str) -> MetricSection:
    """Compare the levels of a study's factor on one metric in one panel; p-values are not adjusted."""
    rows = []
    for level in study.levels:
        jobs = int((study.completed["level"] == level).sum())
        # The baseline is not compared with itself.
        versus = None if level == study.baseline else level_difference(study, metric, level)
        rows.append(LevelRow(level, jobs, level_mean(study, metric, level), versus))
    return MetricSection(metric, by, tuple(rows))


def _adjust_panels(panels: list[MetricSection]) -> list[MetricSection]:
    """Return the panels of one metric with Holm's adjustment over all their comparisons."""
    # One family per metric over all panels, because each comparison may be a false positive.
    p_values = [row.versus.p_value for panel in panels for row in panel.rows if row.versus]
    adjusted_p = iter(holm(p_values))  # consumed in the order of the rows below
    adjusted_panels = []
    for panel in panels:
        rows = []
        for row in panel.rows:
            rows.append(dataclasses.replace(row, p_holm=next(adjusted_p)) if row.versus else row)
        adjusted_panels.append(dataclasses.replace(panel, rows=tuple(rows)))
    return adjusted_panels


def label(study: Study) -> str:
    """Return where the numbers come from."""
    if study.gold_source == TRUE_REWARD:
        return "measured, in a simulated world whose true reward is known"
    return f"measured; gold is {study.gold_source}" if study.has_gold else "measured"


def section_title(study: Study, section: MetricSection) -> str:
    """Return the title of the metric and, if the study has panels, the panel."""
    title = judged_title(section.metric, study.has_gold)
    return f"{title}, {study.panel_label(section.by)}" if section.by else title


def table_frame(study: Study, sections: list[MetricSection]) -> pd.DataFrame:
    """Return the table as one tidy frame: a row per metric and level."""
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


def cells(study: Study, row: LevelRow) -> tuple[str, ...]:
    """Return one row as text, in the order of HEADINGS."""
    level_cells = (study.label(row.level), str(row.mean.clusters), compact(row.mean))
    if row.level == study.baseline:
        return (*level_cells, "baseline", "", "", "")
    if row.versus is None:
        return (*level_cells, "no shared seed", "", "", "")
    # Rows without a test have no adjusted p-value.
    p_holm = math.nan if row.p_holm is None else row.p_holm
    return (
        *level_cells,
        signed(row.versus.difference),
        p_text(row.versus.p_value),
        p_text(p_holm),
        detectable(row.versus),
    )


def detectable_bounds(row: LevelRow) -> tuple[float, float]:
    """Return the bounds of the minimum detectable effect; NaN without a comparison."""
    return row.versus.detectable_range() if row.versus else (math.nan, math.nan)


def detectable(comparison: Comparison) -> str:
    """Return the minimum detectable effect, with its bounds if few repetitions leave it uncertain."""
    effect = comparison.minimum_detectable_effect
    if math.isinf(effect):
        return "nothing"
    if not comparison.freedom < 30 or effect == 0:  # with many repetitions the bounds are close to the value
        return compact(effect)
    low, high = comparison.detectable_range()
    return f"{two_digits(effect)} ({two_digits(low)}–{two_digits(high)})"


def rich_table(study: Study, sections: list[MetricSection]) -> RenderableType:
    """Return the table for a terminal: one block per metric, then the jobs without a result or with changed files."""
    blocks: list[RenderableType] = [Text(study.question or study.recipe, style="bold")]
    for section in sections:
        title = Text(section_title(study, section), style="italic")
        table = Table(
            title=title,
            title_justify="left",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
        )
        for index, heading in enumerate((study.compare.split(".")[-1], *HEADINGS[1:])):
            table.add_column(
                heading,
                justify="left" if index == 0 else "right",
                no_wrap=index > 0,
            )
        for row in section.rows:
            table.add_row(*map(escape, cells(study, row)), style="bold" if row.distinguishable else "")
        blocks.append(table)
    for job in study.incomplete.to_dict("records"):
        blocks.append(Text(job_line(job), style="red"))
    blocks += [Text(line, style="yellow") for line in changed_lines(study)]
    blocks.append(Text(f"Numbers are {label(study)}; intervals are 95 %.", style="dim"))
    return Group(*blocks)


def markdown(study: Study, sections: list[MetricSection], conclusion: Conclusion) -> str:
    """Return the table as a Markdown page: the answer, its limits, the claims, then the numbers."""
    page = io.StringIO()
    page.write(f"# {study.question or study.recipe}\n\n{conclusion.sentence}\n\n")
    if conclusion.caveat:
        page.write(f"{conclusion.caveat}\n\n")
    if study.hypothesis:
        page.write(f"Hypothesis: {study.hypothesis}\n\n")
    page.write(verdict_markdown(study))
    page.write(registration_markdown(study))
    page.write(f"Command: `{study.command}`. Numbers are {label(study)}. {method(study)}\n")
    for section in sections:
        # Only the primary metric answers the question; the others are exploratory.
        kind = "primary" if section.metric == study.primary else "exploratory"
        page.write(f"\n## {section_title(study, section)} ({kind})\n\n")
        page.write(markdown_row((study.compare, *HEADINGS[1:])) + "\n")
        page.write(markdown_row(["---"] + ["---:"] * 6) + "\n")
        for row in section.rows:
            page.write(markdown_row(cells(study, row)) + "\n")
    page.write(correlation_markdown(study))
    page.write(pareto_markdown(study))
    page.write(crossing_markdown(study))
    page.write(curve_markdown(study))
    if len(study.incomplete):
        page.write("\n## Jobs without a result\n\n")
        for job in study.incomplete.to_dict("records"):
            page.write(f"- {job_line(job)}\n")
    page.write(origin_markdown(study))
    # A changed file does not exclude a job, but readers must know.
    if lines := changed_lines(study):
        items = "".join(f"- {line}\n" for line in lines)
        page.write(f"\n## Jobs that changed\n\n{items}")
    return page.getvalue()


def method(study: Study) -> str:
    """Return a description of how the numbers of the tables are computed, so that readers can check them."""
    return (
        f"Intervals are 95 %. Differences are from {study.label(study.baseline)}, paired by seed. "
        f"{RULE_SHARED if study.replication.shares_prompts else RULE}. "
        "“p (Holm)” is adjusted over all comparisons of a metric on this page; claims are decided by separate "
        "p-values, adjusted over all claims. "
        "“Detectable” is the difference that would be found with 80 % power, with 95 % bounds."
    )


def job_line(job: Mapping[Hashable, Any]) -> str:
    """Return one line for a job without a result: its name, its status, and the last line of its error."""
    last_line = str(job["error"]).strip().splitlines()[-1:]  # a list, empty without an error
    return ": ".join([job_name(job), str(job["status"]), *last_line])


def job_name(job: Mapping[Hashable, Any]) -> str:
    """Return the name of a job. As in progress lines it counts from 1, but the directory counts from 0."""
    return f"job {job['index'] + 1} (jobs/{job['index']}), {job['level']}"


def changed_lines(study: Study) -> list[str]:
    """Return a line for each job whose run has changed since it was completed, with the changed files."""
    return [f"{job_name(job)}: {change(job)}" for job in study.changed.to_dict("records")]


def change(job: Mapping[Hashable, Any]) -> str:
    """Return what changed in the run of a job since it was completed; empty if nothing did."""
    return f"{job['changed']} changed since completion ({seal.NAME})" if job["changed"] else ""


def write_tables(study: Study, sections: list[MetricSection], conclusion: Conclusion) -> tuple[Path, Path]:
    """Write table.md and table.csv into the study directory, and return their paths."""
    markdown_file = study.path / "table.md"
    csv_file = study.path / "table.csv"
    write_text(markdown_file, markdown(study, sections, conclusion))
    write_text(csv_file, table_frame(study, sections).to_csv(index=False))
    return markdown_file, csv_file
