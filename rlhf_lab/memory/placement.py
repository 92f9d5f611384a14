"""The fewest devices that a stage fits with weights as they are: `model.weights`, then `runtime.fit`.

What is trained stays float32, so a stage that trains all parameters stores its frozen models in bfloat16, and one that
trains an adapter its base too, or in four bits. On several devices policies and references are divided from float32,
and only reward models are stored in less.
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
    """How a stage fits the fewest devices.

    Attributes:
        written: settings to write.
        fitted: settings that `runtime.fit` makes by itself.
        plan: of the stage with both.
    """

    written: Change
    fitted: Change
    plan: StagePlan

    @property
    def samples_by_block(self) -> bool:
        return BY_BLOCK.items() <= self.fitted.items()

    def text(self) -> str:
        """The devices, how the stage fits them, and the peak of one."""
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
        return f"{self.plan.processes}{sharding}: {', '.join([*words, size(self.plan.peak)])}"


def place(stage: Stage, memory: int, fewest: int = 1) -> Placement | None:
    """The fewest devices of `memory` bytes, in powers of two, and the mildest settings that fit them; None where
    `MOST_DEVICES` do not suffice.

    Args:
        fewest: how many are needed at least, where that is known.
    """
    card = Device("card", memory, cuda=True)
    single = registry.settings_class("sharding", "none")()
    alone = dataclasses.replace(stage, config=stage.config.replace(sharding=single))
    by_block: Placement | None = None
    for written in _written(alone, fewest):
        if by_block and written["sharding.processes"] != by_block.plan.processes:
            break
        try:
            candidate = changed(alone, written)
        except ConfigError:  # settings that do not go together
            continue
        fitted, plan = neutral_change(candidate, card)
        if plan is None:
            continue
        placement = Placement(written, fitted, plan)
        if not placement.samples_by_block:
            return placement
        by_block = by_block or placement  # slow: other settings for as many devices come first
    return by_block


def _written(stage: Stage, fewest: int) -> Iterator[Change]:
    """Settings to try: those for few devices before those for many, mild before strong."""
    frozen = has_frozen_models(stage)
    packs = bool(stage.config.model.lora.rank) and can_be_packed(stage)
    if fewest == 1:
        yield {}
        if frozen:
            yield {WEIGHTS: "bfloat16"}
        if packs:
            yield {WEIGHTS: "nf4"}
        elif frozen:
            yield {WEIGHTS: "bfloat16", REFERENCE: "offload"}
    if not stage.config.algorithm.shares_work:
        return
    for sharding in sharding_changes(stage, MOST_DEVICES):
        if sharding["sharding.processes"] < fewest:
            continue
        yield sharding
        if frozen:
            reward = {**sharding, REWARD_WEIGHTS: "bfloat16"}
            yield reward
            yield {**reward, REFERENCE: "sharded"}
        if packs:
            yield {**sharding, REWARD_WEIGHTS: "nf4", REFERENCE: "sharded"}
