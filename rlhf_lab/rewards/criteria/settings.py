"""Settings of the term that scores with whatever a reward design has made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Requirements
from rlhf_lab.rewards.term import TermSettings


@register("reward", "design")
@dataclass(frozen=True)
class Design(TermSettings):
    """What a step of a reward design made, in `needs.design`: criteria with weights (`algorithm=criteria_reward`), or
    a model that learned from pairs (`reward_model`; of clips `acoustic_reward`). One term, so that a study can compare
    them.
    """

    needs_role: ClassVar[str | None] = "design"
    requires: ClassVar[Requirements] = ()  # designs are made for text and for clips
    reads_folder: ClassVar[bool] = True
