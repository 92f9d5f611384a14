"""Settings of the stage that generates preference pairs of clips. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from rlhf_lab.config.registry import kind_of, register
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.ranges import BySize, Ge
from rlhf_lab.packs.speech.world.settings import ClipSettings
from rlhf_lab.training.settings import StageSettings
from rlhf_lab.training.stage_spec import Evidence, Inputs, ModelCopies, Outputs, Resources, RewardUse

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config
    from rlhf_lab.training.run_settings import Evaluation


@register("algorithm", "tts_preferences")
@dataclass(frozen=True)
class TTSPreferences(StageSettings):
    """Preference pairs of clips of `needs.policy`: the clips of a prompt are ranked by the reward of the run.

    The prompts are sentences of all categories, each in all styles. The best and the worst clip of a prompt become a
    pair. The pairs are training data for `needs.corpus`. An interrupted stage starts again.

    Args:
        texts_per_category: number of sentences of each category, which are all spoken in all styles; 5 are 30 sentences
            and 180 prompts in the speech world. They are sampled from the training split. `data=espeak` has 4.
        samples: number of clips per prompt.
    """

    requires: ClassVar[Requirements] = (Capability.AUDIO, Capability.SINGLE_TURN)
    inputs = Inputs(sections=("model", "rollout", "reward"), needs=("policy",), optional=("reward",))
    outputs = Outputs(model=False, rows="pairs")
    reward_use = RewardUse(scores=True)
    resources = Resources(distributed=False)
    evidence = Evidence(compares_policies=False, answer="preference_clips")
    by_size = BySize(smoke={"texts_per_category": 1})
    texts_per_category: Annotated[int, Ge(1)] = 5
    samples: Annotated[int, Ge(2, hint="the best and the worst clip make a pair")] = 4

    def contradictions(self, config: Config) -> list[str]:
        problems = super().contradictions(config)
        limit = config.data.texts_per_category if isinstance(config.data, ClipSettings) else None
        if limit is not None and self.texts_per_category > limit:
            problems.append(
                f"algorithm.texts_per_category={self.texts_per_category}: data={kind_of('data', config.data)} has "
                f"{limit} training texts of each category; set algorithm.texts_per_category={limit}"
            )
        return problems

    def model_copies(self, *, adapter: bool) -> list[ModelCopies]:
        return [ModelCopies("policy (samples)")]

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        return [(batch_rows, self.samples)]
