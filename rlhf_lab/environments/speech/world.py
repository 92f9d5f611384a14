"""The speech world behind the `Oracle` protocol: what is asked for, clips of people who say it, gold, and a
listener."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.core.errors import DataError, require
from rlhf_lab.core.types import BoolArray, FloatArray, LoadReport, Pair
from rlhf_lab.environments.annotator import Annotator, choose
from rlhf_lab.environments.speech import gold
from rlhf_lab.environments.speech.delivery import Delivery, draw_delivery, perform
from rlhf_lab.environments.speech.prompts import Utterance, draw_utterance, read_prompt
from rlhf_lab.environments.speech.recogniser import phone_error, recognise
from rlhf_lab.environments.splits import SPLITS
from rlhf_lab.speech.codec import CODEBOOKS, SIZES, Codec
from rlhf_lab.speech.stream import read_stream, write_stream
from rlhf_lab.speech.voice_frames import FRAMES_PER_SECOND, Frames

VERSION = 1
"""Increased whenever the same settings give other streams or other grades; part of a corpus fingerprint."""

MEASURES = ("gold", "phone_error", "audio_seconds", "garble", *gold.ASPECTS)
"""Keys of `SpeechWorld.measure`. The aspects are shares, 0…1; `seconds` is the length
of the clip; garble is 1 where the reply is no stream or has no whole frame."""

FITTED_CLIPS = 400
"""Clips of the training split on which the codec is fitted. They are the same for every seed of a world, so that all
worlds with codebooks of the same sizes share a codec."""


class _Take(NamedTuple):
    """A clip of a pair: how it was said, and its codes (T, CODEBOOKS)."""

    delivery: Delivery
    codes_TK: NDArray[np.int64]


class SpeechWorld:
    """A world of short made-up utterances, spoken in codes.

    Args:
        good: share of deliveries without a defect, 0…1.
        new_voice: share of the test prompts with the held-out voice, 0…1.
        sizes: codes of each codebook.
        temperature: of the listener, in gold points; 0 always takes the better side.
        seed: draws utterances, deliveries and what the listener says.

    Attributes:
        codec: writes and reads all clips of this world.
    """

    def __init__(self, *, good: float, new_voice: float, temperature: float, seed: int, sizes: Sequence[int] = SIZES):
        require(
            (0 <= good <= 1, f"good={good} is a share, 0…1"),
            (0 <= new_voice <= 1, f"new_voice={new_voice} is a share, 0…1"),
            (temperature >= 0, f"temperature={temperature} is negative; 0 is a noiseless listener"),
            (seed >= 0, f"seed={seed} is negative"),
        )
        self.good = good
        self.new_voice = new_voice
        self.listener = Annotator(0.0, 0.0, 0.0, temperature)
        self.codec = fitted_codec(tuple(sizes))
        self._seed = seed
        self._asked: dict[str, gold.Measurements] = {}

    def measure(self, prompts: Sequence[str], responses: Sequence[str]) -> dict[str, FloatArray]:
        """Grade replies: every key of `MEASURES`, each (N,). Raises DataError for an unknown prompt."""
        if len(prompts) != len(responses):
            raise DataError(f"{len(prompts)} prompts and {len(responses)} responses; one response per prompt is needed")
        utterances = [read_prompt(prompt) for prompt in prompts]
        return self._grade(utterances, [_read_codes(response) for response in responses])

    def _grade(
        self, utterances: Sequence[Utterance], clips: Sequence[NDArray[np.int64] | None]
    ) -> dict[str, FloatArray]:
        """Every key of `MEASURES` of clips in codes (T, CODEBOOKS); None is a reply that is no stream."""
        rows = [_worst(garble=1.0) for _ in clips]
        audible: list[int] = []
        frames: list[Frames] = []
        for i, (utterance, codes_TK) in enumerate(zip(utterances, clips, strict=True)):
            try:
                clip = None if codes_TK is None else self.codec.frames(codes_TK)
            except ValueError:  # a code that the codebook does not have
                clip = None
            if clip is None or not len(clip):
                continue
            rows[i] = _worst(garble=0.0, seconds=len(clip) / FRAMES_PER_SECOND)
            measured = gold.measure(clip, utterance.speaker)
            if measured is not None:
                rows[i] |= gold.score_aspects(measured, self._as_asked(utterance))
                audible.append(i)
                frames.append(clip)
        phones = recognise(frames, [utterances[i].speaker for i in audible])
        for i, recognised in zip(audible, phones, strict=True):
            error = phone_error(utterances[i].phones, recognised)
            rows[i] |= {"phone_error": error, "gold": gold.gold(rows[i], error)}
        return {name: np.array([row[name] for row in rows], dtype=np.float64) for name in MEASURES}

    def _as_asked(self, utterance: Utterance) -> gold.Measurements:
        """What gold measures of the utterance, said as it was asked for."""
        if utterance.prompt not in self._asked:
            frames = self.codec.frames(self.codec.quantise(perform(utterance)))
            measured = gold.measure(frames, utterance.speaker)
            assert measured is not None, f"{utterance.prompt!r} is not audible"
            self._asked[utterance.prompt] = measured
        return self._asked[utterance.prompt]

    def prefer(
        self, prompts: Sequence[str], first: Sequence[str], second: Sequence[str], *, seed: int
    ) -> tuple[BoolArray, FloatArray]:
        """Label pairs as the simulated listener: (first is preferred (N,), probability that it is (N,)).

        Bradley-Terry on gold over the temperature. The seed draws the choices only.
        """
        probability = self.listener.probability(
            self.measure(prompts, first)["gold"], self.measure(prompts, second)["gold"]
        )
        rng = np.random.default_rng([self._seed, seed])
        return choose(probability, rng), probability

    def say(self, prompt: str, delivery: Delivery | None = None) -> str:
        """The stream of a prompt, said in one way; by default as it was asked for."""
        return write_stream(self._codes(read_prompt(prompt), delivery or Delivery()))

    def _codes(self, utterance: Utterance, delivery: Delivery) -> NDArray[np.int64]:
        return self.codec.quantise(perform(utterance, delivery))

    def sample(self, n: int, split: str, *, seed: int = 0) -> tuple[list[Pair], LoadReport]:
        """n labelled pairs of a split, and what was drawn: identical clips are counted and drawn again.

        The first k of n pairs are the pairs of `sample(k, …)`. `Pair.meta` has p_chosen and, for each side, gold_,
        phone_error_, seconds_, garble_ and defect_ (empty where it has none).
        """
        if split not in SPLITS:
            raise DataError(f"split {split!r} is unknown; use {' or '.join(SPLITS)}")
        report = LoadReport(kept=n)
        utterances: list[Utterance] = []
        takes: tuple[list[_Take], list[_Take]] = ([], [])
        for utterance, deliveries in self._draw(split, seed):
            if len(utterances) == n:
                break
            report.rows += 1
            first, second = (_Take(delivery, self._codes(utterance, delivery)) for delivery in deliveries)
            if np.array_equal(first.codes_TK, second.codes_TK):
                report.drop("identical clips")
                continue
            utterances.append(utterance)
            takes[0].append(first)
            takes[1].append(second)
        measured = [self._grade(utterances, [take.codes_TK for take in side]) for side in takes]
        # labels have a random stream of their own, apart from that of the clips
        probability = self.listener.probability(measured[0]["gold"], measured[1]["gold"])
        first_wins = choose(probability, self._random("labels", split, seed))
        pairs = []
        for i, utterance in enumerate(utterances):
            chosen, rejected = (0, 1) if first_wins[i] else (1, 0)
            meta = {
                "p_chosen": float(probability[i] if first_wins[i] else 1 - probability[i]),
                **_describe("chosen", takes[chosen][i], measured[chosen], i),
                **_describe("rejected", takes[rejected][i], measured[rejected], i),
            }
            chosen_stream, rejected_stream = (write_stream(takes[side][i].codes_TK) for side in (chosen, rejected))
            pairs.append(Pair(utterance.prompt, chosen_stream, rejected_stream, meta))
        return pairs, report

    def _draw(self, split: str, seed: int) -> Iterator[tuple[Utterance, tuple[Delivery, Delivery]]]:
        """Utterances of a split, each with two deliveries, without end."""
        rng = self._random("clips", split, seed)
        while True:
            utterance = draw_utterance(rng, split, self.new_voice)
            yield utterance, (draw_delivery(rng, self.good), draw_delivery(rng, self.good))

    def _random(self, purpose: str, split: str, seed: int) -> np.random.Generator:
        """An independent random stream per purpose and split."""
        return np.random.default_rng([self._seed, seed, crc32(f"{purpose}/{split}".encode())])


def _read_codes(response: str) -> NDArray[np.int64] | None:
    """The codes of a reply; None where it is no stream."""
    try:
        return read_stream(response, CODEBOOKS)
    except ValueError:
        return None


def _worst(*, garble: float, seconds: float = 0.0) -> dict[str, float]:
    """The grades of a reply in which nothing can be heard."""
    return {
        "gold": gold.LEAST,
        "phone_error": 1.0,
        "audio_seconds": seconds,
        "garble": garble,
        **dict.fromkeys(gold.ASPECTS, 0.0),
    }


def _describe(side: str, take: _Take, measured: Mapping[str, FloatArray], i: int) -> dict[str, float | bool | str]:
    """The entries of `Pair.meta` about one side of pair i."""
    numbers = {f"{key}_{side}": float(measured[key][i]) for key in ("gold", "phone_error", "audio_seconds")}
    return {**numbers, f"garble_{side}": bool(measured["garble"][i]), f"defect_{side}": take.delivery.defect}


@lru_cache(maxsize=8)
def fitted_codec(sizes: tuple[int, ...]) -> Codec:
    """The codec of all worlds with codebooks of these sizes, fitted on clips of the training split."""
    rng = np.random.default_rng(0)
    clips = []
    for _ in range(FITTED_CLIPS):
        utterance = draw_utterance(rng, "train")
        clips.append(perform(utterance, draw_delivery(rng, 0.5)))
    return Codec.fit(clips, sizes, seed=0)
