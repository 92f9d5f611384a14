"""The minimum number of cards for a recipe on published models, with unchanged weights and `runtime.fit`."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import planned

from rlhf_lab.memory.copies import gathered_bytes_to_sample
from rlhf_lab.memory.devices import GIB, Device
from rlhf_lab.memory.fit import changed, min_devices
from rlhf_lab.memory.neutral import neutral_change
from rlhf_lab.memory.plan import plan_stage
from rlhf_lab.memory.recipe_table import CARDS_GIB, MODELS, cells, find_placement, recipe_stage
from rlhf_lab.memory.sizes import PUBLISHED

LLAMA_8B, QWEN_7B = "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen2.5-7B-Instruct"
PAGE = Path(__file__).parents[2] / "docs/results/memory_recipes.md"


@pytest.mark.parametrize(
    ("recipe", "model", "rank", "card", "devices"),
    [("grpo", QWEN_7B, 16, "24 GB", 1), ("grpo", LLAMA_8B, 0, "80 GB", 4), ("ppo", LLAMA_8B, 0, "80 GB", 8)],
)
def test_large_models_fit_the_cards_that_people_have(
    recipe: str, model: str, rank: int, card: str, devices: int
) -> None:
    """Before, with float32 weights, none of them fits any number of such cards, however frugal."""
    stage = recipe_stage(recipe, model, rank)
    memory = int(CARDS_GIB[card] * GIB)
    assert min_devices(stage, memory, frugal=True) is None
    placement = find_placement(stage, memory, min_processes=max(1, devices // 2))  # half as many do not suffice
    assert placement is not None and placement.plan.processes == devices
    assert placement.plan.peak <= memory
    # the printed settings lead to this plan, by the code of every run
    fitted, plan = neutral_change(changed(stage, placement.written), Device("card", memory, cuda=True))
    assert plan is not None and (fitted, plan.peak) == (placement.fitted, placement.plan.peak)


def test_the_accepted_page_is_what_the_planner_says() -> None:
    """One row of eighty; `plan table recipes` makes all of them in a few minutes."""
    stage = recipe_stage("dpo", LLAMA_8B, 16)
    table = PAGE.read_text(encoding="utf-8").partition("## DPO, an adapter")[2].partition("## ")[0]
    assert f"| {PUBLISHED[LLAMA_8B].name} | {' | '.join(cells(stage))} |" in table
    assert all(PUBLISHED[model].name in table for model in MODELS)


def test_a_policy_divided_in_bfloat16_is_sampled_from_in_bfloat16() -> None:
    """The sampler reads a full copy of 2 bytes a parameter, and its own matrices and KV cache have 2 too."""
    stage = planned("ppo", "model=hf", "model.path=gpt2-medium", "sharding=fsdp_full", "runtime.dtype=bfloat16")
    shape = PUBLISHED["gpt2-medium"]
    sharded, alone = plan_stage(stage, 2), plan_stage(stage, 1)
    assert sharded.sampler is not None and alone.sampler is not None
    models = [line.copy for line in sharded.lines]
    assert gathered_bytes_to_sample(stage, models, sharded.training, 2) == (2 * shape.parameters, 0)
    assert sharded.sampler.weights == 2 * shape.multiplied and alone.sampler.weights == 4 * shape.multiplied
    assert 2 * sharded.sampler.cache == alone.sampler.cache
