"""Processes that train together: are there as many as the config asks for, and whose end is the cause of all."""

import signal
import subprocess
import sys

import pytest
import torch
from support import checked, planned

from rlhf_lab.core.errors import ConfigError, LabError
from rlhf_lab.core.files import read_json, write_json
from rlhf_lab.stages.launch import processes
from rlhf_lab.stages.launch.processes import STOPPED, _cause, _outcome, check_launch
from rlhf_lab.training.loop import Interrupted, Paused


@pytest.mark.parametrize(
    ("choice", "message"),
    [("sharding=none", "sharding=none uses one"), ("sharding.processes=4", "the launcher started 2 processes")],
)
def test_a_launcher_must_start_what_the_config_asks_for(choice, message, monkeypatch):
    for name, value in {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, str(value))
    check_launch(checked("sft", "sharding=ddp"))
    check_launch(checked("sft", "sharding=ddp", "sharding.processes=2"))
    with pytest.raises(ConfigError, match=message):
        check_launch(checked("sft", "sharding=ddp", choice))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    check_launch(checked("sft", "sharding=ddp"))
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(ConfigError, match="has 1 GPUs"):
        check_launch(checked("sft", "sharding=ddp"))
    check_launch(checked("sft", "sharding=ddp", "runtime.device=cpu"))


@pytest.mark.parametrize(
    ("failed", "failed_at", "cause"),
    [
        ({0: 1, 1: 1}, {0: 8.2, 1: 8.1}, 1),  # 1 ran out of memory, then 0 lost the connection; both ends seen at once
        ({0: 1, 1: 1}, {0: 8.1, 1: 8.2}, 0),
        ({0: 1, 1: 1}, {1: 8.2}, 1),  # 0 could not write a report
        ({0: 1, 1: -signal.SIGKILL}, {0: 8.1}, 1),  # 0 reported a lost connection
        ({0: 1, 1: -signal.SIGABRT}, {0: 8.1}, 0),  # 1 aborted because its peer was gone
        ({0: -signal.SIGABRT}, {}, 0),
    ],
)
def test_the_cause_is_the_first_to_fail_unless_a_signal_ended_another(failed, failed_at, cause, tmp_path):
    for rank, seconds in failed_at.items():
        write_json(tmp_path / f"error_{rank}.json", {"failed_at": seconds})
    assert _cause(failed, tmp_path) == cause


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_told_before_anything_starts():
    with pytest.raises(ConfigError, match=r"runtime\.device=cuda: this PyTorch finds no GPU"):
        check_launch(checked("sft", "runtime.device=cuda"))


def test_a_stop_before_the_stage_has_a_folder_is_an_interruption(tmp_path):
    """Processes that end while they import have not made one yet."""
    stage = planned("sft", f"outputs={tmp_path}")
    with pytest.raises(Interrupted, match="stopped by SIGINT"):
        _outcome(stage, tmp_path, [-signal.SIGINT, 1], 0, [signal.SIGINT])
    assert read_json(stage.directory / "result.json")["status"] == "interrupted"


def test_a_stage_that_its_processes_paused_is_paused(tmp_path):
    stage = planned("ppo", f"outputs={tmp_path}")
    stage.directory.mkdir(parents=True)
    write_json(stage.directory / "result.json", {"status": "paused", "error": "strong warning at iteration 7"})
    with pytest.raises(Paused, match="strong warning at iteration 7"):
        _outcome(stage, tmp_path, [STOPPED, STOPPED], None, [])


@pytest.mark.parametrize(("status", "discard"), [("interrupted", False), ("paused", False), ("completed", True)])
def test_a_failure_before_the_stage_begins_is_reported_and_not_the_end_of_an_earlier_attempt(
    status, discard, tmp_path, monkeypatch
):
    """For example a damaged log, which is found before the earlier result is replaced."""
    stage = planned("sft", f"outputs={tmp_path}")
    stage.directory.mkdir(parents=True)
    earlier = {"status": status, "error": "stopped after step 40 of 100"}
    write_json(stage.directory / "result.json", earlier)

    def start_worker(order_file, rank, count):
        report = {"error": "metrics.jsonl is damaged", "traceback": "", "micro_batch_tokens": None, "failed_at": 1.0}
        write_json(order_file.parent / f"error_{rank}.json", report)
        return subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"])

    monkeypatch.setattr(processes, "_start_worker", start_worker)
    with pytest.raises(LabError, match=r"sft: metrics\.jsonl is damaged"):
        processes.train_together(stage, 2, discard=discard)
    assert read_json(stage.directory / "result.json") == earlier
