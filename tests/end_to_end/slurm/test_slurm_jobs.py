"""Jobs on a real Slurm: stopped by their time limit, by a job that outranks them, or by their owner."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch
from support import model_tensors

from rlhf_lab.core.files import read_json

LAUNCHERS = Path(__file__).resolve().parents[3] / "launchers"


def assert_same(run: Path, reference: Path) -> None:
    """The numbers and every weight of two runs are equal, to the bit."""
    results = [read_json(directory / "result.json") for directory in (run, reference)]
    assert [result["status"] for result in results] == ["completed", "completed"]
    assert results[0]["metrics"] == results[1]["metrics"]
    ours, theirs = (model_tensors(directory / "model") for directory in (run, reference))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def assert_resumed(site, reference: Path) -> None:
    """The site's one run went on from its checkpoint and ended as the reference did."""
    (run,) = site.runs()
    assert any("resumed at step" in note for note in read_json(run / "result.json")["notes"])
    assert_same(run, reference)


@pytest.fixture(scope="module")
def uninterrupted(shared_tmp, sized, python):
    """Number of processes → the run directory of the same training, never stopped, without Slurm."""

    def run(processes: int) -> Path:
        directory = shared_tmp / f"uninterrupted_{processes}"
        if not directory.exists():
            directory.mkdir()
            arguments = ["+recipe=sft", *sized("sft"), "algorithm.epochs=4"]
            command = [python, "-m", "rlhf_lab", *arguments]
            if processes > 1:
                command = [LAUNCHERS / "torchrun.sh", str(processes), *arguments, "sharding=ddp"]
            env = {**os.environ, "RLHF_LAB_PYTHON": python}
            subprocess.run(command, cwd=directory, env=env, check=True, timeout=200)
        return next((directory / "outputs" / "runs").glob("sft-*"))

    return run


@pytest.mark.long
def test_time_limit(site, slurm, uninterrupted):
    """Slurm itself sends USR1 before the minute is over: the job saves, queues itself again and goes on. The limit is a
    minute only while it trains: Slurm looks at limits twice a minute, and a busy machine may need longer to start."""
    job = site.submit("slurm.sbatch", "--time=10", "--signal=B:USR1@20")
    slurm.until(site.training, "training")
    slurm.call("scontrol", "update", f"JobId={job}", "TimeLimit=1")
    slurm.until(lambda: [r.get("status") for r in site.results()] == ["interrupted"], "the time limit", 150)
    slurm.call("scontrol", "update", f"JobId={job}", "TimeLimit=10")
    site.hurry()
    slurm.wait(job, "COMPLETED", seconds=120)
    assert int(slurm.job(job)["Restarts"]) >= 1
    assert "queued again" in site.printed(job)
    assert_resumed(site, uninterrupted(1))


@pytest.mark.long
def test_preemption_of_two_processes(site, slurm, uninterrupted):
    """A job in the higher partition takes the node: torchrun and both processes save and end, and resume after it."""
    site.arguments.append("sharding=ddp")
    job = site.submit("slurm_torchrun.sbatch")
    slurm.until(site.training, "training")
    rival = slurm.submit("--partition=high", "--cpus-per-task=2", "--mem=1G", "--wrap=sleep 1", cwd=site.directory)
    slurm.wait(rival, "COMPLETED")
    assert [result["status"] for result in site.results()] == ["interrupted"]
    site.hurry()
    slurm.wait(job, "COMPLETED", seconds=120)
    assert slurm.job(job)["Restarts"] == "1"
    assert_resumed(site, uninterrupted(2))


def test_cancel_leaves_nothing_behind(site, slurm, uninterrupted):
    """After scancel no process is left and no file half-written; the same command then completes."""
    site.arguments.append("sharding=ddp")
    job = site.submit("slurm_torchrun.sbatch")
    slurm.until(site.training, "training")
    assert len([line for line in slurm.processes().values() if "-m rlhf_lab" in line]) >= 3  # torchrun and two
    slurm.call("scancel", job)
    slurm.until(lambda: not slurm.processes(), "its processes to end", 40)
    slurm.wait(job, "CANCELLED")
    (run,) = site.runs()
    assert read_json(run / "result.json")["status"] == "interrupted"
    assert not (run / "model").exists()
    assert not site.parts()
    site.hurry()
    again = site.submit("slurm_torchrun.sbatch")
    slurm.wait(again, "COMPLETED", seconds=120)
    assert "from its checkpoint" in site.printed(again)
    assert_same(run, uninterrupted(2))
