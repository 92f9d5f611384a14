"""Provenance of the numbers of runs: code, time, machine and model size, read from the directories of stages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

from rlhf_lab.core.files import read_object
from rlhf_lab.results.rundir import input_directory
from rlhf_lab.stages.artifacts import CODE

NO_CHECKOUT = "not a checkout"
"""Text in place of a commit if the code is an installed package and no git checkout."""


@dataclass(frozen=True)
class Provenance:
    """Origin of the numbers of one or several stages. If a value differs between stages, all values are listed.

    Attributes:
        versions, commits: of rlhf_lab.
        code: digest of the definitions that computed the numbers, see `code_digest`.
        machines: cores and device, in words.
        seconds: wall time of all stages together.
        cpu_seconds: CPU time of all stages together, without processes that they started; None if some stage does not
            record it.
    """

    versions: tuple[str, ...] = ()
    commits: tuple[str, ...] = ()
    code: str = ""
    definitions: int = 0
    started: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()
    stages: int = 0
    seconds: float = 0.0
    cpu_seconds: float | None = None
    parameters: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Provenance:
        stored: dict[str, Any] = {}
        for field in fields(cls):
            value = values[field.name]
            stored[field.name] = tuple(value) if isinstance(value, list) else value
        return cls(**stored)


def provenance_of(runs: Iterable[Path]) -> tuple[Provenance, dict[str, str]]:
    """Return the provenance of runs with all stages before them, and definition → digest of their code."""
    runs = [run.resolve() for run in runs]
    stages = {path: read_object(path / "manifest.json") for run in runs for path in with_earlier_stages(run)}
    results = {path: read_object(path / "result.json") for path in stages}
    definitions: dict[str, str] = {}
    for path in stages:
        definitions |= read_object(path / CODE).get("definitions") or {}
    cpu_seconds = [result["cpu_seconds"] for result in results.values() if "cpu_seconds" in result]
    started = sorted(str(manifest["created"]) for manifest in stages.values() if manifest.get("created"))
    provenance = Provenance(
        versions=_distinct((manifest.get("versions") or {}).get("rlhf_lab") for manifest in stages.values()),
        commits=_distinct(map(commit_in_words, stages.values())),
        code=code_digest(definitions) if definitions else "",
        definitions=len(definitions),
        # The first and the last stage are enough for a period.
        started=tuple(dict.fromkeys((*started[:1], *started[-1:]))),
        machines=_distinct(map(machine_in_words, stages.values())),
        stages=len(stages),
        seconds=round(sum(float(result.get("seconds") or 0.0) for result in results.values()), 1),
        cpu_seconds=round(sum(cpu_seconds), 1) if len(cpu_seconds) == len(stages) else None,
        parameters=tuple(sorted({size for run in runs if (size := _parameters(run, results))})),
    )
    return provenance, definitions


def with_earlier_stages(run: Path) -> Iterator[Path]:
    """Yield a run directory and those of all stages before it; missing directories are left out."""
    yield run
    needs = read_object(run / "manifest.json").get("needs") or {}
    for need in needs.values():
        directory = input_directory(run, need)
        if directory is not None:
            yield from with_earlier_stages(directory)


def code_digest(definitions: Mapping[str, str]) -> str:
    """Return a digest of definitions ("path:name" → digest) that does not depend on the files in which they are."""
    named = sorted(f"{label.partition(':')[2]} {digest}" for label, digest in definitions.items())
    return sha256("\n".join(named).encode()).hexdigest()[:16]


def commit_in_words(manifest: Mapping[str, Any]) -> str:
    """Return the commit of a stage's code, shortened; empty if the manifest does not record it."""
    if "git_sha" not in manifest:
        return ""
    if not manifest["git_sha"]:
        return NO_CHECKOUT
    sha, _, changes = str(manifest["git_sha"]).partition("+")
    return f"{sha[:10]} + uncommitted changes" if changes else sha[:10]


def machine_in_words(manifest: Mapping[str, Any]) -> str:
    """Return the cores and the device on which a stage ran; empty if the manifest does not record them."""
    machine = manifest.get("machine") or {}
    if "cores" not in machine:
        return ""
    cores = machine["cores"]
    return f"{cores} core{'s' * (cores != 1)}, {machine['device']}"


def size_in_words(parameters: int) -> str:
    return f"{parameters / 1e6:.2g}M" if parameters < 1e9 else f"{parameters / 1e9:.2g}B"


def _parameters(run: Path, results: Mapping[Path, Mapping[str, Any]]) -> int | None:
    """Return the number of parameters of a run's model, or else of the largest model of its earlier stages, or None."""
    sizes = {path: (results[path].get("metrics") or {}).get("parameters") or 0 for path in with_earlier_stages(run)}
    return int(sizes[run] or max(sizes.values())) or None


def _distinct(values: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value for value in values if value))
