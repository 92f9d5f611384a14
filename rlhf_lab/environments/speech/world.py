"""The speech world behind the `Oracle` protocol: what is asked for, clips of people who say it, gold, and a
listener."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from zlib import crc32

import numpy as np

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
from rlhf_lab.speech.voice_frames import FRAMES_PER_SECOND

VERSION = 1
"""Increased whenever the same settings give other streams or other grades; part of a corpus fingerprint."""

MEASURES = ("gold", "phone_error", "seconds", "garble", *gold.ASPECTS)
"""Keys of `SpeechWorld.measure`. The aspects are shares, 0…1; `seconds` is the length
of the clip; garble is 1 where the reply is no stream or has no whole frame."""

FITTED_CLIPS = 400
"""Clips of the training split on which the codec is fitted. They are the same for every seed of a world, so that all
worlds with codebooks of the same sizes share a codec."""


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
        rows = [self._grade(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]
        return {name: np.array([row[name] for row in rows], dtype=np.float64) for name in MEASURES}

    def _grade(self, prompt: str, response: str) -> dict[str, float]:
        utterance = read_prompt(prompt)
        try:
            codes_TK = read_stream(response, CODEBOOKS)
            frames = self.codec.frames(codes_TK)
        except ValueError:
            return _worst(seconds=0.0, garble=1.0)
        measured = gold.measure(frames, utterance.speaker)
        if measured is None:
            return _worst(seconds=len(frames) / FRAMES_PER_SECOND, garble=float(not len(frames)))
        shares = gold.score_aspects(measured, self._as_asked(utterance))
        error = phone_error(utterance.phones, recognise(frames, utterance.speaker))
        return {
            "gold": gold.gold(shares, error),
            "phone_error": error,
            "seconds": len(frames) / FRAMES_PER_SECOND,
            "garble": 0.0,
            **shares,
        }

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
        return self._stream_of(read_prompt(prompt), delivery or Delivery())

    def _stream_of(self, utterance: Utterance, delivery: Delivery) -> str:
        return write_stream(self.codec.quantise(perform(utterance, delivery)))

    def sample(self, n: int, split: str, *, seed: int = 0) -> tuple[list[Pair], LoadReport]:
        """n labelled pairs of a split, and what was drawn: identical clips are counted and drawn again.

        The first k of n pairs are the pairs of `sample(k, …)`. `Pair.meta` has p_chosen and, for each side, gold_,
        phone_error_, seconds_, garble_ and defect_ (empty where it has none).
        """
        if split not in SPLITS:
            raise DataError(f"split {split!r} is unknown; use {' or '.join(SPLITS)}")
        report = LoadReport(kept=n)
        prompts: list[str] = []
        sides: tuple[list[str], list[str]] = ([], [])
        defects: tuple[list[str], list[str]] = ([], [])
        for utterance, deliveries in self._draw(split, seed):
            if len(prompts) == n:
                break
            report.rows += 1
            streams = [self._stream_of(utterance, delivery) for delivery in deliveries]
            if streams[0] == streams[1]:
                report.drop("identical clips")
                continue
            prompts.append(utterance.prompt)
            for side, defect, stream, delivery in zip(sides, defects, streams, deliveries, strict=True):
                side.append(stream)
                defect.append(delivery.defect)
        # labels have a random stream of their own, apart from that of the clips
        measured = [self.measure(prompts, side) for side in sides]
        probability = self.listener.probability(measured[0]["gold"], measured[1]["gold"])
        first_wins = choose(probability, self._random("labels", split, seed))
        pairs = []
        for i, first_is_chosen in enumerate(first_wins.tolist()):
            chosen = 0 if first_is_chosen else 1
            meta: dict[str, float | bool | str] = {
                "p_chosen": float(probability[i] if first_is_chosen else 1 - probability[i])
            }
            for name, side in (("chosen", chosen), ("rejected", 1 - chosen)):
                for key in ("gold", "phone_error", "seconds"):
                    meta[f"{key}_{name}"] = float(measured[side][key][i])
                meta[f"garble_{name}"] = bool(measured[side]["garble"][i])
                meta[f"defect_{name}"] = defects[side][i]
            pairs.append(Pair(prompts[i], sides[chosen][i], sides[1 - chosen][i], meta))
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


def _worst(*, seconds: float, garble: float) -> dict[str, float]:
    """The grades of a reply in which nothing can be heard."""
    return {
        "gold": gold.LEAST,
        "phone_error": 1.0,
        "seconds": seconds,
        "garble": garble,
        **dict.fromkeys(gold.ASPECTS, 0.0),
    }


@lru_cache(maxsize=8)
def fitted_codec(sizes: tuple[int, ...]) -> Codec:
    """The codec of all worlds with codebooks of these sizes, fitted on clips of the training split."""
    rng = np.random.default_rng(0)
    clips = []
    for _ in range(FITTED_CLIPS):
        utterance = draw_utterance(rng, "train")
        clips.append(perform(utterance, draw_delivery(rng, 0.5)))
    return Codec.fit(clips, sizes, seed=0)
