"""Responses that are not text: the audio of a response written as codec tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rlhf_lab.core.arrays import SampleArray


@dataclass(frozen=True)
class Audio:
    """Mono audio.

    Attributes:
        samples_N: samples as float32 in −1…1, (N,).
        rate: samples per second.
    """

    samples_N: SampleArray
    rate: int

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return len(self.samples_N) / self.rate


class Renderer(Protocol):
    """Converter from responses to the media they encode, e.g. from the token streams of a pack's codec to audio.

    Attributes:
        sizes: number of codes in each codebook, coarsest first.
        fingerprint: fingerprint of the codec.
    """

    sizes: tuple[int, ...]

    @property
    def fingerprint(self) -> str: ...

    def require_model(self, config: Any) -> None:
        """Raise ConfigError if a policy with this config was trained for another renderer."""
        ...

    def write(self, path: Path, audio: Audio) -> None:
        """Write audio to a file in a format that browsers play."""
        ...

    def render(self, responses: Sequence[str]) -> list[Audio]:
        """Return the audio of each response. An invalid stream, or one without a complete frame, has no samples."""
        ...
