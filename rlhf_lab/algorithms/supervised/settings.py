"""Settings of supervised fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.ranges import Ge
from rlhf_lab.core.types import Pair
from rlhf_lab.training.settings import SMALL, TrainingSettings
from rlhf_lab.training.stage_spec import Evidence, Inputs


@register("algorithm", "sft")
@dataclass(frozen=True)
class SFT(TrainingSettings):
    """Supervised fine-tuning on the chosen responses: causal LM loss on response tokens only.

    Args:
        assistant_turns: assistant turns that are learned: `last`, the response of a row, or `all` turns of its
            conversation. null is `all` if the data consists of conversations (`data=sft`), else `last`.
        skip_garbled: exclude responses that the data source marks as corrupted.
        only_correct: exclude responses that the data source marks as wrong.
        order: index of the random order of the rows. Runs from one policy in different orders are independent
            fine-tunings, whose weights can be averaged (`needs.soup`).
    """

    requires: ClassVar[Requirements] = (Capability.DEMONSTRATIONS,)
    inputs = Inputs(optional=("policy",))
    evidence = Evidence(loss_falls=True, answer="heldout_loss")
    by_size = replace(
        TrainingSettings.by_size,
        small_scale={
            **SMALL,
            "lr": 2e-2,
            "muon_lr": 1e-2,
            "epochs": 2.0,
            "batch_size": 16,
        },
    )
    keyed_if_set: ClassVar[tuple[str, ...]] = ("only_correct", "order")
    lr: float = 2e-5
    epochs: float = 3.0
    assistant_turns: Literal["last", "all"] | None = None
    skip_garbled: bool = True
    only_correct: bool = False
    order: Annotated[int, Ge(0)] = 0

    @property
    def trl_trainer(self) -> str:
        return "sft"

    def uses_row(self, pair: Pair) -> bool:
        if self.only_correct and not pair.meta.get("correct_chosen", True):
            return False
        if self.skip_garbled and pair.meta.get("garble_chosen"):
            return False
        return super().uses_row(pair)

    def learn_from(self, pair: Pair) -> int | None:
        """Return the index of the message from which on assistant turns are trained on; None for the response alone."""
        # The data may mark where its conversation starts; `all` also applies to data without such a mark.
        if self.assistant_turns == "last":
            return None
        come_as_conversation: int | None = pair.meta.get("learn_from")
        return 0 if self.assistant_turns == "all" and come_as_conversation is None else come_as_conversation
