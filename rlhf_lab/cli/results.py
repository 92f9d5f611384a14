"""`results check`: which pages of results were made by code that has changed since."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import read_object
from rlhf_lab.stages.code_digest import PACKAGE, differences, package_definitions

CURRENT, CHANGED, UNKNOWN = "current", "changed", "unknown"
"""State of a page's code: as it was, changed since, or not recorded."""
CODE_LINK = re.compile(r"\]\(([^()\s]+_code\.json)\)")
"""Link of a page to the digests of its definitions, see `studies/origin.py`."""


@dataclass(frozen=True)
class CheckedPage:
    """A page of results with the state of its code.

    Attributes:
        name: file name of the page.
        state: one of `CURRENT`, `CHANGED`, `UNKNOWN`.
        remark: what changed, or why it is unknown.
    """

    name: str
    state: str
    remark: str


def results_directory() -> Path:
    """Return the directory of accepted results of this checkout. Raise ConfigError in an installed package."""
    directory = PACKAGE.parent / "docs" / "results"
    if not directory.is_dir():
        raise ConfigError(
            "results check: rlhf_lab is installed without its pages of results; name a directory with pages: "
            "results check DIR"
        )
    return directory


def check_pages(directory: Path) -> list[CheckedPage]:
    """Return the pages of a directory with the state of their code. Raise ConfigError if there are none."""
    pages = sorted(page for page in directory.glob("*.md") if page.name != "README.md")  # which is the index
    if not pages:
        raise ConfigError(f"results check: {directory} has no pages (*.md); name a directory such as docs/results")
    present = package_definitions()
    return [_check_page(page, present) for page in pages]


def _check_page(page: Path, present: set[tuple[str, str]]) -> CheckedPage:
    """Compare the definitions that a page names with the (name, digest) of those that exist now, in whichever file."""
    link = CODE_LINK.search(page.read_text(encoding="utf-8"))
    if link is None:
        return CheckedPage(page.name, UNKNOWN, "made before provenance was recorded")
    files = read_object(page.parent / link[1]).get("definitions")
    if not isinstance(files, dict):
        return CheckedPage(page.name, UNKNOWN, f"{link[1]} is missing or damaged; it belongs next to the page")
    absent: dict[str, str] = {}
    for file, definitions in files.items():
        # Code of plug-ins and of users is not part of this package.
        if file.startswith("rlhf_lab/"):
            absent |= {
                f"{file}:{name}": digest for name, digest in definitions.items() if (name, digest) not in present
            }
    if absent:
        return CheckedPage(page.name, CHANGED, f"changed since: {', '.join(differences(absent, {}))}")
    return CheckedPage(page.name, CURRENT, "the code is as it was")


def summary(pages: list[CheckedPage]) -> str:
    """Return the number of pages per state in one sentence."""
    counts = Counter(page.state for page in pages)
    return (
        f"{len(pages)} pages: the code of {counts[CURRENT]} is as it was, that of {counts[CHANGED]} has changed since, "
        f"and {counts[UNKNOWN]} do not say by which code they were made."
    )
