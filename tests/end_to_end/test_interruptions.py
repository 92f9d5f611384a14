"""Kill, stop or double a run at any moment: the same command ends with the same numbers."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from rlhf_lab.core.files import read_json

KINDS = ("sft", "reward_model", "dpo", "dpo_iterative")
LEAST_STEPS = 4  # every stage takes at least so many at this size


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_until(condition, process: subprocess.Popen, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, f"ended before its time:\n{process.communicate()[0]}"
        assert time.monotonic() < end, "nothing happened in time"
        time.sleep(0.002)


def numbers(result: dict) -> dict:
    """Return the numbers that must not depend on how often a run was interrupted."""
    return {key: result[key] for key in ("status", "policies", "metrics")}


@pytest.mark.slow
def test_kill_9_in_every_stage(fresh, lab, sized):
    """One kill in each of the four stages, after a number of steps and a delay drawn from a seed."""
    rng = random.Random(20)
    command = ("+recipe=dpo_iterative", *sized("dpo_iterative"))
    killed = []
    for kind in KINDS:
        steps, delay = rng.randrange(1, LEAST_STEPS), rng.uniform(0, 0.02)
        process = fresh.start(*command)
        logs = fresh.directory / "outputs" / "runs"

        def stepped(kind=kind, steps=steps, logs=logs) -> bool:
            saved = list(logs.glob(f"{kind}-*/checkpoint.pt"))
            return bool(saved) and lines(saved[0].with_name("metrics.jsonl")) >= steps

        wait_until(stepped, process)
        time.sleep(delay)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        directory = next(logs.glob(f"{kind}-*"))
        killed.append((kind, read_json(directory / "result.json")["status"]))
    assert killed == [(kind, "running") for kind in KINDS]
    out = fresh.run(*command)
    reference = lab.completed("dpo_iterative")
    for kind in KINDS:
        assert numbers(fresh.result(out, kind)) == numbers(reference[kind])
        assert any("resumed at step" in note for note in fresh.result(out, kind)["notes"])


@pytest.mark.slow
def test_sigterm_saves_and_the_same_command_goes_on(fresh, lab, sized):
    command = ("+recipe=sft", *sized("sft"))
    process = fresh.start(*command)
    logs = fresh.directory / "outputs" / "runs"
    wait_until(lambda: any(lines(log) >= 2 for log in logs.glob("sft-*/metrics.jsonl")), process)
    process.send_signal(signal.SIGTERM)
    out = process.communicate(timeout=120)[0]
    assert process.returncode == 130, out
    assert "the same command resumes from here" in out
    directory = fresh.stage(out, "sft")
    assert read_json(directory / "result.json")["status"] == "interrupted"
    assert (directory / "checkpoint.pt").exists()
    again = fresh.inside(*command)
    assert "from its checkpoint" in again
    assert "resumed at step" in again
    assert numbers(fresh.result(again, "sft")) == numbers(lab.completed("sft")["sft"])


COUNTED = """
import sys
from rlhf_lab.stages import execute
real = execute.execute
def counted(stage, **kwargs):
    with open("trained.txt", "a") as handle:
        handle.write(stage.recipe + "\\n")
    return real(stage, **kwargs)
execute.execute = counted
from rlhf_lab.main import main
main()
"""


@pytest.mark.slow
def test_two_processes_train_an_artifact_once(fresh, sized):
    """The second one starts while the first holds the lock: it waits and then finds the result."""
    command = ("+recipe=sft", *sized("sft"))
    first = fresh.start(*command, code=COUNTED)
    second = fresh.start(*command, code=COUNTED)
    outs = [process.communicate(timeout=240)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), outs
    assert (fresh.directory / "trained.txt").read_text() == "sft\n"
    results = [fresh.result(out, "sft") for out in outs]
    assert results[0] == results[1]
    steps = [json.loads(line)["step"] for line in (fresh.stage(outs[0], "sft") / "metrics.jsonl").open()]
    assert steps == sorted(set(steps))
