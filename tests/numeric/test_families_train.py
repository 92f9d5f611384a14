"""SFT, DPO with and without an adapter, and an iteration of GRPO on tiny checkpoints of every family."""

from __future__ import annotations

import json
from pathlib import Path

import families
import pytest
from support import planned, toy_rows, write_pairs

from rlhf_lab.memory.plan import plan_stage
from rlhf_lab.stages.execute import execute

SMALL = (
    *("data=pairs", "data.test_fraction=0.2", "algorithm.epochs=1"),
    *("evaluation.prompts=2", "evaluation.samples_per_prompt=2", "evaluation.pairs=4"),
    *("rollout.max_new_tokens=6", "rollout.max_prompt_tokens=24"),
)
ONCE = (
    *("algorithm.iterations=1", "algorithm.prompts_per_iteration=2", "algorithm.group_size=2"),
    *("algorithm.batch_size=4", "reward=length", "needs.reward=null"),
)
WAYS = {
    "sft": ("sft", "algorithm.max_length=48"),
    "dpo": ("dpo", "algorithm.max_length=48", "needs.reward=null"),
    "dpo, adapter": ("dpo", "algorithm.max_length=48", "needs.reward=null", "model.lora.rank=4"),
    "grpo": ("grpo", *ONCE),
    "grpo, adapter on bfloat16": ("grpo", *ONCE, "model.lora.rank=4", "model.weights=bfloat16"),
}


# Gemma 2 and Mixtral have all that is special: capped scores and logits, wide heads, experts
FAST = ("gemma2", "mixtral")
CASES = [
    *((family, way) for family in FAST for way in WAYS),
    *(
        pytest.param(family, way, marks=pytest.mark.slow)
        for family in families.FAMILIES
        if family not in FAST
        for way in ("sft", "grpo, adapter on bfloat16")
    ),
]


@pytest.mark.parametrize(("family", "way"), CASES)
def test_a_stage_trains(family: str, way: str, tmp_path: Path) -> None:
    directory = families.save(family, tmp_path / "model")
    recipe, *overrides = WAYS[way]
    data = write_pairs(tmp_path / "pairs.jsonl", toy_rows(12))
    words = [*SMALL, *overrides, f"data.path={data}", "model=hf", f"model.path={directory}", f"outputs={tmp_path}"]
    if recipe != "sft":
        words.append(f"needs.policy={directory}")
    stage = planned(recipe, *words)
    if family != "phi3":
        assert plan_stage(stage).peak > plan_stage(stage).floor > 0
    execute(stage)
    lines = (Path(stage.directory) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert any("loss" in json.loads(line) for line in lines)
    if way == "grpo":  # the policy is what drew the replies
        gaps = [row["step0_sampler_gap"] for row in map(json.loads, lines) if "step0_sampler_gap" in row]
        assert gaps and max(gaps) < 1e-5
