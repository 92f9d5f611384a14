"""Pages as lists of sections, and the default sections of the pages of runs and of studies.

A section giver is a function that takes a run (for a study: `study.results.StudyResults`) and returns its PageSection,
or None if it has nothing to show. Lists name givers as "module:function". The name of the function is the id of the
section, by which links, other sections and plug-ins refer to it. The template of a section is next to its giver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.packs import load, packs
from rlhf_lab.figures.layers import Chart

RUN = (
    "rlhf_lab.reports.run.header:header",
    "rlhf_lab.reports.reward.card:report_card",
    "rlhf_lab.reports.reward.card:criteria",
    "rlhf_lab.reports.reward.card:benchmark",
    "rlhf_lab.reports.reward.card:probes",
    "rlhf_lab.reports.reward.card:attack",
    "rlhf_lab.reports.run.frontier:frontier",
    "rlhf_lab.reports.run.samples:corpus",
    "rlhf_lab.reports.monitor.panels:lights",
    "rlhf_lab.reports.monitor.panels:monitor",
    "rlhf_lab.reports.monitor.panels:audited",
    "rlhf_lab.reports.run.policies:policies",
    "rlhf_lab.reports.run.policies:gains",
    "rlhf_lab.reports.run.samples:samples",
    "rlhf_lab.reports.run.training:training",
    "rlhf_lab.reports.run.samples:sample_distributions",
    "rlhf_lab.reports.run.header:origin",
    "rlhf_lab.reports.run.header:settings",
)
"""Default sections of the page of a run, in order."""
STUDY = (
    "rlhf_lab.reports.study.header:header",
    "rlhf_lab.reports.study.claims:rates",
    "rlhf_lab.reports.study.claims:correlations",
    "rlhf_lab.reports.study.metric_tables:primary",
    "rlhf_lab.reports.study.claims:search",
    "rlhf_lab.reports.study.paths:paths",
    "rlhf_lab.reports.study.metric_tables:exploratory",
    "rlhf_lab.reports.study.policies:policies",
    "rlhf_lab.reports.study.claims:fronts",
    "rlhf_lab.reports.study.claims:crossings",
    "rlhf_lab.reports.study.curves:curves",
    "rlhf_lab.reports.study.policies:samples",
    "rlhf_lab.reports.study.header:origin",
    "rlhf_lab.reports.study.header:jobs",
)
"""Default sections of the page of a study, in order."""
Kind = Literal["run", "study"]
"""Kind of a page."""


@dataclass(frozen=True)
class ReportTable:
    """Table of text. Headings may contain markup, see `glossary.term`; `style` names the styles of its columns."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    style: str = ""


@dataclass(frozen=True)
class PageSection:
    """Section of a page.

    Attributes:
        note: sentence below the heading; words in `backticks` are shown as code.
        figures, table: content of the box.
        template: "package:file" of a Jinja template that shows more than these, with `values`, `section`, `id` and
            `page` (whose `draw` renders a chart). A name without a package is in reports/templates; `section.html.j2`
            renders the box, and can be extended.
        files: name → file written next to the page: text, another page, or a figure as `name`.svg and `name`.png.
    """

    title: str = ""
    note: str = ""
    figures: Sequence[Chart] = ()
    table: ReportTable | None = None
    template: str = "section.html.j2"
    values: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str | Chart | ReportPage] = field(default_factory=dict)


@dataclass(frozen=True)
class ReportPage:
    """Self-contained HTML file: its sections by id, in order. `footer` may contain `code` in backticks."""

    title: str
    sections: Mapping[str, PageSection]
    footer: str


def figure_boxes(*figures: tuple[str, str, Chart | None]) -> list[PageSection]:
    """Return sections for (title, note, figure), without those that have no figure."""
    return [PageSection(title, note, [figure]) for title, note, figure in figures if figure]


def contributed_sections(kind: Kind) -> Sequence[str]:
    """Return references of the sections that packs add to a kind of page, see `section_givers`."""
    return [reference for pack in packs() for reference in getattr(pack, f"{kind}_sections")]


def section_givers(kind: Kind) -> dict[str, Callable[[Any], PageSection | None]]:
    """Return the givers of a kind of page by id, in order.

    The reference of a plug-in is "module:function", which is appended at the end, or "module:function after ID", which
    is inserted after the section with that id.

    Raises:
        ConfigError: a reference cannot be loaded, follows an unknown section, or repeats an id.
    """
    lab = {"run": RUN, "study": STUDY}[kind]
    followers: dict[str, list[str]] = {}  # id of a section → references inserted after it
    for text in contributed_sections(kind):
        # Without an anchor, the section follows the last one of the core.
        reference, _, anchor = text.partition(" after ")
        followers.setdefault(anchor or section_id(lab[-1]), []).append(reference)

    def with_followers(reference: str) -> Iterator[str]:
        yield reference
        for follower in followers.pop(section_id(reference), []):
            yield from with_followers(follower)

    ordered = [found for reference in lab for found in with_followers(reference)]
    # Entries that are still in `followers` name a section that does not exist.
    if followers:
        anchor, (reference, *_) = next(iter(followers.items()))
        ids = ", ".join(map(section_id, ordered))
        raise ConfigError(
            f"section {reference} cannot follow {anchor!r}, because a {kind}'s page has no such section; use one of: "
            f"{ids}"
        )
    by_id: dict[str, Callable[[Any], PageSection | None]] = {}
    for reference in ordered:
        name = section_id(reference)
        if name in by_id:
            raise ConfigError(f"section {reference}: a {kind}'s page already has section {name!r}; rename the function")
        by_id[name] = _load(reference)
    return by_id


def section_id(reference: str) -> str:
    """Return the id of a section: the name of its function."""
    return reference.rpartition(":")[2]


def page_sections(kind: Kind, subject: Any) -> dict[str, PageSection]:
    """Return id → section for the page of a run or a study, in page order; sections without content are left out."""
    provided = {name: give(subject) for name, give in section_givers(kind).items()}
    return {name: section for name, section in provided.items() if section is not None}


def _load(reference: str) -> Callable[[Any], PageSection | None]:
    try:
        giver: Callable[[Any], PageSection | None] = load(reference)
    except (ImportError, AttributeError, ValueError) as fault:
        raise ConfigError(f"section {reference}: {fault}; write it as module:function") from fault
    return giver
