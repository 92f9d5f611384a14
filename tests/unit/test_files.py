"""Files are complete or absent, whatever happens while they are written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from rlhf_lab.files import append_jsonl, read_json, read_jsonl, replacing, truncate, write_json, write_text


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
        "import os, signal, sys; from pathlib import Path; from rlhf_lab.files import replacing\n"
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


def test_a_cut_last_line_is_left_out(tmp_path):
    path = tmp_path / "log.jsonl"
    append_jsonl(path, [{"a": 1}])
    path.write_text(path.read_text() + '{"a": 2, "b')
    assert read_jsonl(path) == [{"a": 1}]


def test_appending_after_a_cut_line_does_not_join_the_two(tmp_path):
    path = tmp_path / "log.jsonl"
    append_jsonl(path, [{"a": 1}])
    path.write_text(path.read_text() + '{"a": 2, "b')
    append_jsonl(path, [{"a": 3}])
    assert read_jsonl(path) == [{"a": 1}, {"a": 3}]


@pytest.mark.parametrize("text", ["a\u2028b", "a\x85b", "a\x0bb", "é\n"])
def test_line_separators_inside_a_text_do_not_split_a_row(tmp_path, text):
    """`str.splitlines` splits at eight characters that are not the end of a JSON line."""
    path = tmp_path / "log.jsonl"
    append_jsonl(path, [{"response": text}])
    assert read_jsonl(path) == [{"response": text}]
