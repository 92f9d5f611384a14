"""A completed stage is used only as it was completed; an unfinished one never carries on from what is damaged."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support import ONE_LAYER, SMALL_WORLD, planned

from rlhf_lab.core import checksums as seal
from rlhf_lab.core.errors import ArtifactError, StorageError
from rlhf_lab.core.files import json_text, write_json, write_text
from rlhf_lab.results.rundir import read_run
from rlhf_lab.stages.execute import execute
from rlhf_lab.stages.reuse import check_source
from rlhf_lab.trackers.tracking import Tracking


def check(directory: Path, *, rebuilt: bool = True) -> list[str]:
    """Return the messages of a check of the directory."""
    text: list[str] = []
    seal.check(directory, rebuilt=rebuilt, say=text.append)
    return text


@pytest.fixture
def stage(tmp_path: Path) -> Path:
    """A completed stage as `execute` leaves it, and a report that is generated from it."""
    directory = tmp_path / "sft-0123"
    (directory / "model" / "members" / "1").mkdir(parents=True)
    for name in ("config.yaml", "metrics.jsonl", "model/model.safetensors", "model/members/1/model.safetensors"):
        write_text(directory / name, f'{{"content": "{name}"}}\n')
    result = {"status": "completed", "metrics": {"loss": 0.5}}
    write_json(directory / "manifest.json", {"recipe": "sft"})
    seal.write(directory, json_text(result))
    write_json(directory / "result.json", result)
    write_text(directory / "report.html", "<html>")
    return directory


def test_a_stage_as_it_was_completed_passes_here_and_in_coreutils(stage):
    done = subprocess.run(["sha256sum", "-c", "--strict", seal.NAME], cwd=stage, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(": OK") == 6  # config, manifest, metrics, two models, result
    check(stage)
    (stage / "report.html").unlink()
    check(stage)


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "model/members/1/model.safetensors", "result.json"])
@pytest.mark.parametrize("way", ["changed", "missing"])
def test_damage_is_named_with_a_remedy(stage, name, way):
    path = stage / name
    if way == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-2] + b"?\n")
    with pytest.raises(ArtifactError) as error:
        check(stage)
    assert f"{path} " in str(error.value)
    assert way in str(error.value)
    assert "Restore from a copy, or delete" in str(error.value)
    assert str(error.value).count("model.safetensors") == name.count("model.safetensors")  # no other file is blamed


def test_an_unfinished_stage_and_one_without_a_seal_promise_nothing(stage):
    write_json(stage / "result.json", {"status": "running"})  # killed between seal and result
    check(stage)
    seal.remove(stage)
    (stage / "result.json").write_text("{")
    check(stage)
    check(stage / "absent")


def test_a_seal_that_is_gone_is_damage(stage):
    """A changed model must not pass because the list of digests was deleted with it: the result says there was one."""
    write_json(stage / "result.json", {"status": "completed", "sealed": True})
    (stage / seal.NAME).unlink()
    with pytest.raises(
        ArtifactError, match=r"Its SHA256SUMS, written at completion, is missing.*Restore it from a copy, or delete"
    ):
        check(stage)
    assert seal.changed(stage) == [seal.NAME]
    write_json(stage / "result.json", {"status": "completed"})  # of a version without checksums
    check(stage)


def test_a_stage_whose_seal_is_removed_to_change_it_is_not_complete(stage):
    write_json(stage / "result.json", {"status": "completed", "sealed": True})
    seal.remove(stage)
    assert not (stage / "result.json").exists()
    check(stage)


def test_the_seal_of_somebody_else_is_left_alone(stage):
    """A published model with a SHA256SUMS of its own is no stage of the lab, whatever its sums say."""
    for name in ("result.json", "manifest.json"):
        (stage / name).unlink()
    (stage / seal.NAME).write_text("0" * 64 + " *model.safetensors\n")
    check(stage)


def test_sums_in_the_binary_form_of_coreutils_are_read(stage):
    sums = stage / seal.NAME
    sums.write_text(sums.read_text().replace("  ", " *"))
    check(stage)
    (stage / "config.yaml").write_text("other\n")
    with pytest.raises(ArtifactError, match="has changed"):
        check(stage)


def test_a_folder_of_another_store_is_not_to_be_deleted(stage):
    (stage / "config.yaml").unlink()
    with pytest.raises(ArtifactError, match=r"Restore from a copy$"):
        check(stage, rebuilt=False)


@pytest.fixture
def hashed(monkeypatch) -> list[str]:
    """Names of the hashed files; files of 25 bytes and more are large, and 40 together are worth a message."""
    names: list[str] = []
    digest = seal.file_digest
    monkeypatch.setattr(seal, "LARGE", 25)
    monkeypatch.setattr(seal, "LONG", 40)
    monkeypatch.setattr(seal, "file_digest", lambda path: (names.append(path.name), digest(path))[1])
    return names


def test_large_files_are_hashed_once_and_again_when_they_differ(stage, hashed):
    model = stage / "model" / "model.safetensors"
    assert model.stat().st_size > 25
    assert len(check(stage)) == 1  # announced, with the size
    assert hashed.count("model.safetensors") == 2
    hashed.clear()
    check(stage)
    assert hashed == ["manifest.json"]  # the only small one: every other file is large here
    text = model.read_text()
    model.write_text(text)  # the same again: another time, so it is hashed, and passes
    check(stage)
    assert hashed.count("model.safetensors") == 1
    model.write_text(text.upper())
    with pytest.raises(ArtifactError, match="has changed"):
        check(stage)
    with pytest.raises(ArtifactError, match="has changed"):
        check(stage)  # what failed is not remembered as sound


def test_nothing_is_remembered_of_small_files_or_sealed_of_what_is_remembered(stage, hashed, monkeypatch):
    check(stage)
    assert (stage / seal.PASSED).is_file()
    seal.write(stage, (stage / "result.json").read_text())
    assert seal.PASSED not in (stage / seal.NAME).read_text()
    seal.remove(stage)
    assert not (stage / seal.PASSED).exists()
    monkeypatch.undo()
    seal.write(stage, (stage / "result.json").read_text())
    check(stage)
    assert not (stage / seal.PASSED).exists()  # no file of 64 MiB


def test_a_store_that_cannot_be_written_is_checked_all_the_same(stage, hashed, monkeypatch):
    def refuse(path, value):
        raise StorageError(f"{path} cannot be written")

    monkeypatch.setattr(seal, "write_json", refuse)
    check(stage)


def test_a_report_says_which_of_its_files_changed(stage):
    assert read_run(stage).problems == ()
    (stage / "metrics.jsonl").write_text('{"step": 1, "loss": 0.1}\n')
    (stage / "model" / "model.safetensors").write_text("other")  # which a report does not read
    assert read_run(stage).problems == ("metrics.jsonl changed since completion (SHA256SUMS)",)


def test_a_report_does_not_hash_large_files_again(stage, hashed):
    check(stage)
    hashed.clear()
    assert read_run(stage).changed == ()
    assert hashed == ["manifest.json"]  # the only small one
    (stage / "metrics.jsonl").write_text('{"content": "metrics.json!"}\n')
    assert read_run(stage).changed == ("metrics.jsonl",)


def test_external_folders_are_checked_themselves_and_as_a_model_in_them(stage):
    (stage / "rounds").mkdir()
    for source in (stage, stage / "model"):
        check_source(source)
    (stage / "metrics.jsonl").write_text("other\n")
    for source in (stage, stage / "model"):
        with pytest.raises(ArtifactError, match=r"metrics\.jsonl"):
            check_source(source)


def test_a_seal_that_cannot_be_written_still_ends_the_tracked_run(tmp_path, monkeypatch):
    finished: list[str] = []

    def full(directory, result):
        raise StorageError("SHA256SUMS cannot be written: No space left on device")

    monkeypatch.setattr(seal, "write", full)
    monkeypatch.setattr(Tracking, "finish", lambda self, status, outcome: finished.append(status))
    with pytest.raises(StorageError):
        execute(planned("sft", *SMALL_WORLD, *ONE_LAYER, f"outputs={tmp_path}"))
    assert finished == ["failed"]
