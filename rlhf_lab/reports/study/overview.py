"""One page about several studies: the answer, the claims and the primary figure of each, and a link to its own page."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_lab.core.files import make_dir, write_text
from rlhf_lab.reports.page import write_page
from rlhf_lab.reports.sections import PageSection, ReportPage, ReportTable
from rlhf_lab.reports.study.header import claim_rows
from rlhf_lab.reports.study.metric_tables import level_dots
from rlhf_lab.reports.study.results import StudyResults
from rlhf_lab.results.wording import compact, judged_title, markdown_table
from rlhf_lab.studies.frame import is_study, read_study
from rlhf_lab.studies.verdict import CLAIM_HEADINGS, verdict_markdown

PAGE, MARKDOWN = "report.html", "report.md"


@dataclass(frozen=True)
class OverviewEntry:
    """Study of an overview.

    Attributes:
        results: the results; None for a study that has not run.
    """

    name: str
    directory: Path
    results: StudyResults | None


def write_overview(
    directory: Path, title: str, studies: Mapping[str, Path], note: str, *, has_table: bool = False
) -> Path:
    """Write the page of several studies, as HTML and Markdown. Return the path of the HTML.

    Args:
        studies: name of a recipe → directory of its study, which may be incomplete or missing.
        note: sentence about the selection of studies; may be empty.
        has_table: True to begin with one table of the primary metric: a row per study and value of `by`, and a column
            per level.
    """
    entries = [
        OverviewEntry(name, path, StudyResults(read_study(path)) if is_study(path) else None)
        for name, path in studies.items()
    ]
    table = _joint_table(entries) if has_table else None
    make_dir(directory)
    write_text(directory / MARKDOWN, _markdown(directory, title, entries, note, table))
    # Numbered, because the id of a section must be a word.
    sections = {f"study_{number}": _section(directory, entry) for number, entry in enumerate(entries, start=1)}
    header = PageSection(title, note, [], table)
    page = ReportPage(title, {"header": header, **sections}, f"The same text: {MARKDOWN}.")
    return write_page(directory / PAGE, page)


def _joint_table(entries: Sequence[OverviewEntry]) -> ReportTable | None:
    """Return the means of the primary metric of all studies that have run; None if none has."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    titles: list[str] = []
    for entry in entries:
        if entry.results is None:
            continue
        study = entry.results.study
        name = entry.name.rpartition("/")[2]
        for section in entry.results.comparisons:
            if section.metric != study.primary:
                continue
            titles.append(judged_title(section.metric, study.has_gold))
            means = {study.label(row.level): compact(row.mean) for row in section.rows}
            rows[name, study.panel_label(section.by) if study.by else ""] = means
    if not rows:
        return None
    # Levels have different names in different studies, but the same label.
    labels = list(dict.fromkeys(label for means in rows.values() for label in means))
    cells = [[name, panel, *(means.get(label, "–") for label in labels)] for (name, panel), means in rows.items()]
    return ReportTable(["study", " / ".join(dict.fromkeys(titles)), *labels], cells, "left")


def _section(directory: Path, entry: OverviewEntry) -> PageSection:
    if entry.results is None:
        return PageSection(entry.name, "This study has not run.")
    study = entry.results.study
    comparisons = [section for section in entry.results.comparisons if section.metric == study.primary]
    values = {
        "caveat": entry.results.conclusion.caveat,
        "claim_headings": CLAIM_HEADINGS,
        "verdicts": claim_rows(study),
        "link": _link(directory, entry),
        "recipe": entry.name,
    }
    return PageSection(
        study.question or entry.name,
        entry.results.conclusion.sentence,
        [level_dots(study, comparisons)] if len(study.completed) else [],
        template=f"{__package__}:overview.html.j2",
        values=values,
    )


def _link(directory: Path, entry: OverviewEntry) -> str:
    return os.path.relpath(entry.directory / "report.html", directory)


def _markdown(directory: Path, title: str, entries: list[OverviewEntry], note: str, table: ReportTable | None) -> str:
    parts = [f"# {title}\n"]
    if note:
        parts.append(f"{note}\n")
    if table:
        parts.append(markdown_table(table.headings, table.rows, "ll" + "r" * (len(table.headings) - 2)) + "\n")
    for entry in entries:
        if entry.results is None:
            parts.append(f"## {entry.name}\n\nThis study has not run.\n")
            continue
        study, conclusion = entry.results.study, entry.results.conclusion
        figure = os.path.relpath(entry.directory / "plot.svg", directory)
        parts.append(f"## {study.question or entry.name}\n")
        parts += [f"{text}\n" for text in (conclusion.sentence, conclusion.caveat) if text]
        if claims := verdict_markdown(study):
            parts.append(claims.rstrip() + "\n")
        if len(study.completed):
            parts.append(f"![{entry.name}]({figure})\n")
        parts.append(f"Full page: [{entry.name}]({_link(directory, entry)})\n")
    return "\n".join(parts)
