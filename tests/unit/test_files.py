"""Files are complete or absent, whatever happens while they are written."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import socket
import subprocess
import sys
from hashlib import sha256
from threading import Thread

import numpy as np
import pytest
from support import command_inside

from rlhf_lab.core.errors import ArtifactError, StorageError
from rlhf_lab.core.files import (
    append_jsonl,
    check_outputs,
    file_digest,
    fingerprint,
    read_json,
    read_jsonl,
    read_rows,
    replacing,
    storage_error,
    truncate,
    write_json,
    write_text,
)
from rlhf_lab.results.rundir import estimates
from rlhf_lab.stages.execute import _record
from rlhf_lab.statistics.estimates import Estimate


def test_an_error_while_writing_keeps_the_old_file(tmp_path):
    path = tmp_path / "result.json"
    write_json(path, {"a": 1})
    with pytest.raises(RuntimeError), replacing(path) as part:
        part.write_text('{"a": ')
        raise RuntimeError
    assert read_json(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


def test_a_kill_while_writing_keeps_the_old_file(tmp_path):
    path = tmp_path / "result.json"
    write_text(path, "old")
    code = (
        "import os, signal, sys; from pathlib import Path; from rlhf_lab.core.files import replacing\n"
        "with replacing(Path(sys.argv[1])) as part:\n"
        "    part.write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "old"


def test_a_kill_before_the_rename_leaves_no_half_file(tmp_path, monkeypatch):
    """Every byte is flushed to disk before the name appears."""
    events = []
    fsync, rename = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (events.append("flush"), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (events.append("rename"), rename(a, b)))
    write_text(tmp_path / "a", "text")
    assert events == ["flush", "rename"]


def test_a_folder_is_replaced_as_one(tmp_path):
    target = tmp_path / "model"
    for content in ("one", "two"):
        with replacing(target) as part:
            part.mkdir()
            (part / content).write_text(content)
    assert [p.name for p in target.iterdir()] == ["two"]


def test_missing_or_broken_json_is_none(tmp_path):
    assert read_json(tmp_path / "absent.json") is None
    (tmp_path / "cut.json").write_text('{"status": "comp')
    assert read_json(tmp_path / "cut.json") is None
    (tmp_path / "result.json").write_bytes(b'{"status": "\xff"}')
    assert read_json(tmp_path / "result.json") is None


def test_jsonl_round_trip_and_size(tmp_path):
    path = tmp_path / "log.jsonl"
    size = append_jsonl(path, [{"a": 1}, {"a": 2}])
    append_jsonl(path, [{"a": 3}])
    assert [row["a"] for row in read_jsonl(path)] == [1, 2, 3]
    truncate(path, size)
    assert [row["a"] for row in read_jsonl(path)] == [1, 2]
    truncate(path, 10**6)
    assert path.stat().st_size == size
    assert read_jsonl(tmp_path / "absent.jsonl") == []


def test_a_cut_last_line_is_left_out_and_not_joined_to_the_next(tmp_path):
    path = tmp_path / "log.jsonl"
    append_jsonl(path, [{"a": 1}])
    path.write_text(path.read_text() + '{"a": 2, "b')
    assert read_jsonl(path) == [{"a": 1}]
    append_jsonl(path, [{"a": 3}])
    assert read_jsonl(path) == [{"a": 1}, {"a": 3}]


@pytest.mark.parametrize("text", ["a\u2028b", "a\x85b", "a\x0bb", "é\n"])
def test_line_separators_inside_a_text_do_not_split_a_row(tmp_path, text):
    """`str.splitlines` splits at eight characters that are not the end of a JSON line."""
    path = tmp_path / "log.jsonl"
    append_jsonl(path, [{"response": text}])
    assert read_jsonl(path) == [{"response": text}]


@pytest.mark.parametrize("line", [b'{"a": 2', b"\xff\xfe\n", b"[1]\n", b'{"a": \x00}\n'])
def test_a_garbled_line_is_named_and_what_stands_before_it_can_be_read(tmp_path, line):
    path = tmp_path / "log.jsonl"
    size = append_jsonl(path, [{"a": 1}])
    path.write_bytes(path.read_bytes() + line + b'{"a": 3}\n')
    with pytest.raises(ArtifactError, match=r"log\.jsonl is damaged: line 2 is not"):
        read_jsonl(path)
    assert read_rows(path) == ([{"a": 1}], [size])


def test_a_log_can_be_read_while_another_process_writes_it(tmp_path):
    path = tmp_path / "log.jsonl"
    path.touch()

    def write() -> None:
        with path.open("a", encoding="utf-8", buffering=1) as handle:
            for number in range(2000):
                row = json.dumps({"row": number, "text": "x" * 50})
                for part in (row[:30], row[30:], "\n"):
                    handle.write(part)
                    handle.flush()

    writer = Thread(target=write)
    writer.start()
    while writer.is_alive():
        rows = read_jsonl(path)
        assert [row["row"] for row in rows] == list(range(len(rows)))
    writer.join()
    assert len(read_jsonl(path)) == 2000


def test_what_a_killed_process_left_is_removed_by_the_next_writer(tmp_path):
    """Parts of processes that are gone; not that of one that lives, nor of another machine, nor of another file."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    here = socket.gethostname()
    names = {
        f".a.{here}-{gone.pid}.part": False,
        f".a.{here}-{os.getppid()}.part": True,
        f".a.elsewhere-{gone.pid}.part": True,
        f".b.{here}-{gone.pid}.part": True,
    }
    for name in names:
        (tmp_path / name).write_text("half")
    write_text(tmp_path / "a", "whole")
    assert {name: (tmp_path / name).exists() for name in names} == names


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "x"), ("No space left on device", "free space")),
        (OSError(errno.EROFS, "x"), ("Read-only file system", "make it writable")),
        (RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"), ("No space left",)),
    ],
)
def test_what_the_disk_refuses_is_explained(tmp_path, error, words):
    path = tmp_path / "model.bin"
    path.write_text("old")
    with pytest.raises(StorageError) as found, replacing(path) as part:
        part.write_text("new")
        raise error
    assert all(word in str(found.value) for word in (str(path), "the same command", *words))
    assert path.read_text() == "old"


