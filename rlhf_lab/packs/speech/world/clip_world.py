"""What all worlds of speech do: grade streams against the utterance as it was asked for, draw pairs of clips, and
label them. What is said and how, and what it is worth, is left to the world."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.core import measures
from rlhf_lab.core.errors import DataError, require
from rlhf_lab.core.types import BoolArray, FloatArray, LoadReport, Pair
from rlhf_lab.environments.annotator import Annotator, choose
from rlhf_lab.environments.splits import SPLITS
from rlhf_lab.packs.speech.sound.codec import CODEBOOKS, Codec
from rlhf_lab.packs.speech.sound.stream import read_stream, write_stream
from rlhf_lab.packs.speech.sound.voice_frames import FRAMES_PER_SECOND, Frames
from rlhf_lab.packs.speech.world import gold
from rlhf_lab.packs.speech.world.metrics import AUDIO_SECONDS, PHONE_ERROR

MEASURES = (
    *(measures.GOLD, PHONE_ERROR, AUDIO_SECONDS, measures.GARBLE),
    *measures.details(**dict.fromkeys(gold.ASPECTS, "an aspect of the delivery, 0…1 of its points")),
)
"""What `ClipWorld.measure` returns, in this order. A reply is garbled where it is no stream or has no whole frame."""


class AnyUtterance(Protocol):
    """What is asked for."""

    @property
    def prompt(self) -> str: ...


class AnyDelivery(Protocol):
    """One way to say an utterance."""

    @property
    def defect(self) -> str: ...


UtteranceT = TypeVar("UtteranceT", bound=AnyUtterance)
DeliveryT = TypeVar("DeliveryT", bound=AnyDelivery)


class _Take(NamedTuple):
    """A clip of a pair: its defect, and its codes (T, CODEBOOKS)."""

    defect: str
    codes_TK: NDArray[np.int64]


class ClipWorld(ABC, Generic[UtteranceT, DeliveryT]):
    """A world of utterances, spoken in codes.

    Args:
        good: share of deliveries without a defect, 0…1.
        new_voice: share of the test prompts with the held-out voice, 0…1.
        temperature: of the listener, in gold points; 0 always takes the better side.
        seed: draws utterances, deliveries and what the listener says.

    Attributes:
        codec: writes and reads all clips of this world.
        unheard_phone_error: phone error of a reply in which nothing can be heard.
    """

    measures = MEASURES
    codec: Codec
    unheard_phone_error: float

    def __init__(self, *, good: float, new_voice: float, temperature: float, seed: int):
        require(
            (0 <= good <= 1, f"good={good} is a share, 0…1"),
            (0 <= new_voice <= 1, f"new_voice={new_voice} is a share, 0…1"),
            (temperature >= 0, f"temperature={temperature} is negative; 0 is a noiseless listener"),
            (seed >= 0, f"seed={seed} is negative"),
        )
        self.good = good
        self.new_voice = new_voice
        self.listener = Annotator(0.0, 0.0, 0.0, temperature)
        self._seed = seed
        self._asked: dict[str, gold.Measurements] = {}

    @abstractmethod
    def read_prompt(self, prompt: str) -> UtteranceT:
        """The utterance that a prompt asks for. Raises DataError for other text."""

    @abstractmethod
    def facts(self, utterance: UtteranceT) -> dict[str, str]:
        """The row of `Corpus.facts`."""

    @abstractmethod
    def _draw(self, rng: np.random.Generator, split: str) -> tuple[UtteranceT, tuple[DeliveryT, DeliveryT]]:
        """An utterance of a split, and two ways to say it."""

    @abstractmethod
    def _perform(self, utterance: UtteranceT, delivery: DeliveryT | None) -> Frames:
        """What is said in one way; None is as it was asked for."""

    @abstractmethod
    def _rest_hz(self, utterance: UtteranceT) -> float:
        """Pitch of the utterance's voice at rest."""

    @abstractmethod
    def _judge(
        self, utterances: Sequence[UtteranceT], clips: Sequence[Frames], shares: Sequence[Mapping[str, float]]
    ) -> list[tuple[float, float]]:
        """(gold, phone error) of audible clips, from the shares of their aspects and what is said."""

    def measure(self, prompts: Sequence[str], responses: Sequence[str]) -> dict[str, FloatArray]:
        """Grade replies: every one of `MEASURES`, each (N,). Raises DataError for an unknown prompt."""
        if len(prompts) != len(responses):
            raise DataError(f"{len(prompts)} prompts and {len(responses)} responses; one response per prompt is needed")
        utterances = [self.read_prompt(prompt) for prompt in prompts]
        return self._grade(utterances, [_read_codes(response) for response in responses])

    def _grade(
        self, utterances: Sequence[UtteranceT], clips: Sequence[NDArray[np.int64] | None]
    ) -> dict[str, FloatArray]:
        """Every one of `MEASURES` of clips in codes (T, CODEBOOKS); None is a reply that is no stream."""
        rows = [self._worst(garble=1.0) for _ in clips]
        audible: list[int] = []
        frames: list[Frames] = []
        for i, (utterance, codes_TK) in enumerate(zip(utterances, clips, strict=True)):
            try:
                clip = None if codes_TK is None else self.codec.frames(codes_TK)
            except ValueError:  # a code that the codebook does not have
                clip = None
            if clip is None or not len(clip):
                continue
            rows[i] = self._worst(garble=0.0, seconds=len(clip) / FRAMES_PER_SECOND)
            measured = gold.measure(clip, self._rest_hz(utterance))
            if measured is not None:
                rows[i] |= gold.score_aspects(measured, self._as_asked(utterance))
                audible.append(i)
                frames.append(clip)
        judged = self._judge([utterances[i] for i in audible], frames, [rows[i] for i in audible])
        for i, (worth, error) in zip(audible, judged, strict=True):
            rows[i] |= {"phone_error": error, "gold": worth}
        return {measure.name: np.array([row[measure.name] for row in rows], dtype=np.float64) for measure in MEASURES}

    def _as_asked(self, utterance: UtteranceT) -> gold.Measurements:
        """What gold measures of the utterance, said as it was asked for."""
        if utterance.prompt not in self._asked:
            frames = self.codec.frames(self.codec.quantise(self._perform(utterance, None)))
            measured = gold.measure(frames, self._rest_hz(utterance))
            assert measured is not None, f"{utterance.prompt!r} is not audible"
            self._asked[utterance.prompt] = measured
        return self._asked[utterance.prompt]

    def _worst(self, *, garble: float, seconds: float = 0.0) -> dict[str, float]:
        """The grades of a reply in which nothing can be heard."""
        return {
            "gold": gold.LEAST,
            "phone_error": self.unheard_phone_error,
            "audio_seconds": seconds,
            "garble": garble,
            **dict.fromkeys(gold.ASPECTS, 0.0),
        }

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

    def say(self, prompt: str, delivery: DeliveryT | None = None) -> str:
        """The stream of a prompt, said in one way; by default as it was asked for."""
        return write_stream(self._codes(self.read_prompt(prompt), delivery))

    def _codes(self, utterance: UtteranceT, delivery: DeliveryT | None) -> NDArray[np.int64]:
        return self.codec.quantise(self._perform(utterance, delivery))

    def sample(self, n: int, split: str, *, seed: int = 0) -> tuple[list[Pair], LoadReport]:
        """n labelled pairs of a split, and what was drawn: identical clips are counted and drawn again.

        The first k of n pairs are the pairs of `sample(k, …)`. `Pair.meta` has p_chosen and, for each side, gold_,
        phone_error_, seconds_, garble_ and defect_ (empty where it has none).
        """
        if split not in SPLITS:
            raise DataError(f"split {split!r} is unknown; use {' or '.join(SPLITS)}")
        report = LoadReport(kept=n)
        utterances: list[UtteranceT] = []
        takes: tuple[list[_Take], list[_Take]] = ([], [])
        for utterance, deliveries in self._draws(split, seed):
            if len(utterances) == n:
                break
            report.rows += 1
            first, second = (_Take(delivery.defect, self._codes(utterance, delivery)) for delivery in deliveries)
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

    def _draws(self, split: str, seed: int) -> Iterator[tuple[UtteranceT, tuple[DeliveryT, DeliveryT]]]:
        """Utterances of a split, each with two deliveries, without end."""
        rng = self._random("clips", split, seed)
        while True:
            yield self._draw(rng, split)

    def _random(self, purpose: str, split: str, seed: int) -> np.random.Generator:
        """An independent random stream per purpose and split."""
        return np.random.default_rng([self._seed, seed, crc32(f"{purpose}/{split}".encode())])


def _read_codes(response: str) -> NDArray[np.int64] | None:
    """The codes of a reply; None where it is no stream."""
    try:
        return read_stream(response, CODEBOOKS)
    except ValueError:
        return None


def _describe(side: str, take: _Take, measured: Mapping[str, FloatArray], i: int) -> dict[str, float | bool | str]:
    """The entries of `Pair.meta` about one side of pair i."""
    numbers = {f"{key}_{side}": float(measured[key][i]) for key in ("gold", "phone_error", "audio_seconds")}
    return {**numbers, f"garble_{side}": bool(measured["garble"][i]), f"defect_{side}": take.defect}
