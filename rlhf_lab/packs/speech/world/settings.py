"""Settings of data whose replies are clips (`data=speech`, espeak)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import Ge, Le
from rlhf_lab.data.settings import WorldSettings


@dataclass(frozen=True)
class ClipSettings(WorldSettings):
    """Data whose replies are clips in a codec's codes. A pair is two ways to say the same, and which of them a
    simulated listener preferred.

    Args:
        train_pairs, test_pairs: pairs per split; what is said in one split is never said in the other.
        test_voice: share of the test prompts with a voice that was never in training, 0…1; a category of its own.
        good: share of clips without a defect, 0…1.
        codebooks: codes of each of the codec's four codebooks (envelope, pitch, energy × aperiodicity, residual), each
            8…64, the third a multiple of 4 from 16 on.
        temperature: noise of the listener, in gold points; 0 always takes the better side.
    """

    provides: ClassVar[Capability] = (
        Capability.AUDIO | Capability.PAIRS | Capability.DEMONSTRATIONS | Capability.TRUE_REWARD
    )
    smoke_real: ClassVar[dict[str, int]] = {"train_pairs": 16, "test_pairs": 16}
    train_pairs: Annotated[int, Ge(1)] = 4000
    test_pairs: Annotated[int, Ge(1)] = 500
    test_voice: Annotated[float, Ge(0), Le(1)] = 0.25
    good: Annotated[float, Ge(0), Le(1)] = 0.25
    codebooks: tuple[Annotated[int, Ge(8), Le(64)], ...] = (64, 64, 64, 64)
    temperature: Annotated[float, Ge(0, hint="0 is a noiseless listener")] = 0.5

    def rules(self) -> tuple[Rule, ...]:
        sizes = self.codebooks
        return (
            *super().rules(),
            (
                len(sizes) == 4 and sizes[2] % 4 == 0 and sizes[2] >= 16,
                f"codebooks={list(sizes)}; write four numbers, the third a multiple of 4 from 16 on",
            ),
        )


@register("data", "speech")
@dataclass(frozen=True)
class Speech(ClipSettings):
    """The embedded speech world: short made-up utterances as streams of a codec, whose true naturalness is known."""

    world: ClassVar[str] = "rlhf_lab.packs.speech.world.world"
    provides: ClassVar[Capability] = ClipSettings.provides | Capability.PHONES
    smoke: ClassVar[dict[str, int]] = {"train_pairs": 600, "test_pairs": 100}


@register("data", "espeak")
@dataclass(frozen=True)
class Espeak(ClipSettings):
    """English sentences that the program espeak-ng says, as streams of a codec; the truth is about prosody alone.

    Args:
        train_pairs, test_pairs: pairs per split, of 24 texts in training and 6 others held out.
    """

    world: ClassVar[str] = "rlhf_lab.packs.speech.world.english_world"
    smoke: ClassVar[dict[str, int]] = {"train_pairs": 300, "test_pairs": 100}
    train_pairs: int = 800
    test_pairs: int = 200
