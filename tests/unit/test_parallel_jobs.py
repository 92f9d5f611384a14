"""A study prints one line per job, never the table of a job; parallel jobs share the machine."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import checked

from rlhf_lab.config import root
from rlhf_lab.core import machine, ranks
from rlhf_lab.core.console import QUIET, VERBOSITY, console
from rlhf_lab.core.machine import PROCESSES
from rlhf_lab.memory.devices import device
from rlhf_lab.studies.labels import configured_label
from rlhf_lab.sweeps import sweep
from rlhf_lab.sweeps.job_lines import JobLines, job_finished

RESULT = {
    "status": "completed",
    "metrics": {},
    "policies": [{"name": "DPO", "metrics": {"gold": {"mean": 1.21, "low": 1.13, "high": 1.29}}}],
}


@pytest.fixture
def study(tmp_path) -> Path:
    """The directory of a study with three jobs, none of which has started."""
    jobs = [{"index": index, "overrides": {"algorithm.beta": beta, "seed": 1}} for index, beta in enumerate((1, 2, 3))]
    (tmp_path / "study.json").write_text(json.dumps({"jobs": jobs, "primary": "gold"}))
    for index in range(3):
        (tmp_path / "jobs" / str(index)).mkdir(parents=True)
    return tmp_path


def record(study: Path, index: int, seconds: float, **values: Any) -> None:
    """Write the files of a job that has finished."""
    run = study / f"run{index}"
    run.mkdir(exist_ok=True)
    (run / "result.json").write_text(json.dumps(RESULT))
    job = {"status": "completed", "run": str(run), "error": None, "seconds": seconds, **values}
    (study / "jobs" / str(index) / "job.json").write_text(json.dumps(job))


def lines_of(study: Path, stored: set[int] = frozenset(), processes: int = 1) -> JobLines:
    return JobLines(study, set(stored), processes, estimates=True)


def test_a_study_prints_one_line_per_job_with_the_time_left(study):
    lines = lines_of(study)
    with console.capture() as printed, lines.shown(in_process=True):
        record(study, 0, 60.0)
        job_finished()
        job_finished()
        record(study, 1, 30.0)
        job_finished()
    assert printed.get().splitlines() == [
        "  job 1 of 3 done: algorithm.beta=1 seed=1: gold 1.21 ±0.08, 60 s; about 2:00 left",
        "  job 2 of 3 done: algorithm.beta=2 seed=1: gold 1.21 ±0.08, 30 s; about 0:45 left",
    ]


def test_jobs_of_other_processes_get_their_line_from_the_process_of_the_study(study):
    with console.capture() as printed, lines_of(study, processes=2).shown(in_process=False):
        record(study, 2, 12.0)
    assert printed.get() == "  job 3 of 3 done: algorithm.beta=3 seed=1: gold 1.21 ±0.08, 12 s; about 0:12 left\n"


def test_a_failed_job_names_its_error_even_with_q(study, monkeypatch):
    monkeypatch.setenv(VERBOSITY, QUIET)
    with console.capture() as printed, lines_of(study).shown(in_process=True):
        record(study, 0, 5.0)
        (study / "jobs/1/error.txt").write_text("Traceback …")
        record(study, 1, 5.0, status="failed", error="ValueError: [x] is wrong")
        job_finished()
    details = study / "jobs/1/error.txt"
    expected = f"  job 2 of 3 failed: algorithm.beta=2 seed=1: ValueError: [x] is wrong, see {details}\n"
    assert printed.get() == expected


def test_an_interrupted_job_is_reported_at_the_end_because_it_may_be_requeued(study):
    with console.capture() as printed, lines_of(study).shown(in_process=True):
        record(study, 0, 5.0, status="interrupted")
        job_finished()
        record(study, 1, 7.0)
        job_finished()
    first, second = printed.get().splitlines()
    assert first.startswith("  job 2 of 3 done") and second.startswith("  job 1 of 3 interrupted")


@pytest.fixture
def job(study, monkeypatch) -> Any:
    """Job 2 of 3 as a function of its stage, run as Hydra runs it."""
    runtime = SimpleNamespace(output_dir=str(study / "jobs/1"))
    hydra = SimpleNamespace(runtime=runtime, overrides=SimpleNamespace(task=[]))
    monkeypatch.setattr(sweep.HydraConfig, "get", lambda: hydra)
    monkeypatch.setattr(sweep, "_plan_job", lambda checked, directory: SimpleNamespace(directory=directory))
    values = root.to_values(checked("dpo"))
    return lambda run_stage: sweep.run_job(values, run_stage)


def test_what_a_job_prints_is_in_its_file(study, job, monkeypatch, capsys):
    monkeypatch.setenv(PROCESSES, "1")

    def run_stage(stage: Any) -> tuple[int, dict[str, Any]]:
        console.print("┏━ a table ━┓\n┃ of lines  ┃")
        print("a line of a library")
        return 0, RESULT

    assert job(run_stage)["status"] == "completed"
    assert capsys.readouterr().out == ""
    output = (study / "jobs/1/output.txt").read_text()
    assert "a table" in output and "a line of a library" in output
    assert json.loads((study / "jobs/1/job.json").read_text())["seconds"] >= 0


def test_a_worker_ends_with_its_job_where_the_sweep_has_ended(study, job, monkeypatch):
    """joblib's worker keeps what a job raises for the sweep, and would wait for another job of a killed one."""
    monkeypatch.delenv(PROCESSES, raising=False)
    monkeypatch.setenv(sweep.SWEEP, str(os.getpid()))

    def sweep_is_killed(stage: Any) -> tuple[int, dict[str, Any]]:
        monkeypatch.setenv(sweep.SWEEP, "1")  # the sweep is no longer the parent, nor this process itself
        return 0, {"status": "interrupted", "error": "stopped by SIGTERM"}

    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit):
        job(sweep_is_killed)
    assert json.loads((study / "jobs/1/job.json").read_text())["status"] == "interrupted"


