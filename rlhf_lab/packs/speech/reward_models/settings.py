"""Settings of stages that listen to clips: acoustic reward models, and the guard's recogniser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, ClassVar

from rlhf_lab.config import schema
from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.errors import ConfigError, Rule
from rlhf_lab.core.ranges import Distinct, Ge, Gt, Lt, NotEmpty
from rlhf_lab.core.user_code import files_behind, names_object
from rlhf_lab.models.model_files import model_identity
from rlhf_lab.packs.speech.rewards.settings import FEATURES, HAND_WEIGHTS
from rlhf_lab.training.settings import Held, StageSettings

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config

SETS = ("all", "five", "validated", "hand")
"""Sets of features that have a name."""


@dataclass(frozen=True)
class ListeningStage(StageSettings):
    """A stage that listens to the clips of preference pairs and holds no language model."""

    requires: ClassVar[Requirements] = (Capability.AUDIO, Capability.PAIRS, Capability.SINGLE_TURN)
    makes_model: ClassVar[bool] = False
    compares_policies: ClassVar[bool] = False
    shares_work: ClassVar[bool] = False

    def held(self, *, adapter: bool) -> list[Held]:
        return []


@dataclass(frozen=True)
class PairwiseReward(ListeningStage):
    """A reward model of clips, trained on pairs by −log σ(r_chosen − r_rejected) with AdamW and a cosine schedule.

    The true reward never enters training. It validates: the rank correlation of every feature, and of the model, with
    it on held-out clips.

    Args:
        max_pairs: most training pairs, the first ones; a smaller number lies within a larger one. 0 is all.
        heldout_pairs: most held-out pairs, the first ones.
        epochs: passes over the pairs.
        batch_size: pairs per step.
        lr: peak learning rate.
        weight_decay: decoupled, on all weights.
        mos: who says how natural held-out clips are, in place of the true reward: FILE.py:FUNCTION of a list of `Audio`
            that returns a number for each, such as a predictor of mean opinion scores. Empty: the true reward where
            the data have one, else columns `mos_chosen` and `mos_rejected` of the pairs, else nobody.
    """

    chance_metric: ClassVar[str] = "accuracy"
    answer: ClassVar[str] = "pair_ranking"
    max_pairs: Annotated[int, Ge(0, hint="0 is all")] = 1500
    heldout_pairs: Annotated[int, Ge(2)] = 500
    epochs: Annotated[float, Gt(0)] = 30.0
    batch_size: Annotated[int, Ge(1)] = 32
    lr: Annotated[float, Gt(0)] = 1e-2
    weight_decay: Annotated[float, Ge(0)] = 1e-2
    mos: str = ""

    def contents(self) -> dict[str, str]:
        return {"mos": digest_of_code(self.mos)} if self.mos else {}

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (not self.mos or names_object(self.mos), f"mos={self.mos}; write FILE.py:FUNCTION"),
        )


@register("algorithm", "acoustic_reward")
@dataclass(frozen=True)
class AcousticReward(PairwiseReward):
    """Acoustic reward model: a small network on features of the decoded clip, for `reward=acoustic_rm`.

    Writes acoustic_reward.json and acoustic_reward.safetensors. Beside the model it measures what each feature is
    worth: its rank correlation with the truth, and the held-out accuracy that is lost without it.

    Args:
        features: what the model reads: a list of names, `all` seven, the `five` with a hand weight, or those that are
            `validated`: |ρ| with the truth at least `min_spearman` on training clips. `hand` is no trained model but
            the hand-weighted sum of the five, to compare with.
        min_spearman: least |Spearman ρ| with the truth of a feature that counts as validated.
        hidden: units between features and score; 0 is a linear model.
    """

    smoke: ClassVar[dict[str, float]] = {"max_pairs": 200, "heldout_pairs": 60}
    smoke_real: ClassVar[dict[str, float]] = {"max_pairs": 16, "heldout_pairs": 8}
    features: str | Annotated[tuple[str, ...], NotEmpty(), Distinct()] = "all"
    min_spearman: Annotated[float, Ge(0), Lt(1)] = 0.10
    hidden: Annotated[int, Ge(0, hint="0 is a linear model")] = 8

    @property
    def named_features(self) -> Sequence[str] | None:
        """The features that the model reads; None where the data decide."""
        if not isinstance(self.features, str):
            return self.features
        return {"all": FEATURES, "five": tuple(HAND_WEIGHTS), "hand": tuple(HAND_WEIGHTS)}.get(self.features)

    def contradictions(self, config: Config) -> list[str]:
        if self.features != "validated" or self.mos or Capability.TRUE_REWARD in config.data.capabilities:
            return []
        return [
            "algorithm.features=validated compares features with the truth, and these data have none; name a predictor "
            "of opinion scores, algorithm.mos=FILE.py:FUNCTION, or features: algorithm.features=all"
        ]

    def rules(self) -> tuple[Rule, ...]:
        names = () if isinstance(self.features, str) else self.features
        known_set = not isinstance(self.features, str) or self.features in SETS
        return (
            *super().rules(),
            (
                known_set,
                f"features={self.features} is none of {', '.join(SETS)}; write one of them, or a list of names",
            ),
            schema.only_known("features", names, FEATURES),
        )


@register("algorithm", "wav2vec2_reward")
@dataclass(frozen=True)
class Wav2Vec2Reward(PairwiseReward):
    """Reward model on the waveform: a Wav2Vec2 trunk (arXiv:2006.11477) and a scalar head, for `reward=wav2vec2`.

    Nothing is written before training is complete: an interrupted stage starts over.

    Args:
        trunk: folder or hub id of a Wav2Vec2 model, such as facebook/wav2vec2-base; empty is a small one that starts
            at random, for tests of the way and not of the result.
        frozen: train the head alone.
        head_lr: peak learning rate of the head; `lr` is the trunk's.
        batch_seconds: audio per forward pass where no gradient is needed.
    """

    smoke: ClassVar[dict[str, float]] = {"max_pairs": 32, "heldout_pairs": 16, "epochs": 1.0}
    smoke_real: ClassVar[dict[str, float]] = {"max_pairs": 8, "heldout_pairs": 4, "epochs": 1.0}
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
    """The recogniser of the intelligibility guard (`reward=intelligibility`), fitted on training clips and their text.

    It listens to decoded audio and knows neither codes nor the voice, so that it shares nothing with the recogniser by
    which a speech world measures phone errors.

    Args:
        max_clips: most training clips, the chosen ones of the first pairs. 0 is all.
        heldout_pairs: most held-out pairs, the first ones, on which its errors are measured.
    """

    requires: ClassVar[Requirements] = (*ListeningStage.requires, Capability.PHONES)
    answer: ClassVar[str] = "phones_heard"
    smoke: ClassVar[dict[str, float]] = {"max_clips": 200, "heldout_pairs": 60}
    smoke_real: ClassVar[dict[str, float]] = {"max_clips": 16, "heldout_pairs": 8}
    max_clips: Annotated[int, Ge(0, hint="0 is all")] = 1000
    heldout_pairs: Annotated[int, Ge(2)] = 300


def digest_of_code(function: str) -> str:
    """A digest of the file that FILE.py:FUNCTION names and of its neighbours. Raises ConfigError without a file."""
    files = files_behind(function)
    if not files:
        raise ConfigError(f"algorithm.mos={function}: there is no such file")
    return sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:16]
