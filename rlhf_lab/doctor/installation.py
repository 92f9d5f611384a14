"""Requirements of the package: version ranges and extras, from the checkout's pyproject.toml or installed metadata."""

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
    """Requirements of an installation.

    Attributes:
        python: specifier, e.g. ">=3.11".
        extras: name of an extra → packages that it adds.
    """

    python: str
    core: list[Requirement]
    extras: dict[str, list[Requirement]]


@cache
def requirements() -> Requirements:
    """Return the requirements from the checkout's pyproject.toml, else from the installed distribution's metadata.

    Raises:
        PackageNotFoundError: there is neither.
    """
    file = Path(rlhf_lab.__file__).resolve().parents[1] / "pyproject.toml"
    if file.is_file():
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        core = [Requirement(line) for line in project["dependencies"]]
        optional = project["optional-dependencies"].items()
        extras = {name: [Requirement(line) for line in lines] for name, lines in optional}
        return Requirements(project["requires-python"], core, extras)
    distribution = metadata.metadata(NAME)
    # Installed metadata lists the requirements of the core and of all extras together, with markers.
    everything = [Requirement(line) for line in metadata.requires(NAME) or []]
    names = distribution.get_all("Provides-Extra") or []
    extras = {name: [needed for needed in everything if _only_with_extra(needed, name)] for name in names}
    core = [needed for needed in everything if needed.marker is None or needed.marker.evaluate({"extra": ""})]
    return Requirements(distribution["Requires-Python"], core, extras)


def _only_with_extra(requirement: Requirement, extra: str) -> bool:
    """Return True if the requirement belongs to the extra but not to the core."""
    marker = requirement.marker
    return marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""})


def installed(package: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def unmet_requirements(required: list[Requirement]) -> Iterator[str]:
    """Yield one sentence for each requirement that the installed version does not meet."""
    for requirement in required:
        version = installed(requirement.name)
        if version is None:
            yield f"{requirement.name} is not installed (required: {requirement.specifier})"
        elif not requirement.specifier.contains(version, prereleases=True):
            yield f"{requirement.name} {version} is outside {requirement.specifier}"


def install_line(package: str) -> str:
    """Return the `pip install` command for a package: its smallest extra if it has one, else the package itself."""
    extras = requirements().extras
    with_package = [name for name, required in extras.items() if package in {needed.name for needed in required}]
    extra = min(with_package, key=lambda name: len(extras[name]), default=None)
    return f"pip install 'rlhf_lab[{extra}]'" if extra else f"pip install {package}"
