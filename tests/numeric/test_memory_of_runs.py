"""The plan of a stage against the tensors of a real run: an upper bound, because rows are taken at their longest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from live_bytes import LiveBytes
from support import SMALL_WORLD, planned

from rlhf_lab.artifacts import Stage
from rlhf_lab.execute import ensure, execute
from rlhf_lab.planning.stages import plan_stage

TINY = ("model=micro", *SMALL_WORLD, "stages.sft.algorithm.epochs=0.5", "stages.reward_model.algorithm.epochs=0.5")
SHORT = {
    "dpo": ("algorithm.epochs=1",),
    "ppo": ("algorithm.iterations=2", "algorithm.critic_warmup=1", "algorithm.prompts_per_iteration=32"),
}


@pytest.mark.parametrize("recipe", ["dpo", "ppo"])
def test_a_run_stays_below_its_plan(recipe: str, tmp_path: Path) -> None:
    """Above it the tensors of the whole run never come; below the state that is certain they must not stay."""
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
