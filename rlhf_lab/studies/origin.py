"""Origin of the numbers of a study: its provenance, and the files next to its page with seeds and code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlhf_lab.core.files import read_object, write_json, write_text
from rlhf_lab.results.wording import duration
from rlhf_lab.stages.provenance import Provenance, provenance_of, size_in_words
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.replication import list_in_words


def record_provenance(study: Study) -> Provenance:
    """Write the provenance of a study to study.json, and the files that its page links to. Return the provenance."""
    runs = [Path(run) for run in study.completed["run"]]
    provenance, definitions = provenance_of(runs)
    plan = study.path / "study.json"
    write_json(plan, read_object(plan) | {"provenance": provenance.to_dict()})
    write_json(study.path / code_file(study), {"digest": provenance.code, "definitions": _by_file(definitions)})
    columns = ["index", *study.factors, *study.metrics]
    write_text(study.path / seeds_file(study), study.completed[columns].to_csv(index=False, float_format="%.6g"))
    return provenance


def seeds_file(study: Study) -> str:
    return f"{_page_name(study)}_seeds.csv"


def code_file(study: Study) -> str:
    return f"{_page_name(study)}_code.json"


def _page_name(study: Study) -> str:
    """Return the name of the study's page, with which the names of its files begin."""
    return study.recipe.rpartition("/")[2]


def _by_file(definitions: dict[str, str]) -> dict[str, dict[str, str]]:
    """Return file → name of a definition → digest; the name of a file's other statements is empty."""
    files: dict[str, Any] = {}
    for label, digest in sorted(definitions.items()):
        file, _, name = label.partition(":")
        files.setdefault(file, {})[name] = digest
    return files


def origin_lines(study: Study) -> list[str]:
    provenance = study.provenance
    if not provenance.stages:
        return []
    code = [f"rlhf_lab {_either(provenance.versions)}", f"commit {_either(provenance.commits)}"]
    if provenance.code:
        code.append(f"code digest `{provenance.code}` of {provenance.definitions} definitions")
    time = [f"{provenance.stages} stages", f"wall time {duration(provenance.seconds)}"]
    if provenance.cpu_seconds is not None:
        time.append(f"CPU time {duration(provenance.cpu_seconds)}")
    days = dict.fromkeys(started[:10] for started in provenance.started)
    lines = [f"{', '.join(code)}.", f"{', '.join(time)} in all, started {' to '.join(days) or 'unknown'}."]
    if provenance.machines:
        lines.append(f"Machine: {_either(provenance.machines)}.")
    if provenance.parameters:
        sizes = [size_in_words(size) for size in provenance.parameters]
        lines.append(f"Model size: {list_in_words(list(dict.fromkeys(sizes)))} parameters.")
    return lines


def _either(values: tuple[str, ...]) -> str:
    return " or ".join(values) or "unknown"


def origin_markdown(study: Study) -> str:
    lines = origin_lines(study)
    if not lines:
        return ""
    lines.append(f"Values of every seed: [{seeds_file(study)}]({seeds_file(study)}).")
    lines.append(f"Definitions of the code: [{code_file(study)}]({code_file(study)}).")
    return "\n## Where the numbers come from\n\n" + "".join(f"- {line}\n" for line in lines)
