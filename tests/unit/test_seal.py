"""A completed stage is used only as it was completed; an unfinished one never carries on from what is damaged."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rlhf_lab import seal
from rlhf_lab.errors import ArtifactError
from rlhf_lab.files import json_text, write_json, write_text


@pytest.fixture
def stage(tmp_path: Path) -> Path:
    """A completed stage as `execute` leaves it, and a report, which is made from it."""
    folder = tmp_path / "sft-0123"
    (folder / "model" / "members" / "1").mkdir(parents=True)
    for name in ("config.yaml", "metrics.jsonl", "model/model.safetensors", "model/members/1/model.safetensors"):
        write_text(folder / name, f"content of {name}\n")
    result = {"status": "completed", "metrics": {"loss": 0.5}}
    seal.write(folder, json_text(result))
    write_json(folder / "result.json", result)
    write_text(folder / "report.html", "<html>")
    return folder


def test_a_stage_as_it_was_completed_passes(stage):
    seal.check(stage)
    (stage / "report.html").unlink()
    seal.check(stage)


def test_coreutils_agree(stage):
    done = subprocess.run(["sha256sum", "-c", "--strict", seal.NAME], cwd=stage, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(": OK") == 5  # config, metrics, two models, result


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "model/members/1/model.safetensors", "result.json"])
@pytest.mark.parametrize("way", ["changed", "missing"])
def test_damage_is_named_with_a_remedy(stage, name, way):
    path = stage / name
    if way == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-2] + b"?\n")
    with pytest.raises(ArtifactError) as error:
        seal.check(stage)
    assert f"{path} " in str(error.value)
    assert way in str(error.value)
    assert "Restore from a copy, or delete" in str(error.value)
    assert str(error.value).count("model.safetensors") == name.count("model.safetensors")  # no other file is blamed


def test_a_digit_of_a_result_is_not_believed(stage):
    text = (stage / "result.json").read_text()
    (stage / "result.json").write_text(text.replace("0.5", "0.6"))
    with pytest.raises(ArtifactError, match="has changed"):
        seal.check(stage)


def test_a_kill_between_seal_and_result_is_an_unfinished_stage(stage):
    write_json(stage / "result.json", {"status": "running"})
    seal.check(stage)


def test_without_a_seal_nothing_is_promised(stage):
    seal.remove(stage)
    (stage / "result.json").write_text("{")
    seal.check(stage)
    seal.check(stage / "absent")
