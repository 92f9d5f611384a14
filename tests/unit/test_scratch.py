"""Temporary files go with their process: when it ends, and where it was killed, when the next one needs some."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from support import command_inside

from rlhf_lab.core import scratch
from rlhf_lab.core.scratch import OWNER, PREFIX, scratch_dir

HOLDS = """
import sys, time
from rlhf_lab.core.scratch import scratch_dir
(scratch_dir() / "file").write_text("content")
print(scratch_dir(), flush=True)
sys.stdin.read()
"""


def started(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that has a file in its directory and waits for the end of its input; that directory."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(parent)},
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_process_removes_its_directory_at_its_end(tmp_path):
    process, own = started(tmp_path)
    assert own.parent == tmp_path and (own / "file").is_file()
    process.communicate("")
    assert list(tmp_path.iterdir()) == []


def test_the_next_process_removes_what_a_killed_one_left_and_nothing_of_a_live_one(tmp_path):
    killed, left = started(tmp_path)
    alive, used = started(tmp_path)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert (left / "file").is_file()
    own = scratch_dir(tmp_path)
    assert not left.exists()
    assert (used / "file").is_file()
    assert {own, used} == set(tmp_path.iterdir())
    assert scratch_dir(tmp_path) == own
    alive.communicate("")


def test_a_directory_of_another_machine_or_user_stays(tmp_path):
    elsewhere = tmp_path / f"{PREFIX}elsewhere"
    elsewhere.mkdir()
    (elsewhere / OWNER).write_text("another-machine 1\n")
    without_owner = tmp_path / f"{PREFIX}without"
    without_owner.mkdir()
    scratch_dir(tmp_path)
    assert elsewhere.is_dir() and without_owner.is_dir()


def test_a_forked_process_leaves_the_directory_that_it_shares(tmp_path):
    own = scratch_dir(tmp_path)
    child = os.fork()
    if child == 0:
        scratch._remove_at_exit(own, os.getppid())
        os._exit(0)
    os.waitpid(child, 0)
    assert own.is_dir()


def test_a_run_removes_what_a_killed_one_left_though_it_needs_no_temporary_files(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    left = tmp_path / "temporary" / f"{PREFIX}left"
    left.mkdir(parents=True)
    (left / OWNER).write_text(f"{socket.gethostname()} 1\n")
    settings = ("size=smoke", "model=micro", "data=mini_hh_small", "data.train_pairs=64", "data.test_pairs=8")
    status, printed = command_inside(tmp_path, "+recipe=sft", *settings)
    assert status == 0, printed
    assert not left.exists()
