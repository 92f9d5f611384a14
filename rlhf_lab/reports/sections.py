"""Pages as lists of sections, and the lists of the sections that the pages of runs and of studies have.

A giver is a function that takes a run (for a study: `study.results.StudyResults`) and returns its PageSection, or
None where it has nothing to show. Lists name givers as "module:function"; the name of the function is the id of the
section, by which links, other sections and plug-ins refer to it. A section's template lies beside its giver.
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
    "rlhf_lab.reports.reward.parts:criteria",
    "rlhf_lab.reports.reward.card:benchmark",
    "rlhf_lab.reports.run.corpus:corpus",
    "rlhf_lab.reports.monitor.lights:lights",
    "rlhf_lab.reports.monitor.panels:monitor",
    "rlhf_lab.reports.run.policies:policies",
    "rlhf_lab.reports.run.frontier:frontier",
    "rlhf_lab.reports.run.policies:gains",
    "rlhf_lab.reports.run.samples:samples",
    "rlhf_lab.reports.run.training:training",
    "rlhf_lab.reports.run.samples:spreads",
    "rlhf_lab.reports.run.origin:origin",
    "rlhf_lab.reports.run.origin:settings",
)
STUDY = (
    "rlhf_lab.reports.study.header:header",
    "rlhf_lab.reports.study.metric_tables:primary",
    "rlhf_lab.reports.study.paths:paths",
    "rlhf_lab.reports.study.metric_tables:exploratory",
    "rlhf_lab.reports.study.policies:policies",
    "rlhf_lab.reports.study.fronts:fronts",
    "rlhf_lab.reports.study.curves:curves",
    "rlhf_lab.reports.study.policies:samples",
    "rlhf_lab.reports.study.policies:pairs",
    "rlhf_lab.reports.study.header:jobs",
)
Kind = Literal["run", "study"]


@dataclass(frozen=True)
class Table:
    """A table as text. Headings may hold markup, see `glossary.term`; `look` names the styles of its columns."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    look: str = ""


@dataclass(frozen=True)
class PageSection:
    """A part of a page.

    Attributes:
        title: heading of the box.
        note: a sentence below the heading; words in `backticks` are shown as code.
        figures, table: content of the box.
        template: "package:file" of a Jinja template that draws more than these, with `values`, `section`, `id` and
            `page` (whose `draw` draws a chart). A name without a package lies in reports/templates; `section.html.j2`
            draws the box, and can be extended.
        files: name → what is written beside the page: text, another page, or a figure as `name`.svg and `name`.png.
    """

    title: str = ""
    note: str = ""
    figures: Sequence[Chart] = ()
    table: Table | None = None
    template: str = "section.html.j2"
    values: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str | Chart | Page] = field(default_factory=dict)


@dataclass(frozen=True)
class Page:
    """A self-contained HTML file: its sections by id, in order. `footer` may hold `code` in backticks."""

    title: str
    sections: Mapping[str, PageSection]
    footer: str


def figure_boxes(*drawn: tuple[str, str, Chart | None]) -> list[PageSection]:
    """Sections of (title, note, figure), without those that have no figure."""
    return [PageSection(title, note, [figure]) for title, note, figure in drawn if figure]


def contributed(kind: Kind) -> Sequence[str]:
    """References of the sections that packs add to a kind of page, see `givers`."""
    return [reference for pack in packs() for reference in getattr(pack, f"{kind}_sections")]


def givers(kind: Kind) -> dict[str, Callable[[Any], PageSection | None]]:
    """The givers of a kind of page by id, in order.

    A plug-in's reference is "module:function", which stands last, or "module:function after ID", which follows the
    section with that id.
    """
    lab = {"run": RUN, "study": STUDY}[kind]
    followers: dict[str, list[str]] = {}  # id of a section → references of those that follow it
    for text in contributed(kind):
        reference, _, anchor = text.partition(" after ")
        followers.setdefault(anchor or section_id(lab[-1]), []).append(reference)

    def with_followers(reference: str) -> Iterator[str]:
        yield reference
        for follower in followers.pop(section_id(reference), []):
            yield from with_followers(follower)

    ordered = [found for reference in lab for found in with_followers(reference)]
    if followers:
        anchor, (reference, *_) = next(iter(followers.items()))
        ids = ", ".join(map(section_id, ordered))
        raise ConfigError(f"section {reference}: a {kind}'s page has no section {anchor!r} to follow; it has {ids}")
    by_id: dict[str, Callable[[Any], PageSection | None]] = {}
    for reference in ordered:
        name = section_id(reference)
        if name in by_id:
            raise ConfigError(f"section {reference}: a {kind}'s page already has {name!r}; rename the function")
        by_id[name] = _load(reference)
    return by_id


def section_id(reference: str) -> str:
    return reference.rpartition(":")[2]


def page_sections(kind: Kind, subject: Any) -> dict[str, PageSection]:
    """The sections of the page of a run or a study by id, in order, without those that have nothing to show."""
    given = {name: give(subject) for name, give in givers(kind).items()}
    return {name: section for name, section in given.items() if section is not None}


def _load(reference: str) -> Callable[[Any], PageSection | None]:
    try:
        giver: Callable[[Any], PageSection | None] = load(reference)
    except (ImportError, AttributeError, ValueError) as fault:
        raise ConfigError(f"section {reference}: {fault}; write it as module:function") from fault
    return giver
