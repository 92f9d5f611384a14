"""Corpus of the built-in speech world (`data=speech`). It needs no download; see `packs/speech/world/`.

Responses are streams of the world's codec (`packs/speech/sound/stream.py`): deliveries with or without a defect. The
simulated listener preferred the response `chosen`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from rlhf_lab.core.types import Corpus, Pair
from rlhf_lab.data.loading import sampled_splits, world_corpus
from rlhf_lab.packs.speech.sound.stream_renderer import StreamRenderer
from rlhf_lab.packs.speech.world.clip_world import ClipWorld, DeliveryT, UtteranceT
from rlhf_lab.packs.speech.world.prompts import NEW_VOICE
from rlhf_lab.packs.speech.world.settings import EspeakData, Speech
from rlhf_lab.packs.speech.world.world import VERSION, SpeechWorld


def build(settings: Speech) -> Corpus:
    """Generate the corpus of a speech world. `oracle` is the `SpeechWorld`; `renderer` decodes with its codec."""
    train_seed, _ = settings.split_seeds()
    world = SpeechWorld(
        good=settings.good,
        new_voice=settings.test_voice,
        temperature=settings.temperature,
        sizes=settings.codebooks,
        seed=train_seed,
    )
    return draw_corpus("speech", world, settings, f"speech world {VERSION}")


def draw_corpus(
    name: str, world: ClipWorld[UtteranceT, DeliveryT], settings: Speech | EspeakData, described: str
) -> Corpus:
    """Generate the corpus of a world of clips.

    Args:
        name: name of the data.
        described: versions that the corpus depends on, in addition to settings and pairs; part of the fingerprint.
    """
    sizes = settings.train_pairs, settings.test_pairs
    pairs, report = sampled_splits(world.sample, settings, sizes, statistics)
    metadata: dict[str, dict[str, str]] = {}
    for split, rows in pairs.items():
        metadata |= {pair.prompt: world.metadata(world.read_prompt(pair.prompt)) for pair in rows}
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
