"""The memory of an update that two processes make together, every strategy against its measured peak."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from memory_divided import cases, measure_all, measure_sampling
from processes import together
from support import once

from rlhf_lab.core.files import read_json
from rlhf_lab.memory.sizes import ModelShape
from rlhf_lab.memory.work import Rows

pytestmark = pytest.mark.slow

SHAPES = {
    "llama": ModelShape("llama", 128, 4, 8, 2, 16, 352, 1000),
    "gpt2": ModelShape("gpt2", 128, 4, 8, 8, 16, 512, 1000, 512),
}
SHORT = "SFT, float32", "SFT, checkpointing, float32"
PLAN = (
    *(("llama", "fsdp_full", work) for work in cases()),
    *(("llama", "ddp", work) for work in (*SHORT, "SFT in two passes, float32")),
    *(("llama", "fsdp_grad_op", work) for work in (*SHORT, "SFT, bfloat16")),
    *(("gpt2", "fsdp_full", work) for work in (SHORT[1], "SFT, bfloat16")),
    *(("llama", strategy, work) for strategy in ("zero1", "zero2", "zero3") for work in SHORT),
)
LEAST = {"": -0.02, "checkpointing": -0.03, "adapter": -0.02, "zero": -0.06}
MOST = {"": 0.03, "checkpointing": 0.12, "adapter": 0.07, "zero": 0.06}
"""Errors of estimates by what makes them. DeepSpeed's buffers come and go in ways of its own."""


def kind(strategy: str, work: str) -> str:
    if strategy.startswith("zero"):
        return "zero"
    return next((name for name in ("checkpointing", "adapter") if name in work), "")


@pytest.fixture(scope="module")
def measured(shared_tmp: Path) -> dict[tuple[str, str, str], dict[str, Any]]:
    """(family, strategy, work) → bytes of one of two processes."""
    out = once(shared_tmp / "memory-two", measure)
    return {(name, row["strategy"], row["work"]): row for name in SHAPES for row in read_json(out / f"{name}.json")}


def measure(out: Path) -> None:
    here = [each for each in PLAN if not each[1].startswith("zero") or find_spec("deepspeed")]
    for name, shape in SHAPES.items():
        plan = [(strategy, work) for family, strategy, work in here if family == name]
        together(measure_all, out / f"{name}.json", plan, shape, Rows(16, 32, 32))


@pytest.mark.parametrize(("family", "strategy", "work"), PLAN)
@pytest.mark.long
def test_the_peak_is_what_is_planned(family: str, strategy: str, work: str, measured: Any) -> None:
    if (family, strategy, work) not in measured:
        pytest.skip("needs rlhf_lab[deepspeed]")
    row, of = measured[family, strategy, work], kind(strategy, work)
    error = row["estimated"] / row["measured"] - 1
    assert LEAST[of] <= error <= MOST[of], f"{error:+.1%}"


@pytest.mark.long
def test_strategies_save_what_they_promise(measured: Any) -> None:
    """Measured, not planned: each divides more than the one before it."""
    peak = {name: measured["llama", name, SHORT[1]]["measured"] for name in ("fsdp_full", "fsdp_grad_op", "ddp")}
    assert peak["fsdp_full"] < peak["fsdp_grad_op"] < peak["ddp"]


def test_sampling_gathers_the_policy_whole_or_one_block_at_a_time(tmp_path: Path) -> None:
    """Weights are most of it here: ten blocks, few rows."""
    shapes = {name: replace(shape, layers=10) for name, shape in SHAPES.items()}
    together(measure_sampling, tmp_path / "sampling.json", shapes)
    rows = read_json(tmp_path / "sampling.json")
    for row in rows:
        error = row["estimated"] / row["measured"] - 1
        assert -0.02 <= error <= 0.03, f"{row}: {error:+.1%}"
    for full, by_block in zip(rows[::2], rows[1::2], strict=True):
        assert by_block["measured"] < 0.5 * full["measured"]
