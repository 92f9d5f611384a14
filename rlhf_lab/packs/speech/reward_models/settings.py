"""Settings of stages that work on clips: reward models of clips, and the recogniser for `reward=intelligibility`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, ClassVar

from rlhf_lab.config import schema
from rlhf_lab.config.registry import kind_of, register
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.errors import ConfigError, Rule
from rlhf_lab.core.ranges import BySize, Distinct, Ge, Gt, Lt, NotEmpty
from rlhf_lab.core.user_code import files_behind, names_object
from rlhf_lab.models.model_files import model_identity
from rlhf_lab.packs.speech.rewards.settings import DNSMOS, FEATURES, HAND_WEIGHTS
from rlhf_lab.packs.speech.world.settings import ClipSettings
from rlhf_lab.training.settings import StageSettings
from rlhf_lab.training.stage_spec import Evidence, Inputs, ModelCopies, Outputs, Resources, RewardUse

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config
    from rlhf_lab.training.run_settings import Evaluation

SETS = ("all", "five", "validated", "hand")
"""Named sets of features."""


@dataclass(frozen=True)
class ListeningStage(StageSettings):
    """Settings of a stage that works on the clips of preference pairs and loads no language model."""

    requires: ClassVar[Requirements] = (Capability.AUDIO, Capability.PAIRS, Capability.SINGLE_TURN)
    outputs = Outputs(model=False)
    resources = Resources(distributed=False)
    evidence = Evidence(compares_policies=False)

    def model_copies(self, *, adapter: bool) -> list[ModelCopies]:
        return []


@dataclass(frozen=True)
class PairwiseReward(ListeningStage):
    """Settings of a reward model of clips, trained on pairs with −log σ(r_chosen − r_rejected), AdamW and cosine decay.

    The true reward is not used in training. It only validates the model: by the rank correlation of each feature and of
    the model with the true reward on held-out clips.

    Args:
        max_pairs: maximum number of training pairs, taken from the start of the data; 0 means all.
        heldout_pairs: maximum number of held-out pairs, taken from the start of the data.
        epochs: number of epochs over the pairs.
        batch_size: number of pairs per step.
        lr: peak learning rate.
        weight_decay: decoupled weight decay of all weights.
        mos: predictor of mean opinion scores that replaces the true reward: `dnsmos` (arXiv:2010.15258, `pip install
            'rlhf_lab[speech]'`), or FILE.py:FUNCTION, which gets a list of `Audio` and returns a number for each. If
            empty, the true reward of the data is used, or else the columns `mos_chosen` and `mos_rejected` of the
            pairs.
    """

    evidence = replace(ListeningStage.evidence, chance_metric="accuracy", answer="pair_ranking")
    max_pairs: Annotated[int, Ge(0, hint="0 is all")] = 1500
    heldout_pairs: Annotated[int, Ge(2)] = 500
    epochs: Annotated[float, Gt(0)] = 30.0
    batch_size: Annotated[int, Ge(1)] = 32
    lr: Annotated[float, Gt(0)] = 1e-2
    weight_decay: Annotated[float, Ge(0)] = 1e-2
    mos: str = ""

    def contents(self) -> dict[str, str]:
        if not self.mos or self.mos == DNSMOS:
            return {}
        files = files_behind(self.mos)
        if not files:
            raise ConfigError(f"algorithm.mos={self.mos}: the file does not exist; write FILE.py:FUNCTION")
        return {"mos": sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:16]}

    def rules(self) -> tuple[Rule, ...]:
        is_predictor = not self.mos or self.mos == DNSMOS or names_object(self.mos)
        message = f"mos={self.mos} is not dnsmos or a function; write FILE.py:FUNCTION"
        return (*super().rules(), (is_predictor, message))


@register("algorithm", "acoustic_reward")
@dataclass(frozen=True)
class AcousticReward(PairwiseReward):
    """Acoustic reward model: a small network on features of the decoded clip, for `reward=acoustic_rm`.

    Writes acoustic_reward.json and acoustic_reward.safetensors. It also evaluates each feature: its rank correlation
    with the true naturalness, and the held-out accuracy lost without it.

    Args:
        features: features that the model uses: a list of names, `all` seven, the `five` with a hand weight, or the
            `validated` ones. A feature is validated if its ρ with the truth on training clips is above
            `min_spearman`. `hand` trains no model, but uses the hand-weighted sum of the five as a baseline.
        min_spearman: Spearman's ρ with the truth that a validated feature must exceed. The sign counts: a feature that
            natural clips have less of is not kept.
        hidden: number of hidden units; 0 is a linear model.
    """

    by_size = BySize(smoke={"max_pairs": 200, "heldout_pairs": 60}, smoke_real={"max_pairs": 16, "heldout_pairs": 8})
    features: str | Annotated[tuple[str, ...], NotEmpty(), Distinct()] = "all"
    min_spearman: Annotated[float, Ge(0), Lt(1)] = 0.10
    hidden: Annotated[int, Ge(0, hint="0 is a linear model")] = 8

    @property
    def named_features(self) -> Sequence[str] | None:
        """Names of the features that the model uses; None if they depend on the data."""
        if not isinstance(self.features, str):
            return self.features
        return {"all": FEATURES, "five": tuple(HAND_WEIGHTS), "hand": tuple(HAND_WEIGHTS)}.get(self.features)

    def contradictions(self, config: Config) -> list[str]:
        # only `validated` needs the truth, which a predictor can replace
        if self.features != "validated" or self.mos or Capability.TRUE_REWARD in config.data.capabilities:
            return []
        return [
            "algorithm.features=validated compares features with the truth, but the data have none; set a predictor of "
            "opinion scores with algorithm.mos=dnsmos or algorithm.mos=FILE.py:FUNCTION, or name features, such as "
            "algorithm.features=all"
        ]

    def rules(self) -> tuple[Rule, ...]:
        if not isinstance(self.features, str):
            return (*super().rules(), schema.only_known("features", self.features, FEATURES))
        message = f"features={self.features} is not one of {', '.join(SETS)}; write one of these, or a list of names"
        return (*super().rules(), (self.features in SETS, message))


@register("algorithm", "wav2vec2_reward")
@dataclass(frozen=True)
class Wav2Vec2Reward(PairwiseReward):
    """Reward model on the waveform: a Wav2Vec2 trunk (arXiv:2006.11477) and a scalar head, for `reward=wav2vec2`.

    The stage writes nothing before training is complete. An interrupted stage starts again from the beginning.

    Args:
        trunk: directory or hub id of a Wav2Vec2 model, such as facebook/wav2vec2-base. If empty, a small model with
            random weights is used, which is only useful to test the pipeline.
        frozen: True to train only the head.
        head_lr: peak learning rate of the head; `lr` is the peak learning rate of the trunk.
        batch_seconds: seconds of audio per forward pass when no gradient is needed.
    """

    by_size = BySize(
        smoke={"max_pairs": 32, "heldout_pairs": 16, "epochs": 1.0},
        smoke_real={"max_pairs": 8, "heldout_pairs": 4, "epochs": 1.0},
    )
    epochs: float = 3.0
    batch_size: int = 8
    lr: float = 1e-5
    head_lr: Annotated[float, Gt(0)] = 1e-3
    trunk: str = ""
    frozen: bool = False
    batch_seconds: Annotated[float, Gt(0)] = 60.0

    def contents(self) -> dict[str, str]:
        return {**super().contents(), "trunk": model_identity(self.trunk) if self.trunk else ""}


@register("algorithm", "recogniser")
@dataclass(frozen=True)
class RecogniserStage(ListeningStage):
    """Phone recogniser for `reward=intelligibility`, fitted on training clips and their text.

    It uses only decoded audio, so it is independent of the recogniser of a speech world, which reads codes.

    Args:
        max_clips: maximum number of training clips, the chosen clips of the first pairs; 0 means all.
        heldout_pairs: maximum number of held-out pairs for measuring its errors, taken from the start of the data.
    """

    requires: ClassVar[Requirements] = (*ListeningStage.requires, Capability.PHONES)
    evidence = replace(ListeningStage.evidence, answer="recognised_phones")
    by_size = BySize(smoke={"max_clips": 200, "heldout_pairs": 60}, smoke_real={"max_clips": 16, "heldout_pairs": 8})
    max_clips: Annotated[int, Ge(0, hint="0 is all")] = 1000
    heldout_pairs: Annotated[int, Ge(2)] = 300


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
