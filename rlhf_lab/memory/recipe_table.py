"""`plan table recipes`: the fewest cards for each recipe and published size, before and after weights as they are.

Before, all weights are float32 and settings are as the recipe writes them, or made frugal by hand; after, what is not
trained is stored as `model.weights` says and `runtime.fit` does the rest (`placement.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_lab.config import compose
from rlhf_lab.core.console import Ticker, progress
from rlhf_lab.memory.devices import GIB, MOST_DEVICES
from rlhf_lab.memory.fit import ADAPTER_RANK, changed, least_devices
from rlhf_lab.memory.placement import place
from rlhf_lab.memory.sizes import PUBLISHED
from rlhf_lab.memory.table import MEASURED, Grid
from rlhf_lab.stages import artifacts
from rlhf_lab.stages.artifacts import Stage

COMMAND = "python -m rlhf_lab plan table recipes"
CARDS_GIB = {"24 GB": 21.4, "80 GB": 78.4, "141 GB": 138.3}
"""Of an L4, an H100 and an H200: what the driver reports, less .7 GiB for CUDA's context."""
RECIPES = {"sft": "SFT", "dpo": "DPO", "reward_model": "Reward model", "grpo": "GRPO, learned reward", "ppo": "PPO"}
MODELS = (
    "Qwen/Qwen2.5-0.5B-Instruct",
    "Qwen/Qwen2.5-1.5B-Instruct",
    "Qwen/Qwen2.5-3B-Instruct",
    "Qwen/Qwen2.5-7B-Instruct",
    "meta-llama/Llama-3.1-8B-Instruct",
    "Qwen/Qwen2.5-14B-Instruct",
    "Qwen/Qwen2.5-32B-Instruct",
    "meta-llama/Llama-3.1-70B-Instruct",
)


def recipe_stage(recipe: str, model: str, rank: int = 0) -> Stage:
    """The last stage of a recipe on a published model: a GPU, bfloat16, real data, rank 0 for all parameters."""
    words = [f"+recipe={recipe}", "model=hf", f"model.path={model}", f"model.lora.rank={rank}"]
    words += ["data=mini_hh", "runtime.device=cuda", "runtime.dtype=bfloat16"]
    return artifacts.plan(compose.check_command(words).configs[0], recipe)


def recipe_grids() -> list[Grid]:
    """A table for each recipe, with all parameters and with an adapter."""
    ranks = (0, ADAPTER_RANK)
    with progress("rows", len(RECIPES) * len(ranks) * len(MODELS)) as ticker:
        return [_recipe_grid(recipe, rank, ticker) for recipe in RECIPES for rank in ranks]


def page(grids: Sequence[Grid]) -> str:
    """The tables as a Markdown page that names its command."""
    sizes = ", ".join(f"{name} {gib} GiB" for name, gib in CARDS_GIB.items())
    head = (
        "# Memory plan by recipe and card, 0.5B to 70B\n\n"
        f"Arithmetic, not measurement: `{COMMAND} to=docs/results/memory_recipes.md`. It asks the planner that every "
        f"run asks ([docs/memory.md](../memory.md)). {MEASURED}\n\n"
        f"Fewest cards in powers of two, `sharding=fsdp_full` where there are several; “–”: more than {MOST_DEVICES}. "
        f"A card has what its driver reports less .7 GiB for CUDA's context: {sizes}. Lengths are those of the recipes "
        "(512 tokens), `runtime.dtype=bfloat16`, AdamW; the policy, its reference and the reward model are of the same "
        "shape, and where an adapter is trained, critic and reward model are adapters on its base too, if that is not "
        "divided.\n\n"
        "**Before**: `model.weights=float32`, as the recipe is written / with everything that costs time alone, "
        "written by hand (checkpointing, one row or pair at a time, 64 sampled replies). **After**: the settings to "
        "write (`model.weights`, or on several cards `model.weights_of.reward` and `sharding.reference`), then what "
        "`runtime.fit=auto` does by itself (`sharding.sampling=block`, rows that are sampled at once, tokens of a "
        "micro-batch, checkpointing), and the peak of a card.\n"
    )
    return head + "\n" + "\n\n".join(grid.markdown() for grid in grids) + "\n"


def _recipe_grid(recipe: str, rank: int, ticker: Ticker) -> Grid:
    trained = f"an adapter of rank {rank}" if rank else "all parameters"
    header = ["model", *(f"{card} {when}" for card in CARDS_GIB for when in ("before", "after"))]
    first = recipe_stage(recipe, MODELS[0], rank)
    rows = []
    for model in MODELS:
        stage = artifacts.plan(changed(first, {"model.path": model}).config, recipe)
        rows.append([PUBLISHED[model].name, *cells(stage)])
        ticker.advance()
    remark = f"`+recipe={recipe} model=hf model.path=… model.lora.rank={rank} runtime.dtype=bfloat16`"
    return Grid(f"{RECIPES[recipe]}, {trained}", remark, header, rows)


def cells(stage: Stage) -> list[str]:
    """Before and after on each card."""
    found: list[str] = []
    fewest = 1
    # the largest card first: a smaller one needs no fewer, and none where 64 of these do not suffice
    for gib in sorted(CARDS_GIB.values(), reverse=True):
        memory = int(gib * GIB)
        counts = [least_devices(stage, memory, frugal=frugal) for frugal in (False, True)]
        placement = place(stage, memory, fewest) if fewest <= MOST_DEVICES else None
        fewest = placement.plan.processes if placement else MOST_DEVICES + 1
        before = " / ".join(str(count or "–") for count in counts)
        found = [before, placement.text() if placement else "–", *found]
    return found
