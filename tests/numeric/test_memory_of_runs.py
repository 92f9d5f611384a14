"""The plan of a stage against the tensors of real runs.

All of a run is below its plan, because rows are planned with maximum length. The bytes of a model on two processes
are exact.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from live_bytes import LiveBytes
from processes import together
from support import SMALL_WORLD, planned

from rlhf_lab.core.files import read_json
from rlhf_lab.memory.plan import plan_stage
from rlhf_lab.memory.shapes import source_shape
from rlhf_lab.memory.state import Training, trained_state
from rlhf_lab.stages.artifacts import Stage
from rlhf_lab.stages.execute import ensure, execute

pytestmark = pytest.mark.slow

TINY = ("model=micro", *SMALL_WORLD, "stages.sft.algorithm.epochs=0.5", "stages.reward_model.algorithm.epochs=0.5")
SHORT = {
    "dpo": ("algorithm.epochs=1",),
    "ppo": ("algorithm.iterations=2", "algorithm.critic_warmup=1", "algorithm.prompts_per_iteration=32"),
}


@pytest.mark.parametrize("recipe", ["dpo", "ppo"])
def test_a_run_stays_below_its_plan(recipe: str, tmp_path: Path) -> None:
    """The tensors of the full run never exceed it, and they must not stay below the part that is certain."""
    stage = planned(recipe, *TINY, *SHORT[recipe], f"outputs={tmp_path}", "rollout.max_new_tokens=24")
    for need in stage.needs.values():
        assert isinstance(need, Stage)
        ensure(need, 0.0)
    found: Any = plan_stage(stage)
    with LiveBytes() as live:
        execute(stage)
    assert found.floor <= live.peak <= found.peak
    assert found.peak <= 2 * live.peak
    print(f"{recipe}: planned {found.peak:,} B, measured {live.peak:,} B")


DIVIDED = (*TINY, "model.hidden=32", "algorithm.optimizer=adamw", "algorithm.lr=0.01", "algorithm.epochs=0.2")


def divided(strategy: str, out: Path) -> Stage:
    return planned("sft", *DIVIDED, "sharding.processes=2", f"sharding={strategy}", f"outputs={out}")


def build(out: Path) -> None:
    for strategy in ("ddp", "fsdp_full"):
        execute(divided(strategy, out / strategy))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("divided")
    together(build, out)
    return out


@pytest.mark.parametrize("strategy", ["ddp", "fsdp_full"])
def test_two_processes_hold_what_is_planned(strategy: str, built: Path) -> None:
    """Weights, gradients and optimizer state of one process. Of an odd number of rows the first has one more."""
    stage = divided(strategy, built / strategy)
    shape = source_shape(stage.model)  # with as many tokens as the tokenizer has got
    state = trained_state(shape, Training(), strategy, 2)
    model_copies = read_json(stage.directory / "result.json")["training"]
    row = 4 * shape.hidden * (shape.vocabulary % 2) / 2 if strategy == "fsdp_full" else 0
    parameters, gradients, optimizer_state = (
        model_copies[f"memory/{name}"] * 2**20 for name in ("parameters", "gradients", "optimizer")
    )
    assert parameters == pytest.approx(state.weights + row, abs=64)
    assert gradients == pytest.approx(state.gradients + row, abs=64)
    assert 0 <= optimizer_state - (state.optimizer + 2 * row) < 1024  # and a step counter for each tensor
