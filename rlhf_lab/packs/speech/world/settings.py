"""Settings of data whose responses are clips (`data=speech`, `data=espeak`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import BySize, Ge, Le
from rlhf_lab.data.settings import WorldSettings


@dataclass(frozen=True)
class ClipSettings(WorldSettings):
    """Settings of data whose responses are clips in codec codes.

    A pair consists of two deliveries of the same utterance and the preference of a simulated listener.

    Args:
        train_pairs, test_pairs: number of pairs per split; the splits have no texts in common.
        test_voice: fraction of the test prompts with a voice that is never in training, 0…1; they have a separate
            category.
        good: fraction of clips without a defect, 0…1.
        codebooks: number of codes of each of the four codebooks (envelope, pitch, energy × aperiodicity, residual).
            Each is 8…64; the third is a multiple of 4 and 16 or more.
        temperature: noise of the listener in gold points; a listener with 0 always prefers the better clip.
    """

    provides: ClassVar[Capability] = (
        Capability.AUDIO | Capability.PAIRS | Capability.DEMONSTRATIONS | Capability.TRUE_REWARD
    )
    texts_per_category: ClassVar[int | None] = None
    """Number of training texts of each category; None if it is practically unlimited."""
    by_size = BySize(smoke_real={"train_pairs": 16, "test_pairs": 16})
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
                f"codebooks={list(sizes)} must be four numbers, the third a multiple of 4 and 16 or more",
            ),
        )


@register("data", "speech")
@dataclass(frozen=True)
class Speech(ClipSettings):
    """Built-in speech world: short synthetic utterances as codec streams, with known true naturalness."""

    world: ClassVar[str] = "rlhf_lab.packs.speech.world.speech"
    provides: ClassVar[Capability] = ClipSettings.provides | Capability.PHONES
    by_size = replace(ClipSettings.by_size, smoke={"train_pairs": 600, "test_pairs": 100})


@register("data", "espeak")
@dataclass(frozen=True)
class EspeakData(ClipSettings):
    """English sentences spoken by the program espeak-ng, as codec streams; the true reward only covers prosody.

    Args:
        train_pairs, test_pairs: number of pairs per split; training has 24 texts, and 6 other texts are held out.
    """

    world: ClassVar[str] = "rlhf_lab.packs.speech.world.espeak"
    texts_per_category: ClassVar[int | None] = 4
    by_size = replace(ClipSettings.by_size, smoke={"train_pairs": 300, "test_pairs": 100})
    train_pairs: int = 800
    test_pairs: int = 200
