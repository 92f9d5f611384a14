"""Stages that do not wait for each other are built at the same time, to the same result, and stop together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from sizes import overrides
from support import command_inside, planned

from rlhf_lab.stages import side_by_side
from rlhf_lab.stages.launch.processes import STOPPED, stop_signals
from rlhf_lab.stages.side_by_side import _can_overlap, _slots

pytestmark = [pytest.mark.slow, pytest.mark.end_to_end]


def kept(outputs: Path) -> dict[str, bytes]:
    """Return the files of the stages of a store that must not depend on how they were built."""
    names = ("model.safetensors", "evaluation.jsonl")
    files = [path for path in (outputs / "runs").rglob("*") if path.name in names]
    return {path.relative_to(outputs).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    ("recipe", "overlaps"), [("dpo_iterative", True), ("dpo", True), ("compare_policies", True), ("ppo", False)]
)
def test_what_can_overlap(recipe: str, overlaps: bool, tmp_path: Path) -> None:
    stages = list(planned(recipe, f"outputs={tmp_path}").upstream())
    assert _can_overlap(stages) is overlaps


def test_what_keeps_stages_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "usable_cores", lambda: 8)

    def slots(*more: str) -> int:
        return _slots(list(planned("dpo_iterative", f"outputs={tmp_path}", *more).upstream()))

    assert slots() == 4
    assert slots("runtime.stages_at_once=2") == 2
    assert slots("runtime.stages_at_once=1") == 1
    assert slots("runtime.threads=4") == 1
    assert slots("model=gpt2") == 1
    monkeypatch.setenv("RLHF_LAB_PROCESSES", "2")  # jobs of a sweep share the cores already
    assert slots() == 1


def test_the_result_is_that_of_one_after_another(tmp_path: Path) -> None:
    results = []
    for cores in (1, 2):
        directory = tmp_path / str(cores)
        directory.mkdir()
        status, printed = command_inside(directory, "+recipe=dpo_iterative", *overrides("dpo_iterative"), cores=cores)
        assert status == 0, printed
        assert ("reward_model starts" in printed) == (cores == 2)
        results.append(kept(directory / "outputs"))
    assert len(results[0]) == 6
    assert results[0] == results[1]


def test_a_stage_that_fails_stops_the_others_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlhf_lab.algorithms.reward_models import reward_model
    from rlhf_lab.core.errors import NumericError

    def fail(*_: object) -> None:
        raise NumericError("the loss became NaN")

    monkeypatch.setattr(reward_model, "build", fail)
    status, printed = command_inside(tmp_path, "+recipe=dpo_iterative", *overrides("dpo_iterative"), cores=2)
    assert status == 1
    assert "failed: reward_model: the loss became NaN" in printed
    monkeypatch.undo()
    status, printed = command_inside(tmp_path, "+recipe=dpo_iterative", *overrides("dpo_iterative"))
    assert status == 0, printed


def test_a_signal_that_arrives_while_a_process_starts_stops_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread, such as that of the progress bars, receives a signal that this one holds."""
    fork, done = os.fork, threading.Event()

    def fork_after_a_signal() -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return fork()

    monkeypatch.setattr(os, "fork", fork_after_a_signal)
    monkeypatch.setattr(side_by_side, "ensure", lambda *_, **__: time.sleep(20))
    stage = planned("sft", f"outputs={tmp_path}")
    builders: list[side_by_side._StageProcess] = []
    threading.Thread(target=done.wait).start()
    with stop_signals() as signals:
        side_by_side._schedule(stage, [stage], builders, signals, 2, 0.0, tmp_path)
    done.set()
    os.close(builders[0].output)
    assert (signals.received, builders[0].status) == ([signal.SIGINT], STOPPED)


def test_ctrl_c_stops_all_of_them_saved(tmp_path: Path) -> None:
    long = [*overrides("dpo_iterative"), "stages.reward_model.algorithm.epochs=400", "stages.dpo.algorithm.epochs=400"]
    command = [sys.executable, "-m", "rlhf_lab", "+recipe=dpo_iterative", *long]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("outputs/runs/*/checkpoint.pt"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130, printed
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # nobody of its group is left
    assert len(list(tmp_path.glob("outputs/runs/*/checkpoint.pt"))) == 2
