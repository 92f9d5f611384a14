"""Pages say where their numbers come from: code, time, machine and model size; a file has the values of every seed."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from synthetic_runs import edit

from rlhf_lab.reports.report import write_study_report
from rlhf_lab.stages.provenance import Provenance, code_digest, provenance_of
from rlhf_lab.studies.frame import read_study
from rlhf_lab.studies.origin import origin_lines

CODE = {"rlhf_lab/losses/preference.py:dpo": "aa", "rlhf_lab/training/loop.py:train": "bb"}


def complete(
    run: Path, sft: str, *, sha: str | None = "0123456789abcdef", created: str = "2030-01-02T03:04:05"
) -> None:
    """Give a synthetic run what a real one records: code, machine, CPU time, model size and an earlier stage."""
    needs = {"policy": {"recipe": "sft", "key": "k", "dir": f"elsewhere/{sft}"}}
    machine = {"cores": 2, "cpu_threads": 1, "device": "cpu"}
    edit(run / "manifest.json", git_sha=sha, created=created, machine=machine, needs=needs)
    result = json.loads((run / "result.json").read_text())
    edit(run / "result.json", cpu_seconds=100.0, metrics=result["metrics"] | {"parameters": 212_000})
    (run / "code.json").write_text(json.dumps({"version": "0.1.0", "definitions": CODE}))


def earlier_stage(run: Path, name: str) -> None:
    """Write a supervised stage next to a run."""
    directory = run.parent / name
    directory.mkdir()
    manifest = {"recipe": "sft", "created": "2030-01-01T03:04:05", "git_sha": "fedcba9876543210+changes"}
    manifest |= {"versions": {"rlhf_lab": "0.1.0"}, "machine": {"cores": 1, "cpu_threads": 1, "device": "cuda"}}
    (directory / "manifest.json").write_text(json.dumps(manifest))
    (directory / "result.json").write_text(json.dumps({"seconds": 10.0, "cpu_seconds": 20.0, "metrics": {}}))
    definitions = {"rlhf_lab/losses/sft.py:sft": "cc"}
    (directory / "code.json").write_text(json.dumps({"version": "0.1.0", "definitions": definitions}))


def test_stages_before_a_run_count_once(make_run):
    run = make_run("store/dpo")
    complete(run, "sft-1")
    earlier_stage(run, "sft-1")
    provenance, definitions = provenance_of([run, run])
    assert provenance == Provenance(
        versions=("0.1.0",),
        commits=("0123456789", "fedcba9876 + uncommitted changes"),
        code=code_digest(definitions),
        definitions=3,
        started=("2030-01-01T03:04:05", "2030-01-02T03:04:05"),
        machines=("2 cores, cpu", "1 core, cuda"),
        stages=2,
        seconds=81.5,
        cpu_seconds=120.0,
        parameters=(212_000,),
    )
    assert Provenance.from_dict(json.loads(json.dumps(provenance.to_dict()))) == provenance


def test_the_digest_ignores_files_and_sees_definitions():
    moved = {"rlhf_lab/elsewhere.py:dpo": "aa", "rlhf_lab/training/loop.py:train": "bb"}
    assert code_digest(moved) == code_digest(CODE)
    for changed in ({**CODE, "rlhf_lab/x.py:new": "dd"}, {**CODE, "rlhf_lab/training/loop.py:train": "dd"}):
        assert code_digest(changed) != code_digest(CODE)


def test_the_page_of_a_study_says_where_its_numbers_come_from(make_study):
    directory = make_study(seeds=2, failed=(1,))
    for index in range(6):
        sha = None if index == 5 else "0123456789abcdef"
        complete(directory / f"jobs/{index}/run", "gone", sha=sha, created=f"2030-01-0{index + 1}T00:00:00")
    write_study_report(directory)
    lines = [
        "rlhf_lab 0.1.0, commit 0123456789 or not a checkout, code digest `",
        # Five of six jobs completed, of 71.5 s each; the stage before them is not there.
        "5 stages, wall time 6.0 min, CPU time 8.3 min in all, started 2030-01-01 to 2030-01-06.",
        "Machine: 2 cores, cpu.",
        "Model size: 0.21M parameters.",
    ]
    page, table = (directory / "report.html").read_text(), (directory / "table.md").read_text()
    for line in lines:
        assert line.rstrip("`") in page and line in table
    stored = json.loads((directory / "study.json").read_text())["provenance"]
    assert stored["definitions"] == 2 and stored["code"] == code_digest(CODE)
    assert f"`{stored['code']}` of 2 definitions" in table
    for name in ("buffers_seeds.csv", "buffers_code.json"):
        assert f"[{name}]({name})" in table and f'<a href="{name}">' in page
    study = read_study(directory)
    assert origin_lines(study)[0].startswith(lines[0])
    seeds = pd.read_csv(directory / "buffers_seeds.csv")
    assert list(seeds.columns) == ["index", "algorithm.buffer", "seed", "gold", "proxy", "kl", "staleness"]
    assert list(seeds["index"]) == [0, 2, 3, 4, 5]
    assert list(seeds["gold"]) == pytest.approx(list(study.completed["gold"]), rel=1e-5)
    code = json.loads((directory / "buffers_code.json").read_text())
    assert code["definitions"] == {
        "rlhf_lab/losses/preference.py": {"dpo": "aa"},
        "rlhf_lab/training/loop.py": {"train": "bb"},
    }
