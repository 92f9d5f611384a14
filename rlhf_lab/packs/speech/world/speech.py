"""The built-in speech world as an `Oracle`, and its corpus (`data=speech`). It needs no download.

Responses are streams of the world's codec (`packs/speech/sound/stream.py`): deliveries with or without a defect. The
simulated listener preferred the response `chosen`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from rlhf_lab.core.types import Corpus, Pair
from rlhf_lab.data.loading import sampled_splits, world_corpus
from rlhf_lab.packs.speech.sound.codec import Codec, StreamRenderer
from rlhf_lab.packs.speech.sound.voice_frames import Frames
from rlhf_lab.packs.speech.world import gold
from rlhf_lab.packs.speech.world.clip_world import ClipWorld, DeliveryT, UtteranceT
from rlhf_lab.packs.speech.world.delivery import Delivery, draw_delivery, perform
from rlhf_lab.packs.speech.world.prompts import CATEGORIES, NEW_VOICE, STYLES, Utterance, draw_utterance, read_prompt
from rlhf_lab.packs.speech.world.recogniser import phone_error, recognise
from rlhf_lab.packs.speech.world.settings import EspeakData, Speech

VERSION = 1
"""Version of the world; part of the fingerprint of a corpus. Increase it if the same settings give different streams or
grades."""

FITTED_CLIPS = 400
"""Number of training clips on which the codec is fitted. The clips are the same for all seeds, so that all worlds with
the same codebook sizes share a codec."""


class SpeechWorld(ClipWorld[Utterance, Delivery]):
    """Synthetic world of speech: short utterances as tokens of an audio codec."""

    categories = tuple(CATEGORIES)
    styles = tuple(STYLES)
    unheard_phone_error = 1.0

    def __init__(self, settings: Speech):
        super().__init__(settings)
        self.codec = fitted_codec(settings.codebooks)

    def read_prompt(self, prompt: str) -> Utterance:
        return read_prompt(prompt)

    def _draw(self, rng: np.random.Generator, split: str) -> tuple[Utterance, tuple[Delivery, Delivery]]:
        utterance = draw_utterance(rng, split, self.settings.test_voice)
        return utterance, (draw_delivery(rng, self.settings.good), draw_delivery(rng, self.settings.good))

    def _perform(self, utterance: Utterance, delivery: Delivery | None) -> Frames:
        return perform(utterance, delivery)

    def _judge(
        self, utterances: Sequence[Utterance], clips: Sequence[Frames], shares: Sequence[Mapping[str, float]]
    ) -> list[tuple[float, float]]:
        phones = recognise(clips, [utterance.speaker for utterance in utterances])
        judged = []
        for utterance, recognised, own_totals in zip(utterances, phones, shares, strict=True):
            error = phone_error(utterance.phones, recognised)
            judged.append((gold.gold(own_totals, error), error))
        return judged


@lru_cache(maxsize=8)
def fitted_codec(sizes: tuple[int, ...]) -> Codec:
    """Fit the codec that all worlds with these codebook sizes share, on clips of the training split."""
    # a fixed seed: all worlds with these sizes must share the codec
    rng = np.random.default_rng(0)
    clips = []
    for _ in range(FITTED_CLIPS):
        utterance = draw_utterance(rng, "train")
        clips.append(perform(utterance, draw_delivery(rng, 0.5)))
    return Codec.fit(clips, sizes, seed=0)


def build(settings: Speech) -> Corpus:
    """Generate the corpus of a speech world. `oracle` is the `SpeechWorld`; `renderer` decodes with its codec."""
    return draw_corpus("speech", SpeechWorld(settings), settings, f"speech world {VERSION}")


def draw_corpus(
    name: str, world: ClipWorld[UtteranceT, DeliveryT], settings: Speech | EspeakData, described: str
) -> Corpus:
    """Generate the corpus of a world of clips; its fingerprint depends on the versions in `described`."""
    sizes = settings.train_pairs, settings.test_pairs
    pairs, report = sampled_splits(world.sample, settings, sizes, statistics)
    metadata: dict[str, dict[str, str]] = {}
    for split, rows in pairs.items():
        metadata |= {pair.prompt: world.read_prompt(pair.prompt).metadata() for pair in rows}
        new_voice = [metadata[pair.prompt]["category"] == NEW_VOICE for pair in rows]
        report[split].statistics["share with the held-out voice"] = float(np.mean(new_voice))
    # versions, codec, settings and pairs determine the corpus
    described = f"{described} {world.codec.fingerprint}"
    renderer = StreamRenderer(world.codec)
    return world_corpus(name, described, settings, pairs, report, oracle=world, metadata=metadata, renderer=renderer)


def statistics(pairs: Sequence[Pair]) -> dict[str, float]:
    """Return statistics of the pairs of a split: fractions, 0…1, and means. Unknown values (NaN) are omitted."""
    metas = [pair.meta for pair in pairs]
    p_chosen = np.array([meta["p_chosen"] for meta in metas])

    def mean(values: Iterable[float]) -> float:
        return float(np.mean(list(values)))

    values = {
        "share of clips without a defect": mean(
            (meta["defect_chosen"] == "") / 2 + (meta["defect_rejected"] == "") / 2 for meta in metas
        ),
        "gold mean, chosen": mean(meta["gold_chosen"] for meta in metas),
        "gold mean, rejected": mean(meta["gold_rejected"] for meta in metas),
        "listener agrees with gold": mean(meta["gold_chosen"] > meta["gold_rejected"] for meta in metas),
        "ideal accuracy": float(np.maximum(p_chosen, 1 - p_chosen).mean()),
        "phone error, chosen": mean(meta["phone_error_chosen"] for meta in metas),
        "seconds, chosen": mean(meta["audio_seconds_chosen"] for meta in metas),
        "seconds, rejected": mean(meta["audio_seconds_rejected"] for meta in metas),
    }
    return {name: value for name, value in values.items() if not np.isnan(value)}
