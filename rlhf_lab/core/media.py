"""Replies that are no text: what a reply written as code words sounds like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rlhf_lab.core.arrays import SampleArray


@dataclass(frozen=True)
class Audio:
    """One channel of sound.

    Attributes:
        samples_N: float32, −1…1.
        rate: samples a second.
    """

    samples_N: SampleArray
    rate: int

    @property
    def seconds(self) -> float:
        return len(self.samples_N) / self.rate


class Renderer(Protocol):
    """Turns replies into what they stand for: the streams of a codec of a pack into audio.

    Attributes:
        sizes: codes of each codebook, coarsest first.
        fingerprint: of the codec.
    """

    sizes: tuple[int, ...]

    @property
    def fingerprint(self) -> str: ...

    def require_model(self, config: Any) -> None:
        """Raise ConfigError where a policy with this config was trained for another renderer."""
        ...

    def write(self, path: Path, audio: Audio) -> None:
        """Write audio to a file that a browser plays."""
        ...

    def render(self, responses: Sequence[str]) -> list[Audio]:
        """The audio of each reply; what is no stream, or has no whole frame, is audio without samples."""
        ...
