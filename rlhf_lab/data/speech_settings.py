"""Settings of data whose replies are clips (`data=speech`, espeak)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability
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
    train_pairs: int = 4000
    test_pairs: int = 500
    test_voice: float = 0.25
    good: float = 0.25
    codebooks: tuple[int, ...] = (64, 64, 64, 64)
    temperature: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("train_pairs", "test_pairs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}; at least 1 pair is needed")
        for name in ("test_voice", "good"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} is a share, 0…1")
        sizes = self.codebooks
        if len(sizes) != 4 or not all(8 <= size <= 64 for size in sizes) or sizes[2] % 4 or sizes[2] < 16:
            raise ValueError(
                f"codebooks={list(sizes)}; write four numbers, each 8…64, the third a multiple of 4 from 16 on"
            )
        if self.temperature < 0:
            raise ValueError(f"temperature={self.temperature} is negative; 0 is a noiseless listener")


@register("data", "speech")
@dataclass(frozen=True)
class Speech(ClipSettings):
    """The embedded speech world: short made-up utterances as streams of a codec, whose true naturalness is known."""

    provides: ClassVar[Capability] = ClipSettings.provides | Capability.PHONES
    smoke: ClassVar[dict[str, int]] = {"train_pairs": 600, "test_pairs": 100}


@register("data", "espeak")
@dataclass(frozen=True)
class Espeak(ClipSettings):
    """English sentences that the program espeak-ng says, as streams of a codec; the truth is about prosody alone.

    Args:
        train_pairs, test_pairs: pairs per split, of 24 texts in training and 6 others held out.
    """

    smoke: ClassVar[dict[str, int]] = {"train_pairs": 300, "test_pairs": 100}
    train_pairs: int = 800
    test_pairs: int = 200
