"""`plan table recipes`: minimum number of cards for each recipe and published size, in columns "before" and "after".

Before: all weights are float32, and settings are those of the recipe or made frugal by hand. After: weights that are
not trained are stored as `model.weights` says, and `runtime.fit` adapts other settings (`find_placement`). Trained
weights stay float32, so a stage that trains all parameters stores only its frozen models in bfloat16. A stage that
trains an adapter also stores its base in bfloat16 or four bits. On several devices policies and references are sharded
in float32, and only reward models are stored in lower precision.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rlhf_lab.config import command_line, registry
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.progress import Ticker, progress
from rlhf_lab.memory.devices import GIB, MOST_DEVICES, Device
from rlhf_lab.memory.fit import (
    ADAPTER_RANK,
    MICRO,
    Change,
    can_be_packed,
    changed,
    has_frozen_models,
    min_devices,
    sharding_changes,
)
from rlhf_lab.memory.neutral import CHECKPOINTING, ROWS, SAMPLING, neutral_change
from rlhf_lab.memory.plan import StagePlan
from rlhf_lab.memory.show import size
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
    return artifacts.plan(command_line.check_command(words).configs[0], recipe)


def recipe_grids() -> list[Grid]:
    """Return two tables for each recipe, with all parameters and with an adapter."""
    ranks = (0, ADAPTER_RANK)
    with progress("rows", len(RECIPES) * len(ranks) * len(MODELS)) as ticker:
        return [_recipe_grid(recipe, rank, ticker) for recipe in RECIPES for rank in ranks]


def page(grids: Sequence[Grid]) -> str:
    """Return the tables as a Markdown page that names its command."""
    sizes = ", ".join(f"{name} {gib} GiB" for name, gib in CARDS_GIB.items())
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
    header = ["model", *(f"{card} {when}" for card in CARDS_GIB for when in ("before", "after"))]
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


WEIGHTS, REWARD_WEIGHTS, REFERENCE = "model.weights", "model.weights_of.reward", "sharding.reference"


@dataclass(frozen=True)
class Placement:
    """Settings with which a stage fits on the minimum number of devices.

    Attributes:
        written: settings that the user sets.
        fitted: settings that `runtime.fit` changes automatically.
        plan: plan of the stage with both.
    """

    written: Change
    fitted: Change
    plan: StagePlan

    @property
    def samples_by_block(self) -> bool:
        return SAMPLING in self.fitted

    def text(self) -> str:
        """Return the number of devices, the settings, and the peak of one device as text."""
        texts = {
            **{WEIGHTS: "{}", REWARD_WEIGHTS: "reward {}", REFERENCE: "reference {}", SAMPLING: "sampled by {}"},
            **{ROWS: "{} rows", MICRO: "micro-batch {}", CHECKPOINTING: "checkpointing"},
        }
        values = self.written | self.fitted
        words = [text.format(values[key]) for key, text in texts.items() if key in values]
        sharding = "" if self.plan.processes == 1 else " fsdp_full"
        details = ", ".join([*words, size(self.plan.peak)])
        return f"{self.plan.processes}{sharding}: {details}"


def find_placement(stage: Stage, memory: int, min_processes: int = 1) -> Placement | None:
    """Return the placement on the fewest devices of `memory` bytes, in powers of two, with the mildest settings.

    Returns None if `MOST_DEVICES` devices are not sufficient.

    Args:
        min_processes: lower bound of the number of devices, if known.
    """
    card = Device("card", memory, cuda=True)
    single = registry.settings_class("sharding", "none")()
    alone = dataclasses.replace(stage, config=stage.config.replace(sharding=single))
    by_block: Placement | None = None
    for written in _written(alone, min_processes):
        # the stage already fits fewer devices, sampled by block
        if by_block and written["sharding.processes"] != by_block.plan.processes:
            break
        try:
            candidate = changed(alone, written)
        except ConfigError:  # the settings contradict each other
            continue
        fitted, plan = neutral_change(candidate, card)
        if plan is None:
            continue
        placement = Placement(written, fitted, plan)
        if not placement.samples_by_block:
            return placement
        by_block = by_block or placement  # slow, so other settings for the same number of devices are tried first
    return by_block


def _written(stage: Stage, min_processes: int) -> Iterator[Change]:
    """Yield settings to try: few devices before many, mild settings before strong ones."""
    frozen = has_frozen_models(stage)
    packs = bool(stage.config.model.lora.rank) and can_be_packed(stage)
    if min_processes == 1:
        yield {}
        if frozen:
            yield {WEIGHTS: "bfloat16"}
        if packs:
            yield {WEIGHTS: "nf4"}
        elif frozen:
            yield {WEIGHTS: "bfloat16", REFERENCE: "offload"}
    if not stage.config.algorithm.resources.distributed:
        return
    for sharding in sharding_changes(stage, MOST_DEVICES):
        if sharding["sharding.processes"] < min_processes:
            continue
        yield sharding
        if frozen:
            reward = {**sharding, REWARD_WEIGHTS: "bfloat16"}
            yield reward
            yield {**reward, REFERENCE: "sharded"}
        if packs:
            yield {**sharding, REWARD_WEIGHTS: "nf4", REFERENCE: "sharded"}
