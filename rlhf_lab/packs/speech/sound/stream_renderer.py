"""Replies of a codec model → audio: the `Renderer` of a corpus of speech."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.media import Audio
from rlhf_lab.packs.speech.sound.audio import write_wav
from rlhf_lab.packs.speech.sound.codec import Codec
from rlhf_lab.packs.speech.sound.stream import read_stream

CACHED_SECONDS = 1_800.0
"""Audio that is kept, most recent first: 115 MB of samples."""


class StreamRenderer:
    """Decodes streams, each distinct one once for as long as it is in the cache.

    Args:
        codec: of the corpus that the streams belong to.
        cached_seconds: audio that is kept.
    """

    def __init__(self, codec: Codec, cached_seconds: float = CACHED_SECONDS):
        self.codec = codec
        self.sizes: tuple[int, ...] = codec.sizes
        self._limit = cached_seconds
        self._cache: OrderedDict[str, Audio] = OrderedDict()
        self._cached_seconds = 0.0

    @property
    def fingerprint(self) -> str:
        """Of the codec."""
        return self.codec.fingerprint

    def require_model(self, config: Any) -> None:
        """Raise ConfigError where a policy says the codes of another codec than that of the data."""
        codec = getattr(config, "codec", "")
        if codec and codec != self.fingerprint:
            raise ConfigError(
                "the policy says the codes of another codec than the one of these data (data.codebooks, or data=speech "
                "against data=espeak); use the data that it was trained on, or train one on these: +recipe=tts_sft"
            )

    def write(self, path: Path, audio: Audio) -> None:
        write_wav(path, audio)

    def render(self, responses: Sequence[str]) -> list[Audio]:
        """The audio of each reply; what is no stream, or has no whole frame, is audio without samples."""
        audio = {}
        for response in dict.fromkeys(responses):
            audio[response] = self._cached(response)
        return [audio[response] for response in responses]

    def _cached(self, response: str) -> Audio:
        clip = self._cache.get(response)
        if clip is None:
            clip = self._cache[response] = self._decode(response)
            self._cached_seconds += _space(clip)
            while self._cached_seconds > self._limit and len(self._cache) > 1:
                self._cached_seconds -= _space(self._cache.popitem(last=False)[1])
        else:
            self._cache.move_to_end(response)
        return clip

    def _decode(self, response: str) -> Audio:
        try:
            samples = self.codec.decode(read_stream(response, len(self.sizes)))
        except ValueError:
            samples = np.zeros(0, dtype=np.float32)
        # the cache hands the same array to every caller
        samples.flags.writeable = False
        return Audio(samples, self.codec.rate)


def _space(clip: Audio) -> float:
    """What a clip takes of the cache, s; text that is no stream takes some as well."""
    return max(clip.seconds, 0.1)
