"""Search for the minimum number of devices on which a stage fits, with `model.weights` and then `runtime.fit`.

Trained weights stay float32. A stage that trains all parameters therefore stores only its frozen models in bfloat16. A
stage that trains an adapter also stores its base in bfloat16 or four bits. On several devices policies and references
are sharded in float32, and only reward models are stored in lower precision.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from rlhf_lab.config import registry
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.memory.device import Device
from rlhf_lab.memory.devices import MOST_DEVICES
from rlhf_lab.memory.fit import MICRO, Change, can_be_packed, changed, has_frozen_models, sharding_changes
from rlhf_lab.memory.neutral import BY_BLOCK, CHECKPOINTING, ROWS, neutral_change
from rlhf_lab.memory.plan import StagePlan
from rlhf_lab.memory.show import size
from rlhf_lab.stages.artifacts import Stage

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
        return BY_BLOCK.items() <= self.fitted.items()

    def text(self) -> str:
        """Return the number of devices, the settings, and the peak of one device as text."""
        words = []
        if WEIGHTS in self.written:
            words.append(str(self.written[WEIGHTS]))
        if REWARD_WEIGHTS in self.written:
            words.append(f"reward {self.written[REWARD_WEIGHTS]}")
        if REFERENCE in self.written:
            words.append(f"reference {self.written[REFERENCE]}")
        if self.samples_by_block:
            words.append("sampled by block")
        if ROWS in self.fitted:
            words.append(f"{self.fitted[ROWS]} rows")
        if MICRO in self.fitted:
            words.append(f"micro-batch {self.fitted[MICRO]}")
        if CHECKPOINTING in self.fitted:
            words.append("checkpointing")
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
