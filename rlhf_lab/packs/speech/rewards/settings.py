"""Settings of reward terms on the decoded audio of a response."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from rlhf_lab.config import schema
from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import Finite, Ge, Gt, Le
from rlhf_lab.rewards.term import TermSettings

HAND_WEIGHTS = {"pitch_sd": 0.30, "hnr": 0.25, "voiced_fraction": 0.20, "energy_dynamics": 0.15, "mfcc_stability": 0.10}
"""Default weights of `reward=acoustic`, from which a search for better ones starts. They reward pitch movement, low
noise, voicing, dynamics and steady sounds."""
FEATURES = (*HAND_WEIGHTS, "spectral_centroid", "silence_fraction")
"""Names of all features in the order of `speech.features.NAMES`. They are repeated here because that module needs
SciPy."""
DNSMOS = "dnsmos"
"""Name of the predictor in dnsmos.py, as a reward term and as a value of `algorithm.mos`."""
DNSMOS_LIBRARIES = ("speechmos", "onnxruntime", "librosa")
"""Modules that the predictor imports."""
SILENT = -3.0
"""Score of a clip without a sounding frame. Scores of learned models have mean 0 and standard deviation 1 on training
clips."""


@dataclass(frozen=True)
class Listening(TermSettings):
    """Common settings of terms that score the sound of a clip, independent of its words.

    Args:
        silent: score of a response that is not a stream, has no complete frame, or has no sounding frame. These
            responses need a score: training ignores unscored responses, so a policy could avoid penalties by silence.
    """

    requires: ClassVar[Requirements] = (Capability.AUDIO,)
    silent: Annotated[float, Finite()] = SILENT


@register("reward", "acoustic")
@dataclass(frozen=True)
class HandWeighted(Listening):
    """Hand-weighted sum of acoustic features, each standardised on clips of the training data.

    A clip without a voiced frame gets the minimum pitch movement and HNR (`speech.features.Feature.if_undefined`). A
    clip without a sounding frame gets the score `silent`.

    Args:
        weights: weight of each feature by name, negative for undesirable features; unnamed features have weight 0.
        clips: number of training clips on which features are standardised: both responses of the first pairs.
    """

    weights: dict[str, Annotated[float, Finite()]] = field(default_factory=lambda: dict(HAND_WEIGHTS))
    clips: Annotated[int, Ge(2, hint="a standard deviation needs 2 or more")] = 512

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            schema.only_known("weights", self.weights, FEATURES),
            (any(self.weights.values()), f"weights={self.weights} are all 0; set the weight of one feature or more"),
        )


@register("reward", "acoustic_rm")
@dataclass(frozen=True)
class AcousticModel(Listening):
    """Acoustic reward model in `needs.acoustic_rm` (`algorithm=acoustic_reward`): a small network on features.

    Its scores have mean 0 and standard deviation 1 on its training clips.
    """

    needs_role: ClassVar[str | None] = "acoustic_rm"
    reads_run_dir: ClassVar[bool] = True


@register("reward", "wav2vec2")
@dataclass(frozen=True)
class SpeechEncoder(Listening):
    """Reward model in `needs.wav2vec2` (`algorithm=wav2vec2_reward`): a scalar head on a Wav2Vec2 trunk.

    Its scores have mean 0 and standard deviation 1 on its training clips.

    Args:
        batch_seconds: seconds of audio per forward pass.
    """

    needs_role: ClassVar[str | None] = "wav2vec2"
    reads_run_dir: ClassVar[bool] = True
    batch_seconds: Annotated[float, Gt(0)] = 60.0


@register("reward", DNSMOS)
@dataclass(frozen=True)
class OpinionScore(TermSettings):
    """Mean opinion score of the decoded clip, 1…5, predicted by DNSMOS (arXiv:2010.15258); 1 for a clip without sound.

    The network belongs to the extra `speech` (`pip install 'rlhf_lab[speech]'`).
    """

    requires: ClassVar[Requirements] = (Capability.AUDIO,)


@register("reward", "intelligibility")
@dataclass(frozen=True)
class IntelligibilityTerm(TermSettings):
    """Intelligibility: the negative phone error rate of the recogniser in `needs.recogniser` on the decoded audio.

    The value is 0 for a clip that says exactly the requested text, and −1 for a silent clip. The recogniser
    (`algorithm=recogniser`) is independent of the one that the speech world uses to measure phone errors.

    Args:
        floor: minimum value of a response. A response with a lower value gets the reward `below` instead of its full
            reward, regardless of its other terms; −0.5 rejects clips with more than half of the phones wrong. None
            disables the floor. With `weight=0` the term acts only as a floor.
        below: reward of a rejected response, before temperature and bounds.
    """

    needs_role: ClassVar[str | None] = "recogniser"
    reads_run_dir: ClassVar[bool] = True
    requires: ClassVar[Requirements] = (Capability.AUDIO, Capability.PHONES)
    floor: Annotated[float, Le(0, hint="it is a negative phone error rate, such as -0.5")] | None = None
    below: Annotated[float, Finite()] = -3.0
