"""Settings of rewards that listen to what a reply decodes to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from rlhf_lab.config import schema
from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import Finite, Ge, Gt, Le
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
    silent: Annotated[float, Finite()] = SILENT


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

    weights: dict[str, Annotated[float, Finite()]] = field(default_factory=lambda: dict(HAND_WEIGHTS))
    clips: Annotated[int, Ge(2, hint="a standard deviation needs 2 or more")] = 512

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            schema.only_known("weights", self.weights, FEATURES),
            (any(self.weights.values()), f"weights={self.weights} are all 0; give one feature a weight"),
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
    batch_seconds: Annotated[float, Gt(0)] = 60.0


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
    floor: Annotated[float, Le(0, hint="it is a negative phone error rate, such as -0.5")] | None = None
    below: Annotated[float, Finite()] = -3.0
