"""Renderer of a speech corpus: decodes responses of a codec model to audio."""

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
"""Capacity of the cache in seconds of audio, or 115 MB of samples. The least recently used clips are dropped."""


class StreamRenderer:
    """Decoder of streams with a least-recently-used cache of clips.

    Args:
        codec: codec of the corpus.
        cached_seconds: capacity of the cache in seconds of audio.
    """

    def __init__(self, codec: Codec, cached_seconds: float = CACHED_SECONDS):
        self.codec = codec
        self.sizes: tuple[int, ...] = codec.sizes
        self._limit = cached_seconds
        self._cache: OrderedDict[str, Audio] = OrderedDict()
        self._cached_seconds = 0.0

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the codec."""
        return self.codec.fingerprint

    def require_model(self, config: Any) -> None:
        """Raise ConfigError if the policy uses a different codec than the data."""
        codec = getattr(config, "codec", "")
        if codec and codec != self.fingerprint:
            raise ConfigError(
                "the policy uses a different codec than the data (data.codebooks differs, or data=speech and "
                "data=espeak are mixed); use its training data, or train a policy on this data: +recipe=tts_sft"
            )

    def write(self, path: Path, audio: Audio) -> None:
        write_wav(path, audio)

    def render(self, responses: Sequence[str]) -> list[Audio]:
        """Decode the audio of each response. Without a valid stream of one or more frames, it has no samples."""
        # identical responses are decoded once
        audio = {}
        for response in dict.fromkeys(responses):
            audio[response] = self._cached(response)
        return [audio[response] for response in responses]

    def _cached(self, response: str) -> Audio:
        clip = self._cache.get(response)
        if clip is None:
            clip = self._cache[response] = self._decode(response)
            self._cached_seconds += _space(clip)
            # the new clip itself is never dropped, even if it exceeds the capacity
            while self._cached_seconds > self._limit and len(self._cache) > 1:
                self._cached_seconds -= _space(self._cache.popitem(last=False)[1])
        else:
            self._cache.move_to_end(response)
        return clip

    def _decode(self, response: str) -> Audio:
        try:
            samples = self.codec.decode(read_stream(response, len(self.sizes)))
        # an invalid stream is an expected result of a policy, not an error
        except ValueError:
            samples = np.zeros(0, dtype=np.float32)
        # all callers share the cached array, so nobody may modify it
        samples.flags.writeable = False
        return Audio(samples, self.codec.rate)


def _space(clip: Audio) -> float:
    """Return the size of a clip in the cache in seconds. The minimum of 0.1 s limits the number of invalid streams."""
    return max(clip.seconds, 0.1)
