"""What the package requires: version ranges and extras, from the checkout's pyproject.toml or installed metadata."""

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
    """The requirements in pyproject.toml beside the package, else in the installed distribution's metadata.

    Raises PackageNotFoundError when there is neither.
    """
    file = Path(rlhf_lab.__file__).resolve().parents[1] / "pyproject.toml"
    if file.is_file():
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        core = [Requirement(line) for line in project["dependencies"]]
        extras = {
            name: [Requirement(line) for line in lines] for name, lines in project["optional-dependencies"].items()
        }
        return Requirements(project["requires-python"], core, extras)
    distribution = metadata.metadata(NAME)
    everything = [Requirement(line) for line in metadata.requires(NAME) or []]
    names = distribution.get_all("Provides-Extra") or []
    extras = {name: [needed for needed in everything if _only_with_extra(needed, name)] for name in names}
    core = [needed for needed in everything if needed.marker is None or needed.marker.evaluate({"extra": ""})]
    return Requirements(distribution["Requires-Python"], core, extras)


def _only_with_extra(requirement: Requirement, extra: str) -> bool:
    """Whether an extra brings a requirement that the core does not have."""
    marker = requirement.marker
    return marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""})


def installed(package: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def unmet(required: list[Requirement]) -> Iterator[str]:
    """One sentence for each requirement that the installed version does not meet."""
    for requirement in required:
        version = installed(requirement.name)
        if version is None:
            yield f"{requirement.name} is not installed (wanted {requirement.specifier})"
        elif not requirement.specifier.contains(version, prereleases=True):
            yield f"{requirement.name} {version} is outside {requirement.specifier}"


def install_line(package: str) -> str:
    """The shortest `pip install` that brings a package: the smallest extra that has it, else the package itself."""
    extras = requirements().extras
    with_package = [
        name for name, required in extras.items() if any(requirement.name == package for requirement in required)
    ]
    extra = min(with_package, key=lambda name: len(extras[name]), default=None)
    return f"pip install 'rlhf_lab[{extra}]'" if extra else f"pip install {package}"