@pytest.mark.parametrize(
    ("variable", "expected"),
    [("0,1,2", ["0", "1", "2"]), ("", []), ("1,-1,2", ["1"]), ("GPU-a, GPU-b", ["GPU-a", "GPU-b"])],
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
    monkeypatch.setenv(sweep.GPU_JOBS, "unset")  # so that the fixture removes what the test sets
    monkeypatch.delenv(sweep.GPU_JOBS)


@pytest.mark.parametrize(("job", "gpu"), [(0, "4"), (3, "7"), (5, "5")])
def test_parallel_jobs_get_different_gpus(four_gpus, job, gpu):
    sweep._take_gpu(checked("sft"), job)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == gpu
    sweep._take_gpu(checked("sft"), job + 1)  # the worker's next job
    assert os.environ["CUDA_VISIBLE_DEVICES"] == gpu


@pytest.mark.parametrize(("processes", "sharding", "jobs"), [(4, "none", 1), (6, "none", 2), (2, "ddp", 2)])
def test_memory_of_a_gpu_is_shared_by_its_own_jobs_only(four_gpus, monkeypatch, processes, sharding, jobs):
    monkeypatch.setenv(sweep.PROCESSES, str(processes))
    config = checked("sft", f"sharding={sharding}", "runtime.memory_gib=24")
    sweep._take_gpu(config, 2)
    assert device(config).jobs == processes  # on a CPU all jobs share the memory
    monkeypatch.setattr(ranks, "device", lambda name: "cuda")
    assert device(config).jobs == jobs


def test_a_job_of_several_processes_keeps_all_gpus(four_gpus):
    sweep._take_gpu(checked("sft", "sharding=ddp", "sharding.processes=2"), 1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"


def test_labels_are_texts_with_the_value_or_names_of_values():
    assert configured_label({"algorithm.beta": "β = {}"}, "algorithm.beta", "0.1") == "β = 0.1"
    assert configured_label({"algorithm.beta": {"0.1": "weak"}}, "algorithm.beta", "0.1") == "weak"
    assert configured_label({"algorithm.beta": {"0.3": "strong"}}, "algorithm.beta", "0.1") is None
    # YAML's 0.0 is the level "0".
    for zero in (0.0, "0.0", 0):
        assert configured_label({"algorithm.beta": {zero: "none"}}, "algorithm.beta", "0") == "none"