def test_the_reason_behind_another_error_is_found(tmp_path):
    """torch.save hides the error of the file that it writes to behind one of its own."""
    with pytest.raises(StorageError, match="No space left"), replacing(tmp_path / "a"):
        try:
            raise OSError(errno.ENOSPC, "x")
        except OSError:
            raise RuntimeError("unexpected pos 640 vs 598")  # noqa: B904 — as torch does it


def test_errors_of_the_disk_and_others(tmp_path):
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "a") as part:
        part.read_text()
    assert storage_error(FileNotFoundError(errno.ENOENT, "x")) is None
    refused = PermissionError(errno.EACCES, "Permission denied", "data.jsonl")
    assert storage_error(refused) is None  # it may have been read
    found = storage_error(refused, tmp_path / "result.json")
    assert found is not None and "result.json cannot be written: Permission denied" in str(found)
    full = storage_error(OSError(errno.ENOSPC, "No space left on device", "log"))
    assert full is not None and "log cannot be written" in str(full)


def test_a_value_and_a_part_of_a_file_have_the_digest_that_they_had(tmp_path):
    value = {"a": np.float32(0.1), "b": [1.5, None]}
    write_json(tmp_path / "v.json", value)
    assert fingerprint(read_json(tmp_path / "v.json")) == fingerprint(value)
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})
    path = tmp_path / "log"
    path.write_bytes(b"abcdef")
    assert file_digest(path, 2, 4) == sha256(b"cd").hexdigest()
    assert file_digest(path, 4, 99) == sha256(b"ef").hexdigest()


def test_the_result_of_a_stage_has_null_for_numbers_that_json_does_not_have(tmp_path):
    unknown = Estimate(math.nan, -math.inf, math.inf, 0, 0)
    metrics = {"gain": math.nan, "limit": -math.inf, "n": 3, "sd": np.float32(0.5), "mean": unknown, "none": None}
    _record(tmp_path, {"status": "failed", "policies": [{"name": "ä", "metrics": metrics}], "notes": ["x"]})
    stored = json.loads((tmp_path / "result.json").read_text(), parse_constant=pytest.fail)
    read = stored["policies"][0]["metrics"]
    assert (read["gain"], read["limit"], read["n"], read["sd"], read["none"]) == (None, None, 3, 0.5, None)
    assert read["mean"] == unknown.to_dict() and stored["notes"] == ["x"]
    assert math.isnan(estimates(read, [])["gain"].mean)


@pytest.mark.parametrize("more", [[], ["seed=0,1"]], ids=["run", "sweep"])
@pytest.mark.parametrize("outputs", ["taken", "taken/below", "link"])
def test_outputs_that_is_no_folder_is_one_line_before_anything_runs(tmp_path, outputs, more):
    (tmp_path / "taken").write_text("a file\n")
    (tmp_path / "link").symlink_to("nowhere")
    status, printed = command_inside(tmp_path, "+recipe=sft", f"outputs={outputs}", *more)
    assert status == 2
    assert "is a file; write outputs=DIR" in printed or "is a link to nothing; write outputs=DIR" in printed
    assert "Traceback" not in printed and len(printed.splitlines()) <= 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "taken"]


@pytest.mark.parametrize("more", [[], ["seed=0,1"]], ids=["run", "sweep"])
def test_outputs_below_proc_is_one_line(tmp_path, more, monkeypatch):
    monkeypatch.setattr("rlhf_lab.core.files.os.access", lambda path, mode: True)  # as for root
    status, printed = command_inside(tmp_path, "+recipe=sft", "outputs=/proc/store", *more)
    assert status == 1
    assert "choose another directory with outputs=DIR" in printed.splitlines()[-1]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("more", [[], ["seed=0,1"]], ids=["run", "sweep"])
@pytest.mark.parametrize("outputs", ["x" * 256, f"new/{'x' * 256}"], ids=["folder", "below"])
def test_outputs_with_a_name_too_long_is_one_line_before_anything_runs(tmp_path, outputs, more):
    status, printed = command_inside(tmp_path, "+recipe=sft", f"outputs={outputs}", *more)
    assert status == 2
    assert "has 256 bytes" in printed and "write outputs=DIR with shorter names" in printed
    assert not list(tmp_path.iterdir())


def test_outputs_that_cannot_be_written_to_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("rlhf_lab.core.files.os.access", lambda path, mode: False)  # root may write everywhere
    status, printed = command_inside(tmp_path, "+recipe=sft", "outputs=new/store")
    assert status == 2
    assert "cannot be written to: Permission denied; give this user permission to write there" in printed
    assert not list(tmp_path.iterdir())
    check_outputs(tmp_path, writes=False)
    status, printed = command_inside(tmp_path, "+recipe=sft", "outputs=")
    assert (status, "outputs is empty; write outputs=DIR" in printed) == (2, True), printed
    assert not list(tmp_path.iterdir())
