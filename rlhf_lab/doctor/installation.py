"""What the package asks for: version ranges and extras, from the checkout's pyproject.toml or installed metadata."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

import rlhf_lab

NAME = "rlhf_lab"


@dataclass(frozen=True)
class Requirements:
    """What an installation must have.

    Attributes:
        python: specifier, e.g. ">=3.11".
        core: what every run needs.
        extras: extra → what it adds.
    """

    python: str
    core: list[Requirement]
    extras: dict[str, list[Requirement]]


@cache
def requirements() -> Requirements:
    """From pyproject.toml beside the package, else from the installed distribution.

    Raises PackageNotFoundError when there is neither.
    """
    file = Path(rlhf_lab.__file__).resolve().parents[1] / "pyproject.toml"
    if file.is_file():
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        extras = {name: list(map(Requirement, lines)) for name, lines in project["optional-dependencies"].items()}
        return Requirements(project["requires-python"], list(map(Requirement, project["dependencies"])), extras)
    found = metadata.metadata(NAME)
    lines = list(map(Requirement, metadata.requires(NAME) or []))
    names = found.get_all("Provides-Extra") or []
    extras = {name: [line for line in lines if _only_with(line, name)] for name in names}
    core = [line for line in lines if line.marker is None or line.marker.evaluate({"extra": ""})]
    return Requirements(found["Requires-Python"], core, extras)


def _only_with(line: Requirement, extra: str) -> bool:
    """Whether a requirement is an extra's alone."""
    marker = line.marker
    return marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""})


def installed(package: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def wrong(lines: list[Requirement]) -> Iterator[str]:
    """One sentence for each requirement that the installed version does not meet."""
    for line in lines:
        version = installed(line.name)
        if version is None:
            yield f"{line.name} is not installed (wanted {line.specifier})"
        elif not line.specifier.contains(version, prereleases=True):
            yield f"{line.name} {version} is outside {line.specifier}"


def install_line(package: str) -> str:
    """The shortest `pip install` that brings a package: the smallest extra that has it, else the package itself."""
    extras = requirements().extras
    having = [name for name, lines in extras.items() if any(line.name == package for line in lines)]
    extra = min(having, key=lambda name: len(extras[name]), default=None)
    return f"pip install 'rlhf_lab[{extra}]'" if extra else f"pip install {package}"
