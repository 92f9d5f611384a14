"""Sweeps as job arrays on a real Slurm, through Hydra's submitit launcher: one table at the end, whatever happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_lab.core.files import read_json

pytest.importorskip("submitit", reason="the extra `slurm` is not installed")


@pytest.fixture
def sweep(site, slurm):
    """Starts a sweep over three seeds, two jobs at a time."""
    started = []

    def start() -> subprocess.Popen[str]:
        launcher = ["hydra/launcher=submitit_slurm", "hydra.launcher.cpus_per_task=1", "hydra.launcher.mem_gb=1"]
        command = [sys.executable, "-m", "rlhf_lab", *site.arguments, "seed=0,1,2", *launcher]
        process = subprocess.Popen(
            command,
            cwd=site.directory,
            env=slurm.env | site.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()


def study(directory: Path) -> Path:
    (found,) = (directory / "outputs" / "studies").iterdir()
    return found


def records(directory: Path) -> list[dict]:
    return [read_json(study(directory) / "jobs" / str(index) / "job.json") for index in range(3)]


def job_of(slurm, run: Path) -> str:
    """The array element that holds a run's seed: the number of its job in the sweep is the seed."""
    seed = (run / "config.yaml").read_text().partition("\nseed: ")[2].partition("\n")[0]
    return next(job for job in slurm.states() if job.endswith(f"_{seed}"))


def python_of(slurm, job: str) -> int:
    """Process id of the Python of an array element."""
    variable = f"SLURM_ARRAY_TASK_ID={job.partition('_')[2]}".encode()
    (found,) = (
        pid
        for pid, line in slurm.processes().items()
        if "submitit.core._submit" in line
        and not line.startswith(("srun", "/bin/bash"))
        and variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    )
    return found


@pytest.mark.long
def test_an_array_ends_in_one_table(site, slurm, sweep):
    """One job is told to stop before its time and goes on later, one is killed: the others are not lost."""
    process = sweep()
    slurm.until(lambda: site.training(2), "two jobs to train")
    stopped, killed = (job_of(slurm, run) for run in site.runs())
    assert {job.partition("_")[2] for job in slurm.states()} >= {"0", "1", "2"}, "not an array"
    slurm.call("scancel", "--signal=USR2", stopped)
    os.kill(python_of(slurm, killed), signal.SIGKILL)
    slurm.until(lambda: "interrupted" in [r.get("status") for r in site.results()], "the stopped job to save")
    site.hurry()
    out = process.communicate(timeout=200)[0]
    assert process.returncode == 1, out
    index = int(killed.partition("_")[2])
    assert [record["status"] for record in records(site.directory)] == [
        "failed" if number == index else "completed" for number in range(3)
    ], out
    assert "left no result" in records(site.directory)[index]["error"]
    again = Path(records(site.directory)[int(stopped.partition("_")[2])]["run"])
    assert any("resumed at step" in note for note in read_json(again / "result.json")["notes"])
    assert "left no result" in (study(site.directory) / "report.html").read_text()
    second = sweep()
    out = second.communicate(timeout=200)[0]
    assert second.returncode == 0, out
    assert "2 of them already in the store" in out
    assert [record["status"] for record in records(site.directory)] == ["completed"] * 3
    assert len(list((study(site.directory)).glob("table.md"))) == 1


@pytest.mark.long
def test_a_stopped_sweep_ends_its_jobs(site, slurm, sweep):
    """Ctrl-C cancels the array: what trained is saved, nothing runs on."""
    process = sweep()
    slurm.until(lambda: site.training(2), "two jobs to train")
    process.send_signal(signal.SIGINT)
    out = process.communicate(timeout=100)[0]
    assert process.returncode == 130, out
    slurm.until(lambda: not slurm.processes(), "the jobs to end", 20)
    assert [result["status"] for result in site.results()] == ["interrupted"] * 2
    assert not site.parts()
