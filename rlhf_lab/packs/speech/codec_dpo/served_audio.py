"""Clips of a worker as responses of the run's data, so that the reward graph and the world score them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlhf_lab.core.episodes import Episode, Segment
from rlhf_lab.core.media import Audio, Renderer
from rlhf_lab.core.types import Corpus
from rlhf_lab.packs.speech.parler.client import SpokenClip
from rlhf_lab.packs.speech.sound.audio import RATE, resample_polyphase, write_wav
from rlhf_lab.packs.speech.sound.stream import write_stream


class ServedAudio:
    """Renderer of clips that a worker has decoded. Other responses are rendered by the renderer of the data.

    Args:
        sizes: number of codes of each codebook of the worker's model.
        of_data: renderer of the data, which decodes the clips of its pairs.
    """

    def __init__(self, sizes: tuple[int, ...], of_data: Renderer):
        self.sizes = sizes
        self.of_data = of_data
        self._audio: dict[str, Audio] = {}

    @property
    def fingerprint(self) -> str:
        return self.of_data.fingerprint

    def require_model(self, config: Any) -> None:
        self.of_data.require_model(config)

    def write(self, path: Path, audio: Audio) -> None:
        write_wav(path, audio)

    def keep(self, responses: Sequence[str], audio: Sequence[Audio]) -> None:
        """Keep the audio of these responses instead of that of earlier ones, at the rate that rewards expect."""
        self._audio = {}
        for response, clip in zip(responses, audio, strict=True):
            samples_N = clip.samples_N if clip.rate == RATE else resample_polyphase(clip.samples_N, clip.rate, RATE)
            self._audio[response] = Audio(samples_N, RATE)

    def render(self, responses: Sequence[str]) -> list[Audio]:
        """Return the audio of each response."""
        others = [response for response in responses if response not in self._audio]
        rendered = dict(zip(others, self.of_data.render(others), strict=True)) if others else {}
        return [self._audio.get(response) or rendered[response] for response in responses]


def episodes_of(corpus: Corpus, prompts: Sequence[str], clips: Sequence[SpokenClip]) -> list[Episode]:
    """Return clips as episodes whose response is the stream of their codes. A token is a code, or the end of a clip."""
    episodes = []
    for prompt, clip in zip(prompts, clips, strict=True):
        tokens = [*clip.codes_TK.flatten().tolist(), *([-1] if clip.is_finished else [])]
        logps = [*clip.logps_TK.flatten().tolist(), *([clip.end_logp] if clip.is_finished else [])]
        episodes.append(
            Episode(
                corpus.task(prompt),
                prompt,
                write_stream(clip.codes_TK),
                segments=(Segment(tokens, sampled=True, logps=logps),),
                finished=clip.is_finished,
            )
        )
    return episodes
