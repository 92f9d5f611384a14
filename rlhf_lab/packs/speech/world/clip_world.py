"""Base class of the speech worlds: grades streams, samples pairs of clips, and labels them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.core import measures
from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.types import BoolArray, Corpus, FloatArray, LoadReport, Pair
from rlhf_lab.environments.annotator import Annotator, choose, random_stream
from rlhf_lab.environments.splits import require_split
from rlhf_lab.packs.speech.metrics import AUDIO_SECONDS, PHONE_ERROR
from rlhf_lab.packs.speech.sound.codec import CODEBOOKS, Codec
from rlhf_lab.packs.speech.sound.stream import read_stream, write_stream
from rlhf_lab.packs.speech.sound.voice_frames import FRAMES_PER_SECOND, Frames
from rlhf_lab.packs.speech.world import gold
from rlhf_lab.packs.speech.world.delivery import Delivery
from rlhf_lab.packs.speech.world.english import EnglishDelivery, EnglishUtterance
from rlhf_lab.packs.speech.world.prompts import Utterance
from rlhf_lab.packs.speech.world.settings import ClipSettings

MEASURES = (
    *(measures.GOLD, PHONE_ERROR, AUDIO_SECONDS, measures.GARBLE),
    *measures.details(**dict.fromkeys(gold.ASPECTS, "an aspect of the delivery, 0…1 of its points")),
)
"""Measures that `ClipWorld.measure` returns, in this order. A response is degenerate (garble) if it is not a stream or
has no complete frame."""


UtteranceT = TypeVar("UtteranceT", Utterance, EnglishUtterance)
DeliveryT = TypeVar("DeliveryT", Delivery, EnglishDelivery)

DRAWS_PER_TEXT = 100
"""Number of utterances that `prompt_grid` samples for each requested text before it gives up."""


class ClipWorld(ABC, Generic[UtteranceT, DeliveryT]):
    """A world of utterances whose clips are codec codes. A subclass defines deliveries and the true reward (gold).

    Attributes:
        categories, styles: names of the categories of sentences and of the styles.
        codec: codec of all clips of this world.
        unheard_phone_error: phone error of a response without an audible frame.
    """

    measures = MEASURES
    categories: tuple[str, ...]
    styles: tuple[str, ...]
    codec: Codec
    unheard_phone_error: float

    def __init__(self, settings: ClipSettings):
        self.settings = settings
        self.listener = Annotator(0.0, 0.0, 0.0, settings.temperature)
        # of utterances, deliveries and the choices of the listener
        self._seed, _ = settings.split_seeds()
        self._requested: dict[str, gold.Measurements] = {}

    @abstractmethod
    def read_prompt(self, prompt: str) -> UtteranceT:
        """Parse the utterance that a prompt requests. Raises DataError for other text."""

    @abstractmethod
    def _draw(self, rng: np.random.Generator, split: str) -> tuple[UtteranceT, tuple[DeliveryT, DeliveryT]]:
        """Sample an utterance of a split and two deliveries of it."""

    @abstractmethod
    def _perform(self, utterance: UtteranceT, delivery: DeliveryT | None) -> Frames:
        """Return the frames of a delivery; None means exactly as requested."""

    @abstractmethod
    def _judge(
        self, utterances: Sequence[UtteranceT], clips: Sequence[Frames], shares: Sequence[Mapping[str, float]]
    ) -> list[tuple[float, float]]:
        """Return (gold, phone error) of each audible clip.

        `shares` has the fraction of points that each aspect reaches, 0…1.
        """

    def measure(self, prompts: Sequence[str], responses: Sequence[str]) -> dict[str, FloatArray]:
        """Grade responses. Returns all `MEASURES`, each (N,). Raises DataError for an unknown prompt."""
        if len(prompts) != len(responses):
            raise DataError(f"{len(prompts)} prompts and {len(responses)} responses; pass one response per prompt")
        utterances = [self.read_prompt(prompt) for prompt in prompts]
        return self._grade(utterances, [self._read(response) for response in responses])

    def _read(self, response: str) -> Frames | None:
        """Return the frames of a response; None if it is not a stream, or has a code outside its codebook."""
        try:
            return self.codec.frames(read_stream(response, CODEBOOKS))
        except ValueError:
            return None

    def _grade(self, utterances: Sequence[UtteranceT], clips: Sequence[Frames | None]) -> dict[str, FloatArray]:
        """Return all `MEASURES` of clips; None is a response that is not a stream."""
        # every clip starts with the worst grades; only audible clips are graded further
        rows = [self._worst(garble=1.0) for _ in clips]
        audible: list[int] = []
        frames: list[Frames] = []
        for i, (utterance, clip) in enumerate(zip(utterances, clips, strict=True)):
            if clip is None or not len(clip):
                continue
            rows[i] = self._worst(garble=0.0, seconds=len(clip) / FRAMES_PER_SECOND)
            measured = gold.measure(clip, utterance.rest_hz)
            # a clip without an audible frame keeps the worst grades
            if measured is not None:
                rows[i] |= gold.score_aspects(measured, self._as_requested(utterance))
                audible.append(i)
                frames.append(clip)
        # graded in one call, because recognition is batched over clips
        judged = self._judge([utterances[i] for i in audible], frames, [rows[i] for i in audible])
        for i, (worth, error) in zip(audible, judged, strict=True):
            rows[i] |= {"phone_error": error, "gold": worth}
        return {measure.name: np.array([row[measure.name] for row in rows], dtype=np.float64) for measure in MEASURES}

    def _as_requested(self, utterance: UtteranceT) -> gold.Measurements:
        """Return the measurements of the utterance spoken exactly as requested."""
        # encoded and decoded like a clip, so that quantisation errors affect both sides of the comparison
        if utterance.prompt not in self._requested:
            measured = gold.measure(self.codec.frames(self._codes(utterance, None)), utterance.rest_hz)
            assert measured is not None, f"{utterance.prompt!r} is not audible"
            self._requested[utterance.prompt] = measured
        return self._requested[utterance.prompt]

    def _worst(self, *, garble: float, seconds: float = 0.0) -> dict[str, float]:
        """Return the grades of a response without an audible frame."""
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
        """Label pairs with the simulated listener: a Bradley-Terry model on gold divided by the temperature.

        The seed only affects the choices.

        Returns:
            True if the first response is preferred, (N,), and the probability of that, (N,).
        """
        probability = self.listener.probability(
            self.measure(prompts, first)["gold"], self.measure(prompts, second)["gold"]
        )
        rng = np.random.default_rng([self._seed, seed])
        return choose(probability, rng), probability

    def say(self, prompt: str, delivery: DeliveryT | None = None) -> str:
        """Return the stream of a delivery of the prompt; by default exactly as requested."""
        return write_stream(self._codes(self.read_prompt(prompt), delivery))

    def _codes(self, utterance: UtteranceT, delivery: DeliveryT | None) -> NDArray[np.int64]:
        return self.codec.quantise(self._perform(utterance, delivery))

    def sample(self, n: int, split: str, *, seed: int = 0) -> tuple[list[Pair], LoadReport]:
        """Sample n labelled pairs of a split. Returns them with a report. Identical clips are counted and replaced.

        The first k of n pairs are the pairs of `sample(k, …)`. `Pair.meta` contains p_chosen and, for each side, gold_,
        phone_error_, audio_seconds_, garble_ and defect_ (empty without a defect).
        """
        require_split(split)
        report = LoadReport(kept=n)
        utterances: list[UtteranceT] = []
        # defect and codes (T, CODEBOOKS) of the first and of the second clip of each pair
        takes: tuple[list[tuple[str, NDArray[np.int64]]], ...] = ([], [])
        rng = random_stream([self._seed, seed], "clips", split)
        while len(utterances) < n:
            utterance, deliveries = self._draw(rng, split)
            report.rows += 1
            # compared as codes, because different deliveries may be quantised to the same clip
            first, second = (self._codes(utterance, delivery) for delivery in deliveries)
            if np.array_equal(first, second):
                report.drop("identical clips")
                continue
            utterances.append(utterance)
            takes[0].append((deliveries[0].defect, first))
            takes[1].append((deliveries[1].defect, second))
        measured = [self._grade(utterances, [self.codec.frames(codes_TK) for _, codes_TK in side]) for side in takes]
        # labels use a separate random stream, so that the clips do not depend on the labels
        probability = self.listener.probability(measured[0]["gold"], measured[1]["gold"])
        first_wins = choose(probability, random_stream([self._seed, seed], "labels", split))
        pairs = []
        for i, utterance in enumerate(utterances):
            # the listener's choice may disagree with gold
            sides = {"chosen": 0, "rejected": 1} if first_wins[i] else {"chosen": 1, "rejected": 0}
            meta: dict[str, Any] = {"p_chosen": float(probability[i] if first_wins[i] else 1 - probability[i])}
            for name, side in sides.items():
                grades = ("gold", "phone_error", "audio_seconds")
                meta |= {f"{grade}_{name}": float(measured[side][grade][i]) for grade in grades}
                meta |= {f"garble_{name}": bool(measured[side]["garble"][i]), f"defect_{name}": takes[side][i][0]}
            streams = {name: write_stream(takes[side][i][1]) for name, side in sides.items()}
            pairs.append(Pair(utterance.prompt, streams["chosen"], streams["rejected"], meta))
        return pairs, report

    def prompt_grid(self, texts: int, *, seed: int) -> list[str]:
        """Return prompts of the training split: `texts` sentences of each category, each in all styles.

        A sentence has the same voice in all styles, and is in one category. Raises DataError if a category has fewer
        sentences.
        """
        found: dict[str, list[UtteranceT]] = {category: [] for category in self.categories}
        taken: set[str] = set()
        rng = random_stream([self._seed, seed], "grid", "train")
        for _ in range(DRAWS_PER_TEXT * texts * len(self.categories)):
            utterance, _ = self._draw(rng, "train")
            own = found[utterance.category]
            if len(own) < texts and utterance.text not in taken:
                own.append(utterance)
                taken.add(utterance.text)
            if all(len(own) == texts for own in found.values()):
                break
        for category, own in found.items():
            if len(own) < texts:
                raise DataError(f"{texts} texts of each category are needed, but training has {len(own)} of {category}")
        utterances = [utterance for own in found.values() for utterance in own]
        return [utterance.in_style(style).prompt for utterance in utterances for style in self.styles]


def clip_world_of(data: Corpus, stage: str) -> ClipWorld[Any, Any]:
    """Return the speech world of the data. Raises ConfigError if they have none."""
    if not isinstance(data.oracle, ClipWorld):
        raise ConfigError(
            f"algorithm={stage} needs the prompts of a speech world, which data={data.name} does not have; use "
            "data=speech or data=espeak"
        )
    return data.oracle
