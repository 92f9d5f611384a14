"""One curve per algorithm, kept in golden.json: a change of what is computed shows even where every property holds.

The policy starts untrained, so nothing but these few steps is in the numbers. A wanted change of a curve is recorded
with RLHF_LAB_RECORD=1 and shows in the diff.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support import ONE_LAYER, SMALL_WORLD, planned

from rlhf_lab.core.files import read_jsonl
from rlhf_lab.stages.execute import execute

GOLDEN = Path(__file__).with_name("golden.json")
COMMON = ("algorithm.optimizer=adamw", "algorithm.lr=3e-3", "algorithm.log_every_steps=1", "checkpoint.every_steps=0")
POLICY = ("reward=gold", "needs.reward=null", "algorithm.prompts_per_iteration=8", "algorithm.iterations=3")
CASES = {
    "sft": ("sft", "algorithm.batch_size=16", "algorithm.epochs=1"),
    "reward_model": ("reward_model", "algorithm.batch_size=16", "algorithm.epochs=1", "algorithm.on_policy_fraction=0"),
    "dpo": ("dpo", "needs.reward=null", "algorithm.batch_size=16", "algorithm.epochs=1"),
    "kto": ("dpo", "algorithm=kto", "needs.reward=null", "algorithm.batch_size=16", "algorithm.epochs=1"),
    "simpo": ("dpo", "algorithm=simpo", "needs.reward=null", "algorithm.batch_size=16", "algorithm.epochs=1"),
    "ppo": ("ppo", *POLICY, "algorithm.critic=zero", "algorithm.critic_warmup=1", "algorithm.batch_size=8"),
    "grpo": ("grpo", *POLICY, "algorithm.batch_size=16", "algorithm.epochs=2"),
    "rloo": ("grpo", "algorithm=rloo", *POLICY, "algorithm.batch_size=16", "algorithm.epochs=2"),
}
KEYS = ("loss", "heldout_nll", "margin", "reward", "kl", "value_loss", "kl_penalty", "clip_fraction", "grad_norm")


@pytest.fixture(scope="module")
def untrained(tmp_path_factory) -> Path:
    """A policy after a single step at a vanishing learning rate."""
    out = tmp_path_factory.mktemp("untrained")
    more = ("algorithm.batch_size=96", "algorithm.epochs=0.1", "algorithm.optimizer=adamw", "algorithm.lr=1e-12")
    stage = planned("sft", *SMALL_WORLD, *ONE_LAYER, *more, f"outputs={out}")
    execute(stage)
    return Path(stage.model)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_curve_is_the_recorded_one(name, untrained, tmp_path):
    recipe, *overrides = CASES[name]
    start = () if recipe == "sft" else (f"needs.policy={untrained}",)
    stage = planned(recipe, *overrides, *SMALL_WORLD, *ONE_LAYER, *COMMON, *start, f"outputs={tmp_path}")
    execute(stage)
    curves: dict[str, list[float]] = {}
    for row in read_jsonl(stage.directory / "metrics.jsonl"):
        for key in KEYS:
            if key in row:
                curves.setdefault(key, []).append(round(row[key], 6))
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if os.environ.get("RLHF_LAB_RECORD"):
        GOLDEN.write_text(json.dumps({**golden, name: curves}, indent=1, sort_keys=True) + "\n")
        return
    assert curves.keys() == golden[name].keys()
    for key, values in curves.items():
        assert values == pytest.approx(golden[name][key], rel=2e-3, abs=2e-4), key
