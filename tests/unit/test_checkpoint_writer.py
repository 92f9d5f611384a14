"""checkpoint.background: what is on the disk while a checkpoint is written, and what it holds."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf_lab.core.errors import StorageError
from rlhf_lab.training import checkpoint
from rlhf_lab.training.checkpoint import Saved, Writer, load


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Writing waits until this is set."""
    event = threading.Event()
    save = torch.save

    def slow_save(*arguments: Any) -> None:
        assert event.wait(20)
        save(*arguments)

    monkeypatch.setattr(torch, "save", slow_save)
    return event


def state_on_disk(directory: Path) -> dict[str, Any]:
    state, problem = load(directory)
    assert state is not None, problem
    return state


def test_the_old_checkpoint_counts_until_the_new_one_is_whole(tmp_path, gate):
    gate.set()
    checkpoint.save(tmp_path, {"step": 1})
    gate.clear()
    writer = Writer(tmp_path, background=True)
    weight, counts = torch.zeros(3), {"rows": [1]}
    writer.save({"step": 2, "counts": counts}, {"weight": weight})
    # training goes on: neither tensors nor plain values of later steps get in
    weight += 1
    counts["rows"].append(2)
    writer.finish_if_written()
    assert state_on_disk(tmp_path)["step"] == 1
    gate.set()
    writer.finish()
    state = state_on_disk(tmp_path)
    assert state["step"] == 2 and state["counts"] == {"rows": [1]}
    assert torch.equal(Saved(tmp_path, state).full["weight"], torch.zeros(3))


def test_one_checkpoint_is_written_at_a_time(tmp_path, gate):
    writer = Writer(tmp_path, background=True)
    writer.save({"step": 1}, {})
    threading.Timer(0.2, gate.set).start()
    writer.save({"step": 2}, {})  # waits for the first one
    assert state_on_disk(tmp_path)["step"] in (1, 2)
    writer.finish()
    assert state_on_disk(tmp_path)["step"] == 2


def test_a_write_that_fails_is_told_at_the_next_step(tmp_path, monkeypatch):
    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    writer = Writer(tmp_path, background=True)
    writer.save({"step": 1}, {})
    writer.wait()
    with pytest.raises(StorageError, match="No space left"):
        writer.finish_if_written()
    assert load(tmp_path) == (None, None)
