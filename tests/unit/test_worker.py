"""A process that trains a stage with others: when it refuses to begin, what it leaves, how many threads it has."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from support import SMALL_WORLD, checked, planned

from rlhf_lab.config import root
from rlhf_lab.core.errors import DeviceMemoryError, NumericError
from rlhf_lab.core.files import read_json
from rlhf_lab.stages import worker
from rlhf_lab.stages.launch import processes as launch
from rlhf_lab.stages.launch.processes import STOPPED
from rlhf_lab.training.loop import Interrupted


@pytest.fixture
def order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The order of a stage to the one process there is, whose parent is the parent of the tests."""
    stage = planned("sft", *SMALL_WORLD, f"outputs={tmp_path}")
    values = root.to_values(stage.config)
    path = tmp_path / "order.json"
    order = {"values": values, "recipe": "sft", "folder": str(stage.directory), "discard": False}
    path.write_text(json.dumps({**order, "micro_batch_tokens": 512}))
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(worker, "die_with_parent", lambda number: None)  # the tests outlive this process's parent
    monkeypatch.setattr(worker, "set_threads", lambda config, processes: None)
    monkeypatch.setattr("sys.argv", ["worker", str(path), str(os.getppid())])
    return path


def run(monkeypatch: pytest.MonkeyPatch, outcome: Exception | None = None) -> tuple[int, list[str]]:
    """(exit status, recipes that were begun) of a worker whose stage ends so."""
    begun: list[str] = []

    def execute(stage, discard, micro_batch_tokens):
        assert micro_batch_tokens == 512
        begun.append(stage.recipe)
        if outcome:
            raise outcome

    monkeypatch.setattr(worker, "execute", execute)
    return worker.main(), begun


def test_done_and_stopped(order, monkeypatch):
    assert run(monkeypatch) == (0, ["sft"])
    assert run(monkeypatch, Interrupted("stopped after step 3 of 9")) == (STOPPED, ["sft"])
    assert not (order.parent / "error_0.json").exists()


def test_an_expected_error_is_left_without_a_traceback_another_with_one(order, monkeypatch):
    assert run(monkeypatch, NumericError("the loss is NaN"))[0] == 1
    left = read_json(order.parent / "error_0.json")
    assert left.pop("failed_at") > 0
    assert left == {"error": "the loss is NaN", "traceback": "", "micro_batch_tokens": None}
    assert run(monkeypatch, DeviceMemoryError("out of memory", 256))[0] == 1
    assert read_json(order.parent / "error_0.json")["micro_batch_tokens"] == 256
    assert run(monkeypatch, KeyError("x"))[0] == 1
    left = read_json(order.parent / "error_0.json")
    assert left["error"] == "KeyError: 'x'" and left["traceback"].startswith("Traceback")


def test_nothing_is_built_for_a_parent_that_is_gone_or_a_stage_that_is_another(order, monkeypatch):
    order.write_text(json.dumps({**read_json(order), "folder": "elsewhere"}))
    assert run(monkeypatch) == (1, [])
    assert "code or data changed" in read_json(order.parent / "error_0.json")["error"]
    monkeypatch.setattr("sys.argv", ["worker", str(order), "0"])
    assert run(monkeypatch) == (1, [])


@pytest.mark.parametrize(
    ("overrides", "processes", "expected"),
    [
        (("runtime.threads=3",), 2, 3),
        (("model=tiny",), 1, 1),
        (("model=hf", "model.path=here"), 2, 4),
        (("model=hf", "model.path=here"), 16, 1),
    ],
)
def test_threads_of_a_process(overrides, processes, expected, monkeypatch):
    chosen: list[int] = []
    monkeypatch.setattr(launch, "usable_cores", lambda: 8)
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    launch.set_threads(checked("sft", *overrides), processes)
    assert chosen == [expected]
