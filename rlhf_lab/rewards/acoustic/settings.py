"""Settings of rewards that listen to what a reply decodes to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.errors import require
from rlhf_lab.rewards.term import TermSettings

HAND_WEIGHTS = {
    "pitch_sd": 0.30,
    "hnr": 0.25,
    "voiced_fraction": 0.20,
    "energy_dynamics": 0.15,
    "mfcc_stability": 0.10,
}
"""Where a search for weights starts: more pitch movement, less noise, more voice, more dynamics, steadier sounds."""
FEATURES = (*HAND_WEIGHTS, "spectral_centroid", "silence_fraction")
"""Names of all features, in the order of `speech.features.NAMES`; written here, because that module needs SciPy."""
SILENT = -3.0
"""Score of a clip in which nothing sounds; those of the learned models have mean 0 and sd 1 on training clips."""


@dataclass(frozen=True)
class Listening(TermSettings):
    """Common to terms that judge the sound of a clip, whatever it says.

    Args:
        silent: score of a reply that is no stream, has no whole frame, or in which no frame sounds. It is stated and
            not left unscored, because training ignores an unscored reply, and silence would then be a way out.
    """

    requires: ClassVar[Requirements] = (Capability.AUDIO,)
    silent: float = SILENT

    def __post_init__(self) -> None:
        super().__post_init__()
        require((math.isfinite(self.silent), f"silent={self.silent}; write a finite number"))


@register("reward", "acoustic")
@dataclass(frozen=True)
class HandWeighted(Listening):
    """A hand-weighted sum of acoustic features, each standardised on clips of the training data.

    A clip without a voiced frame has the lowest pitch movement and HNR that a clip can have
    (`speech.features.Feature.if_undefined`), and one in which nothing sounds is worth `silent`.

    Args:
        weights: feature → weight, negative for what is unwanted; a feature that is not named has 0.
        clips: of the training data, on which features are standardised; both replies of the first pairs.
    """

    weights: dict[str, float] = field(default_factory=lambda: dict(HAND_WEIGHTS))
    clips: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            *weight_rules(self.weights),
            (self.clips >= 2, f"clips={self.clips}; a standard deviation needs 2 or more"),
        )


@register("reward", "acoustic_rm")
@dataclass(frozen=True)
class AcousticModel(Listening):
    """The acoustic reward model in `needs.acoustic_rm` (`algorithm=acoustic_reward`): a small network on features.

    Its scores have mean 0 and standard deviation 1 on the clips that it was trained on.
    """

    needs_role: ClassVar[str | None] = "acoustic_rm"
    reads_folder: ClassVar[bool] = True


@register("reward", "wav2vec2")
@dataclass(frozen=True)
class SpeechEncoder(Listening):
    """The reward model in `needs.wav2vec2` (`algorithm=wav2vec2_reward`): a scalar head on a Wav2Vec2 trunk.

    Its scores have mean 0 and standard deviation 1 on the clips that it was trained on.

    Args:
        batch_seconds: audio per forward pass.
    """

    needs_role: ClassVar[str | None] = "wav2vec2"
    reads_folder: ClassVar[bool] = True
    batch_seconds: float = 60.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require((self.batch_seconds > 0, f"batch_seconds={self.batch_seconds} must be above 0"))


@register("reward", "intelligibility")
@dataclass(frozen=True)
class Intelligibility(TermSettings):
    """The guard: −phone error rate of a recogniser that listens to the decoded audio (`needs.recogniser`).

    The recogniser is trained by `algorithm=recogniser` on clips of the training data and has nothing in common with
    the one by which the speech world measures its phone errors. 0 is a clip that says what was asked; a clip in which
    nothing sounds has −1.

    Args:
        floor: the gate. A reply whose value is below it is worth `below` in place of the whole reward, whatever its
            other terms say; −.5 refuses clips half of whose phones are wrong. None: no gate. With `weight=0` the term
            is a gate and nothing else.
        below: the reward of a refused reply, before temperature and bounds.
    """

    needs_role: ClassVar[str | None] = "recogniser"
    reads_folder: ClassVar[bool] = True
    requires: ClassVar[Requirements] = (Capability.AUDIO, Capability.PHONES)
    floor: float | None = None
    below: float = -3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            (self.floor is None or self.floor <= 0, f"floor={self.floor} is a negative phone error rate; write -0.5"),
            (math.isfinite(self.below), f"below={self.below}; write a finite number"),
        )


def weight_rules(weights: Mapping[str, float]) -> tuple[tuple[bool, str], ...]:
    """Rules of hand weights: known features, finite numbers, not all 0."""
    unknown = [name for name in weights if name not in FEATURES]
    return (
        (not unknown, f"weights: {', '.join(unknown)} is not one of {', '.join(FEATURES)}"),
        (all(map(math.isfinite, weights.values())), f"weights={weights}; write finite numbers"),
        (any(weights.values()), f"weights={weights} are all 0; give one feature a weight"),
    )
