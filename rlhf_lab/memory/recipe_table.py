"""`plan table recipes`: minimum number of cards for each recipe and published size, in columns "before" and "after".

Before: all weights are float32, and settings are those of the recipe or made frugal by hand. After: weights that are
not trained are stored as `model.weights` says, and `runtime.fit` adapts other settings (`placement.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_lab.config import compose
from rlhf_lab.core.progress import Ticker, progress
from rlhf_lab.memory.devices import GIB, MOST_DEVICES
from rlhf_lab.memory.fit import ADAPTER_RANK, changed, min_devices
from rlhf_lab.memory.placement import find_placement
from rlhf_lab.memory.sizes import PUBLISHED
from rlhf_lab.memory.table import MEASURED, Grid
from rlhf_lab.stages import artifacts
from rlhf_lab.stages.artifacts import Stage

COMMAND = "python -m rlhf_lab plan table recipes"
CARDS_GIB = {"24 GB": 21.4, "80 GB": 78.4, "141 GB": 138.3}
"""Memory of an L4, an H100 and an H200: the driver's value less 0.7 GiB for the CUDA context."""
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
    """Return the last stage of a recipe on a published model: GPU, bfloat16, real data. Rank 0 is no adapter."""
    words = [f"+recipe={recipe}", "model=hf", f"model.path={model}", f"model.lora.rank={rank}"]
    words += ["data=mini_hh", "runtime.device=cuda", "runtime.dtype=bfloat16"]
    return artifacts.plan(compose.check_command(words).configs[0], recipe)


def recipe_grids() -> list[Grid]:
    """Return two tables for each recipe, with all parameters and with an adapter."""
    ranks = (0, ADAPTER_RANK)
    with progress("rows", len(RECIPES) * len(ranks) * len(MODELS)) as ticker:
        return [_recipe_grid(recipe, rank, ticker) for recipe in RECIPES for rank in ranks]


def page(grids: Sequence[Grid]) -> str:
    """Return the tables as a Markdown page that names its command."""
    cards = [f"{name} {gib} GiB" for name, gib in CARDS_GIB.items()]
    sizes = ", ".join(cards)
    head = (
        "# Memory plan by recipe and card, 0.5B to 70B\n\n"
        f"Calculated, not measured: `{COMMAND} to=docs/results/memory_recipes.md`. It uses the planner of every run "
        f"([docs/memory.md](../memory.md)). {MEASURED}\n\n"
        "Minimum number of cards in powers of two, with `sharding=fsdp_full` on several cards; “–”: more than "
        f"{MOST_DEVICES}. A card has the driver's value less 0.7 GiB for the CUDA context: {sizes}. Lengths are those "
        "of the recipes (512 tokens), `runtime.dtype=bfloat16`, AdamW. The policy, its reference and the reward model "
        "have the same shape. If an adapter is trained, critic and reward model are adapters on its base too, unless "
        "the base is sharded.\n\n"
        "**Before**: `model.weights=float32`, with the recipe's settings / with all settings that only cost time, set "
        "by hand (checkpointing, one row or pair at a time, 64 sampled responses). **After**: the settings to set "
        "(`model.weights`, or on several cards `model.weights_of.reward` and `sharding.reference`), then the automatic "
        "changes of `runtime.fit=auto` (`sharding.sampling=block`, rows sampled at a time, tokens of a micro-batch, "
        "checkpointing), and the peak of a card.\n"
    )
    tables = "\n\n".join(grid.markdown() for grid in grids)
    return f"{head}\n{tables}\n"


def _recipe_grid(recipe: str, rank: int, ticker: Ticker) -> Grid:
    trained = f"an adapter of rank {rank}" if rank else "all parameters"
    columns = [f"{card} {when}" for card in CARDS_GIB for when in ("before", "after")]
    header = ["model", *columns]
    first = recipe_stage(recipe, MODELS[0], rank)
    rows = []
    for model in MODELS:
        stage = artifacts.plan(changed(first, {"model.path": model}).config, recipe)
        rows.append([PUBLISHED[model].name, *cells(stage)])
        ticker.advance()
    note = f"`+recipe={recipe} model=hf model.path=… model.lora.rank={rank} runtime.dtype=bfloat16`"
    return Grid(f"{RECIPES[recipe]}, {trained}", note, header, rows)


def cells(stage: Stage) -> list[str]:
    """Return the cells before and after for each card."""
    found: list[str] = []
    smallest = 1
    # The largest card is first: a smaller one needs at least as many, and the search ends above MOST_DEVICES.
    for gib in sorted(CARDS_GIB.values(), reverse=True):
        memory = int(gib * GIB)
        counts = [min_devices(stage, memory, frugal=frugal) for frugal in (False, True)]
        placement = find_placement(stage, memory, smallest) if smallest <= MOST_DEVICES else None
        smallest = placement.plan.processes if placement else MOST_DEVICES + 1
        before = " / ".join(str(count or "–") for count in counts)
        found = [before, placement.text() if placement else "–", *found]
    return found
