"""Parallel jobs print a line when they start and one when they finish, never a table."""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from support import checked

from rlhf_lab.config import root
from rlhf_lab.core import machine
from rlhf_lab.core.console import console
from rlhf_lab.core.machine import PROCESSES
from rlhf_lab.sweeps import sweep

RESULT = {
    "status": "completed",
    "metrics": {},
    "policies": [{"name": "DPO", "metrics": {"gold": {"mean": 1.21, "low": 1.13, "high": 1.29}}}],
}


@pytest.fixture
def job(tmp_path, monkeypatch) -> Any:
    """A job's stage as a function that prints a table; its directory is job 2 of 3."""
    directory = tmp_path / "jobs" / "1"
    directory.mkdir(parents=True)
    jobs = [{"index": index, "overrides": {"algorithm.beta": beta, "seed": 1}} for index, beta in enumerate((1, 2, 3))]
    (tmp_path / "study.json").write_text(json.dumps({"jobs": jobs, "primary": "gold"}))
    monkeypatch.setenv(sweep.SWEEP, str(os.getpid()))

    def run_stage(stage: Any) -> tuple[int, dict[str, Any]]:
        console.print("┏━ a table ━┓\n┃ of lines  ┃")
        print("a line of a library")
        return 0, RESULT

    return SimpleNamespace(directory=directory, run=lambda: sweep._run_in_turn(SimpleNamespace(), directory, run_stage))


def test_a_parallel_job_prints_two_lines_each_at_once(job, monkeypatch):
    writes: list[str] = []
    monkeypatch.setenv(PROCESSES, "2")
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(write=writes.append, flush=lambda: None, encoding="utf-8"))
    assert job.run() is RESULT
    starts, done = (line for line in writes if line.strip())
    log = job.directory / "output.txt"
    assert starts == f"  job 2 of 3 starts: algorithm.beta=2 seed=1; it prints to {log}\n"
    assert done == "  job 2 of 3 done: algorithm.beta=2 seed=1: gold 1.21 ±0.08, 0 s\n"
    assert "a table" in log.read_text() and "a line of a library" in log.read_text()


def test_a_job_by_itself_prints_as_a_run_does(job, monkeypatch, capsys):
    monkeypatch.setenv(PROCESSES, "1")
    job.run()
    assert "a table" in capsys.readouterr().out
    assert not (job.directory / "output.txt").exists()


@pytest.mark.parametrize(
    ("result", "ending"),
    [
        ({"status": "interrupted", "error": "stopped"}, "job 2 of 3 interrupted: algorithm.beta=2 seed=1: 12 s"),
        (
            {"status": "completed", "metrics": {"gold": 0.5}, "policies": []},
            "job 2 of 3 done: algorithm.beta=2 seed=1: gold 0.5, 12 s",
        ),
    ],
)
def test_how_a_job_ended_is_one_line(job, result, ending):
    assert sweep.done_words(job.directory, result, 12.3) == ending


def test_a_worker_ends_with_its_job_where_the_sweep_has_ended(job, monkeypatch):
    """joblib's worker keeps what a job raises for the sweep, and would wait for another job of a killed one."""
    monkeypatch.delenv(PROCESSES, raising=False)
    runtime = SimpleNamespace(output_dir=str(job.directory), choices={"recipe": "dpo"})
    monkeypatch.setattr(sweep.HydraConfig, "get", lambda: SimpleNamespace(runtime=runtime))
    monkeypatch.setattr(sweep, "_written_keys", set)
    monkeypatch.setattr(sweep, "_plan_job", lambda checked, directory: SimpleNamespace(directory=directory))

    def sweep_is_killed(stage: Any, directory: Any, run_stage: Any) -> dict[str, Any]:
        monkeypatch.setenv(sweep.SWEEP, "1")  # the sweep is no longer the parent, nor this process itself
        return {"status": "interrupted", "error": "stopped by SIGTERM"}

    monkeypatch.setattr(sweep, "_run_in_turn", sweep_is_killed)
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit):
        sweep.run_job(root.to_values(checked("dpo")), lambda stage: (0, RESULT))
    assert json.loads((job.directory / "job.json").read_text())["status"] == "interrupted"


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("0,1,2", ["0", "1", "2"]),
        ("3", ["3"]),
        ("", []),
        ("-1", []),
        ("1,-1,2", ["1"]),
        ("GPU-a, GPU-b", ["GPU-a", "GPU-b"]),
    ],
)
def test_gpus_of_the_variable_are_read_as_cuda_reads_them(variable, expected):
    assert machine.visible_gpus({"CUDA_VISIBLE_DEVICES": variable}) == expected


def test_gpus_of_the_driver_count_without_the_variable(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "GPUS", tmp_path / "none")
    assert machine.visible_gpus({}) == []
    for name in ("0000:3b:00.0", "0000:d8:00.0"):
        (tmp_path / "gpus" / name).mkdir(parents=True)
    monkeypatch.setattr(machine, "GPUS", tmp_path / "gpus")
    assert machine.visible_gpus({}) == ["0", "1"]


@pytest.fixture
def four_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    monkeypatch.setenv(sweep.GPU, "unset")  # so that the fixture removes what the test sets
    monkeypatch.delenv(sweep.GPU)


@pytest.mark.parametrize(("job", "gpu"), [(0, "4"), (3, "7"), (5, "5")])
def test_parallel_jobs_get_different_gpus(four_gpus, job, gpu):
    sweep._take_gpu(checked("sft"), job)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == gpu
    sweep._take_gpu(checked("sft"), job + 1)  # the worker's next job
    assert os.environ["CUDA_VISIBLE_DEVICES"] == gpu


def test_a_job_of_several_processes_keeps_all_gpus(four_gpus):
    sweep._take_gpu(checked("sft", "sharding=ddp", "sharding.processes=2"), 1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"
