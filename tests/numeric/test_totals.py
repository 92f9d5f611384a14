"""Totals between two logged steps survive a checkpoint, in one process and in several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from processes import together

from rlhf_lab.core import ranks
from rlhf_lab.core.errors import NumericError
from rlhf_lab.training import checkpoint
from rlhf_lab.training.totals import LossOutput, Totals


def count(totals: Totals, steps: Sequence[int], processes: Sequence[int]) -> Totals:
    """Steps in which each of the processes has one micro-batch; only the first knows a margin."""
    for step in steps:
        for process in processes:
            generator = torch.Generator().manual_seed(10 * step + process)
            loss_N, margin_N = torch.rand(2, 5, generator=generator)
            totals.add(LossOutput(loss_N, {"nll": loss_N, **({} if process else {"margin": margin_N})}), loss_N.sum())
        totals.norms, totals.steps = {"model": torch.tensor(step + 0.1)}, totals.steps + 1
    return totals


def row(totals: Totals) -> dict[str, float]:
    rows: list[dict[str, float]] = []
    run: Any = SimpleNamespace(log=lambda step, **values: rows.append(values))
    totals.flush(run, 5, 1.0)
    return rows[0]


def restored(state: dict[str, Any]) -> Totals:
    totals = Totals()
    totals.load_state_dict(state)
    return totals


def resumed_in_two(directory: Path) -> None:
    """Bit for bit where as many processes go on; a share that one process left is not counted twice."""
    own, everyone = [ranks.rank()], range(2)
    full = row(count(Totals(), range(5), own))
    checkpoint.save(directory, {"step": 2, "totals": count(Totals(), range(2), own).state_dict(2)})
    state, _ = checkpoint.load(directory)
    assert state is not None
    assert row(count(restored(state["totals"]), range(2, 5), own)) == full
    with ranks.single_process():
        one = count(Totals(), range(2), everyone).state_dict(2)
    assert row(count(restored(one), range(2, 5), own)) == pytest.approx(full)


def test_other_processes_go_on_with_what_was_counted(tmp_path: Path) -> None:
    together(resumed_in_two, tmp_path)
    state, _ = checkpoint.load(tmp_path)
    assert state is not None
    full = row(count(Totals(), range(5), range(2)))
    assert row(count(restored(state["totals"]), range(2, 5), range(2))) == pytest.approx(full)
    assert full["units"] == 50


def test_nothing_is_carried_over_a_logged_step() -> None:
    totals = count(Totals(), range(3), range(1))
    row(totals)
    assert row(count(restored(totals.state_dict(3)), [3], range(1))) == row(count(Totals(), [3], range(1)))


@pytest.mark.parametrize("bad", ["loss", "norm"])
def test_a_step_that_is_not_finite_is_not_saved(bad: str) -> None:
    """A run that resumed there could only fail, without a step that was sound to go back to."""
    totals = count(Totals(), [0], range(1))
    if bad == "loss":
        totals.loss = torch.tensor(float("nan"))
    else:
        totals.norms = {"model": torch.tensor(float("inf"))}
    with pytest.raises(NumericError, match=r"is not finite at step 1; lower algorithm\.lr"):
        totals.state_dict(1)
