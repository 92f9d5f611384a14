"""Writes compare.html for two runs or two studies, and prints the same comparison as a table."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.files import make_folder
from rlhf_lab.reports.comparison.compare import find_sides
from rlhf_lab.reports.comparison.scales import refuse_two_worlds
from rlhf_lab.reports.comparison.view import HEADINGS, comparison_page, run_comparison, study_comparison
from rlhf_lab.reports.page import write_page
from rlhf_lab.studies.frame import is_study, read_study

CONSOLE_CHANGES = 12
"""Settings that the console names; the page has all."""


@dataclass(frozen=True)
class Compared:
    """A comparison in memory and the page that shows it."""

    page: Path
    view: dict[str, Any]


def compare(
    a: Path | str,
    b: Path | str,
    *,
    policy: str | None = None,
    to: Path | str | None = None,
    outputs: Path | str | None = None,
) -> Compared:
    """Compare two runs (or jobs), or two studies, and write `compare.html`.

    Args:
        policy: of two runs, the policy of both, or "of A,of B"; None takes the own policy of each.
        to: folder of the page; None is comparisons/<a>-vs-<b> in `outputs`.
        outputs: None is the outputs that A lies in, or else ./outputs.

    Raises:
        DataError: a folder is neither, one is a run and the other a study, their truths are those of two worlds, or
            nothing can be compared.
    """
    a_is_study, b_is_study = is_study(Path(a)), is_study(Path(b))
    if a_is_study != b_is_study:
        study, run = (a, b) if a_is_study else (b, a)
        raise DataError(
            f"{study} is a study and {run} is not; compare one of its jobs, {Path(study)}/jobs/0, or a study"
        )
    if a_is_study:
        if policy is not None:
            raise DataError("policy= chooses a policy of a run; two studies are compared by the results of their jobs")
        if Path(a).resolve() == Path(b).resolve():
            raise DataError(f"A and B are the same study, {a}; its report compares its levels")
        view = study_comparison(read_study(a), read_study(b))
    else:
        side_a, side_b = find_sides(a, b, policy)
        refuse_two_worlds(side_a.run, side_b.run)
        view = run_comparison(side_a, side_b)
        if not (view["tables"] or view["stored"] or view["bare"] or view["charts"]):
            remarks = " ".join(view["remarks"])
            raise DataError(
                f"{a} and {b} share no metric of replies, no result and no training curve. {remarks}".strip()
            )
    folder = Path(to) if to else default_folder("comparisons", a, b, outputs=outputs)
    make_folder(folder)
    page = write_page(folder / "compare.html", comparison_page(view))
    return Compared(page, view)


def default_folder(kind: str, *sources: Path | str, outputs: Path | str | None = None) -> Path:
    """Where what was made of these runs, jobs, studies or files goes: <outputs>/<kind>/A-vs-B.

    Args:
        outputs: None is the outputs that the first source lies in, or else ./outputs.
    """
    working_folder = Path.cwd()
    outputs = Path(outputs or outputs_folder(sources[0]) or "outputs").resolve()
    folder = outputs / kind / "-vs-".join(_folder_label(source, outputs) for source in sources)
    return folder.relative_to(working_folder) if folder.is_relative_to(working_folder) else folder


def outputs_folder(folder: Path | str) -> Path | None:
    """The outputs folder that a run, a job or a study lies in."""
    for parent in Path(folder).resolve().parents:
        if parent.name in ("runs", "studies"):
            return parent.parent
    return None


def _folder_label(folder: Path | str, outputs: Path) -> str:
    """A folder's name, that of a job with its study's before it; with a digest of its path outside of `outputs`."""
    path = Path(folder).resolve()
    name = path.name
    if (path / "job.json").is_file():
        name = f"{path.parents[1].name}-job{path.name}"
    if outputs_folder(path) == outputs:
        return name
    # Another outputs folder may have a run of the same name.
    return f"{name}-{sha256(str(path).encode()).hexdigest()[:6]}"


def printed(view: dict[str, Any]) -> RenderableType:
    """The comparison for a terminal: what differs in settings, the tests, the finding, and the remarks."""
    blocks: list[RenderableType] = [Text(view["title"], style="bold")]
    for key, value_a, value_b in view["settings"][:CONSOLE_CHANGES]:
        blocks.append(Text(f"  {key}  {value_a} → {value_b}", style="dim"))
    not_shown = len(view["settings"][CONSOLE_CHANGES:]) + len(view["only_one"])
    if not_shown:
        blocks.append(Text(f"  … and {not_shown} more settings, on the page", style="dim"))
    for metric_table in view["tables"]:
        table = _empty_table((metric_table["first"], *HEADINGS), title=metric_table["title"])
        for *values, _, distinguishable in metric_table["rows"]:
            table.add_row(*map(escape, values), style="bold" if distinguishable else "")
        blocks.append(table)
    blocks += [Text(test, style="dim") for test in view["tests"]]
    for heading, rows in (("stored by each run", view["stored"]), ("cost", view["costs"])):
        if rows:
            table = _empty_table((heading, "A", "B", "" if heading == "cost" else "unpaired test"))
            for row in rows:
                table.add_row(*map(escape, row[:4]))
            blocks.append(table)
    blocks += [Text(f"! {remark}", style="yellow") for remark in view["remarks"]]
    return Group(*blocks, Text(view["finding"]), Text(view["scope"], style="dim"))


def _empty_table(headings: tuple[str, ...], *, title: str = "") -> Table:
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number == 0 else "right", no_wrap=number > 0)
    return table
