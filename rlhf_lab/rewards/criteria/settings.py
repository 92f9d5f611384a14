"""Settings of the term that scores with the result of a reward design."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Requirements
from rlhf_lab.rewards.term import TermSettings


@register("reward", "design")
@dataclass(frozen=True)
class Design(TermSettings):
    """Score by the result of a reward-design step in `needs.design`.

    It is a weighted sum of criteria (`algorithm=criteria_reward`), or a model trained on pairs (`reward_model`,
    or `acoustic_reward` for audio clips). One term handles all of them, so that a study can compare them.
    """

    needs_role: ClassVar[str | None] = "design"
    requires: ClassVar[Requirements] = ()  # a design may score text or audio
    reads_run_dir: ClassVar[bool] = True
