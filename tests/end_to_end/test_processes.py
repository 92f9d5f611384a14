"""Several processes train one stage: started by rlhf_lab or by torchrun, stopped, killed. Numbers stay the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_lab.core.files import read_json, read_jsonl

pytestmark = pytest.mark.slow
LONG = ("algorithm.epochs=6", "algorithm.optimizer=adamw", "checkpoint.every_steps=2", "algorithm.log_every_steps=1")
TWO = ("sharding=fsdp_full", "sharding.processes=2")


def numbers(directory: Path) -> tuple[object, float]:
    result = read_json(directory / "result.json")
    return result["status"], result["metrics"]["heldout_nll"]["mean"]


def members(marker: str) -> list[int]:
    """Processes whose environment names a directory: all descendants of a command, wherever they are."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"RLHF_LAB_TEST={marker}".encode() in (path / "environ").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return found


def wait_for(done: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


@pytest.fixture
def marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Everything that the test starts carries this mark."""
    monkeypatch.setenv("RLHF_LAB_TEST", str(tmp_path))
    return str(tmp_path)


@pytest.fixture(scope="module")
def full(lab, sized) -> tuple[object, float]:
    """Result of one process without an interruption."""
    out = lab.inside("+recipe=sft", *sized("sft"), *LONG)
    return numbers(lab.stage(out, "sft"))


def steps(runs: Path) -> int:
    return max((row["step"] for log in runs.glob("sft-*/metrics.jsonl") for row in read_jsonl(log)), default=0)


def started(fresh, *command: str) -> subprocess.Popen[str]:
    """A command that has taken some steps."""
    process = fresh.start(*command)
    wait_for(lambda: process.poll() is not None or steps(fresh.directory / "outputs" / "runs") >= 3)
    assert process.poll() is None, process.communicate()[0]
    return process


def test_a_signal_to_the_parent_saves_and_the_same_command_goes_on(fresh, sized, full, marked):
    command = ("+recipe=sft", *sized("sft"), *LONG, *TWO)
    process = started(fresh, *command)
    process.send_signal(signal.SIGINT)
    out = process.communicate(timeout=120)[0]
    assert process.returncode == 130, out
    directory = fresh.stage(out, "sft")
    assert read_json(directory / "result.json")["status"] == "interrupted"
    wait_for(lambda: members(marked) == [os.getpid()] or not members(marked), 10)
    assert {path.name.partition("-")[0] for path in directory.glob("checkpoint*")} == {"checkpoint.pt", "checkpoint"}
    again = fresh.run(*command)
    assert "resumed at step" in again
    status, nll = numbers(directory)
    assert status == "completed" and nll == pytest.approx(full[1], rel=1e-4)


def test_nobody_trains_on_when_the_parent_is_killed(fresh, sized, full, marked):
    command = ("+recipe=sft", *sized("sft"), *LONG, *TWO)
    process = started(fresh, *command)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_for(lambda: not set(members(marked)) - {os.getpid()}, 10)
    again = fresh.run(*command, "sharding.processes=1")
    assert "resumed at step" in again
    assert numbers(fresh.stage(again, "sft"))[1] == pytest.approx(full[1], rel=1e-4)


def test_no_worker_of_a_sweep_outlives_a_kill_of_the_sweep(fresh, sized, marked):
    process = started(fresh, "+recipe=sft", *sized("sft"), *LONG, "seed=0,1", "study.processes=2")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_for(lambda: not set(members(marked)) - {os.getpid()}, 20)


def test_a_killed_process_ends_the_run_with_an_explanation(fresh, sized, marked):
    process = started(fresh, "+recipe=sft", *sized("sft"), *LONG, *TWO)
    workers = sorted(set(members(marked)) - {os.getpid(), process.pid})
    os.kill(workers[-1], signal.SIGKILL)
    out = process.communicate(timeout=120)[0]
    assert process.returncode == 1 and "SIGKILL" in out and "Traceback" not in out, out
    directory = fresh.stage(out, "sft")
    assert read_json(directory / "result.json")["status"] == "failed"
    assert not set(members(marked)) - {os.getpid()}


def torchrun(fresh, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "rlhf_lab"]
    return subprocess.run([*command, *arguments], cwd=fresh.directory, capture_output=True, text=True, timeout=240)


@pytest.mark.long
def test_torchrun_around_the_command(fresh, lab, sized):
    """Reward model after SFT: both stages are built by the launched processes, plan and result are printed once."""
    done = torchrun(fresh, "+recipe=reward_model", *sized("reward_model"), "sharding=ddp")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\nreport") == 1
    expected = lab.completed("reward_model")
    for recipe, metric in (("sft", "heldout_nll"), ("reward_model", "accuracy")):
        found = read_json(fresh.stage(done.stdout, recipe) / "result.json")
        assert found["metrics"][metric]["mean"] == pytest.approx(expected[recipe]["metrics"][metric]["mean"], rel=1e-3)
    again = torchrun(fresh, "+recipe=reward_model", *sized("reward_model"), "sharding=ddp")
    assert again.returncode == 0 and again.stdout.count("  reuse") == 2
