"""Output of a comparison of two runs: the page compare.html, and a table for the console."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from rlhf_lab.core.console import number_table
from rlhf_lab.core.errors import DataError
from rlhf_lab.core.files import make_dir, short_path
from rlhf_lab.reports.comparison.compare import find_sides
from rlhf_lab.reports.comparison.scales import refuse_two_worlds
from rlhf_lab.reports.comparison.view import HEADINGS, comparison_page, run_comparison
from rlhf_lab.reports.page import write_page
from rlhf_lab.studies.frame import is_study

CONSOLE_CHANGES = 12
"""Maximum number of settings that the console lists; the page lists all."""


@dataclass(frozen=True)
class Compared:
    """Result of a comparison: the page, and the values that it shows."""

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
    """Compare two runs, or jobs of studies, and write `compare.html`.

    Args:
        policy: the policy of both, or "of A,of B"; None uses the run's own policy.
        to: directory of the page; None is comparisons/<a>-vs-<b> in `outputs`.
        outputs: None is the outputs directory that contains A, or else ./outputs.

    Raises:
        DataError: a directory is no run, their gold values come from two worlds, or nothing can be compared.
    """
    for directory in (a, b):
        if is_study(Path(directory)):
            raise DataError(
                f"{directory} is a study; compare takes two runs, or jobs of studies, such as {Path(directory)}/jobs/0"
            )
    side_a, side_b = find_sides(a, b, policy)
    refuse_two_worlds(side_a.run, side_b.run)
    view = run_comparison(side_a, side_b)
    # Without any common number the page would be empty.
    if not (view["rows"] or view["stored"] or view["bare"] or view["charts"]):
        notes = " ".join(view["remarks"])
        raise DataError(f"{a} and {b} share no metric of responses, no result and no training curve. {notes}".strip())
    directory = Path(to) if to else default_dir("comparisons", a, b, outputs=outputs)
    make_dir(directory)
    page = write_page(directory / "compare.html", comparison_page(view))
    return Compared(page, view)


def default_dir(kind: str, *sources: Path | str, outputs: Path | str | None = None) -> Path:
    """Return the directory for output about these runs, jobs, studies or files: <outputs>/<kind>/A-vs-B.

    Args:
        outputs: None is the outputs directory that contains the first source, or else ./outputs.
    """
    outputs = Path(outputs or outputs_dir(sources[0]) or "outputs").resolve()
    return short_path(outputs / kind / "-vs-".join(_dir_label(source, outputs) for source in sources))


def outputs_dir(directory: Path | str) -> Path | None:
    """Return the outputs directory that contains a run, a job or a study; None if there is none."""
    parents = Path(directory).resolve().parents
    return next((parent.parent for parent in parents if parent.name in ("runs", "studies")), None)


def _dir_label(directory: Path | str, outputs: Path) -> str:
    """Return a directory's name; a job is prefixed with its study, and a path outside `outputs` gets a digest."""
    path = Path(directory).resolve()
    name = path.name
    # Jobs of all studies are numbered from 0, so their number alone is ambiguous.
    if (path / "job.json").is_file():
        name = f"{path.parents[1].name}-job{path.name}"
    if outputs_dir(path) == outputs:
        return name
    # Another outputs directory may contain a run of the same name.
    return f"{name}-{sha256(str(path).encode()).hexdigest()[:6]}"


def printed(view: dict[str, Any]) -> RenderableType:
    """Return the comparison for a terminal: changed settings, tests, conclusion and notes."""
    blocks: list[RenderableType] = [Text(view["title"], style="bold")]
    for key, value_a, value_b in view["settings"][:CONSOLE_CHANGES]:
        blocks.append(Text(f"  {key}  {value_a} → {value_b}", style="dim"))
    not_shown = len(view["settings"][CONSOLE_CHANGES:]) + len(view["only_one"])
    if not_shown:
        blocks.append(Text(f"  … and {not_shown} more settings, on the page", style="dim"))
    if view["rows"]:
        table = number_table(HEADINGS, title="Metrics of responses")
        for *values, _, distinguishable in view["rows"]:
            table.add_row(*map(escape, values), style="bold" if distinguishable else "")
        blocks.append(table)
    blocks += [Text(test, style="dim") for test in view["tests"]]
    for heading, rows in (("stored by each run", view["stored"]), ("cost", view["costs"])):
        if rows:
            headings = (heading, "A", "B", "" if heading == "cost" else "unpaired test")
            blocks.append(number_table(headings, [row[:4] for row in rows]))
    blocks += [Text(f"! {note}", style="yellow") for note in view["remarks"]]
    return Group(*blocks, Text(view["finding"]), Text(view["scope"], style="dim"))
