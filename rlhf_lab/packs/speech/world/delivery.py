"""Simulated deliveries of an utterance: melody, timing and loudness as requested, small variations, and defects.

`perform` returns frames instead of samples, so a corpus needs no audio. Tracks are generated at 100 points per second
and averaged to the frames of the codec. The model omits reduced vowels, assimilation, hesitation, emphasis by meaning,
room acoustics and the microphone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter1d

from rlhf_lab.packs.speech.sound.voice_frames import BANDS, FRAMES_PER_SECOND, SILENCE_DB, Frames
from rlhf_lab.packs.speech.world.phones import PAUSE, PHONES, VOWELS, envelope
from rlhf_lab.packs.speech.world.prompts import Utterance

POINTS_PER_FRAME = 4
POINTS_PER_SECOND = POINTS_PER_FRAME * FRAMES_PER_SECOND
QUIET_DB = -60.0
"""Energy of a closure or a pause in dB, before smoothing."""
VOICE_APERIODICITY = 0.05
COARTICULATION = 5
"""Number of points of the transition between phones: 50 ms."""

DEFECTS = {
    "monotone": 0.46,
    "hoarse": 0.12,
    "fast": 0.11,
    "clipped": 0.10,
    "silences": 0.10,
    "mumbled": 0.09,
    "wild": 0.02,
}
"""Defects and their fractions of all deliveries with a defect."""
WEAKEST = 0.4
"""Minimum severity of a defect. Severities are uniform between this value and 1."""


class Manner(NamedTuple):
    """Parameters of a style.

    Attributes:
        movement, rate, pauses: factors of all pitch movement, of the speed, and of the duration of pauses.
        energy: energy of an open vowel in dB of full scale.
        aperiodicity: value added to the aperiodicity of the voice.
    """

    movement: float
    rate: float
    energy: float
    aperiodicity: float
    pauses: float


MANNERS = {
    "neutral": Manner(1.0, 1.0, -22.0, 0.0, 1.0),
    "lively": Manner(1.6, 1.1, -19.0, 0.0, 0.9),
    "calm": Manner(0.6, 0.82, -26.0, 0.02, 1.2),
    "brisk": Manner(1.0, 1.3, -21.0, 0.0, 0.6),
    "firm": Manner(0.8, 0.95, -16.0, -0.02, 1.0),
    "breathy": Manner(0.8, 0.9, -29.0, 0.3, 1.1),
}


class Melody(NamedTuple):
    """Pitch contour of a category of sentence, in semitones relative to the voice at rest, before the style's factor.

    Attributes:
        base: offset of the entire sentence.
        accent: height of the accent on the first syllable of each word.
        fall: linear change over the sentence; negative values fall.
        end: movement on the last syllable.
        word_end: movement at the end of all other words.
        energy: value in dB added to the energy of the style.
        pause: duration in milliseconds of the pause after each word except the last.
    """

    base: float
    accent: float
    fall: float
    end: float
    word_end: float = 0.0
    energy: float = 0.0
    pause: float = 0.0


MELODIES = {
    "statement": Melody(0.0, 2.5, -2.0, -4.0),
    "question": Melody(0.5, 1.5, 0.5, 7.0),
    "exclamation": Melody(2.5, 3.5, -3.0, -4.0, energy=3.0),
    "list": Melody(0.0, 1.5, -1.0, -3.5, word_end=3.0, pause=140.0),
    "request": Melody(0.5, 2.5, -1.0, 2.5),
    "aside": Melody(-2.0, 1.0, -0.5, -1.0, energy=-6.0),
}
FINAL_LENGTHENING, STRESS_LENGTHENING = 1.5, 1.2
"""Factors of the duration of the last vowel and of stressed vowels."""


@dataclass(frozen=True)
class Delivery:
    """A delivery of an utterance: deviations from the requested style. The default has no deviations.

    Args:
        defect: key of `DEFECTS`; empty for no defect.
        severity: severity of the defect, 0…1; 0 disables it.
        rate, movement: factors of speed and pitch movement.
        pitch: offset of the pitch in semitones.
        energy: offset of the energy in dB.
        unsteady: standard deviation of the logarithm of each phone's duration.
        seed: seed of phone durations and of the random part of a defect.
    """

    defect: str = ""
    severity: float = 0.0
    rate: float = 1.0
    movement: float = 1.0
    pitch: float = 0.0
    energy: float = 0.0
    unsteady: float = 0.0
    seed: int = 0

    def of(self, defect: str) -> float:
        """Return the severity of a defect in this delivery; 0 if it has another defect or none."""
        return self.severity if self.defect == defect else 0.0


def draw_delivery(rng: np.random.Generator, good: float) -> Delivery:
    """Sample a delivery with small variations. It has no defect with probability `good`."""
    defect, severity = "", 0.0
    if rng.random() >= good:
        defect = str(rng.choice(list(DEFECTS), p=list(DEFECTS.values())))
        severity = float(rng.uniform(WEAKEST, 1.0))
    # drawn in all cases, so that deliveries with and without a defect vary in the same way
    variation = rng.standard_normal(4)
    return Delivery(
        defect,
        severity,
        rate=float(np.exp(0.06 * variation[0])),
        movement=float(np.exp(0.12 * variation[1])),
        pitch=float(0.4 * variation[2]),
        energy=float(1.0 * variation[3]),
        unsteady=0.1,
        seed=int(rng.integers(2**31)),
    )


class _Segment(NamedTuple):
    """A segment with one articulation target.

    Attributes:
        phone: letter of the phone, or the pause.
        points: duration in points.
        closed: True for a pause, or the closure of a stop.
        word, syllable: index of the word, and of the syllable in the word; −1 outside words.
    """

    phone: str
    points: int
    closed: bool
    word: int
    syllable: int


def perform(utterance: Utterance, delivery: Delivery | None = None) -> Frames:
    """Return the frames of a delivery of an utterance; by default exactly as requested."""
    delivery = delivery or Delivery()
    # stages: segments in time, tracks per point (envelope, energy, voicing, pitch), average per frame, cut
    rng = np.random.default_rng(delivery.seed)
    segments = _insert_silences(_segments(utterance, delivery, rng), delivery, rng)
    envelope_PD, energy_P, voiced_P, aperiodicity_P = _articulation(utterance, delivery, segments)
    f0_P = np.where(voiced_P, _pitch(utterance, delivery, segments, rng), 0.0)
    frames = _average(f0_P, envelope_PD, energy_P, aperiodicity_P)
    if not delivery.of("clipped"):
        return frames
    # the recording ends too early, by up to 45 % of the clip
    return frames.take(slice(max(1, round(len(f0_P) / POINTS_PER_FRAME * (1 - 0.45 * delivery.of("clipped"))))))


def _segments(utterance: Utterance, delivery: Delivery, rng: np.random.Generator) -> list[_Segment]:
    """Return the articulation targets in time, between two short silences."""
    manner, melody = MANNERS[utterance.style], MELODIES[utterance.category]
    # the defect "fast" is up to 2.1 times as fast
    rate = manner.rate * delivery.rate * (1 + 1.1 * delivery.of("fast"))
    segments = [_Segment(PAUSE, 4, True, -1, -1)]
    last = (len(utterance.words) - 1, len(utterance.words[-1]) - 1)
    for word, syllables in enumerate(utterance.words):
        for syllable, phones in enumerate(syllables):
            for letter in phones:
                phone = PHONES[letter]
                stretch = np.exp(delivery.unsteady * rng.standard_normal()) / rate
                # only vowels are lengthened, by stress and before the end of the sentence
                if letter in VOWELS:
                    stretch *= STRESS_LENGTHENING if syllable == 0 else 1.0
                    stretch *= FINAL_LENGTHENING if (word, syllable) == last else 1.0
                # a stop is a silent closure followed by its burst
                if phone.closure:
                    segments.append(_Segment(letter, _points(phone.closure * stretch), True, word, syllable))
                segments.append(_Segment(letter, _points(phone.milliseconds * stretch), False, word, syllable))
        if melody.pause and word < last[0]:
            pause = melody.pause * manner.pauses / rate
            segments.append(_Segment(PAUSE, _points(pause), True, -1, -1))
    return [*segments, _Segment(PAUSE, 8, True, -1, -1)]


def _points(milliseconds: float) -> int:
    return max(1, round(milliseconds / 1000 * POINTS_PER_SECOND))


def _insert_silences(segments: list[_Segment], delivery: Delivery, rng: np.random.Generator) -> list[_Segment]:
    """Apply the defect "silences": two pauses between syllables, of up to 0.8 s in total."""
    severity = delivery.of("silences")
    if not severity:
        return segments
    borders = [
        i
        for i in range(2, len(segments) - 1)
        if (segments[i].word, segments[i].syllable) != (segments[i - 1].word, segments[i - 1].syllable)
    ]
    # inserted from the last to the first, so that the index of the other border stays valid
    chosen = sorted(rng.choice(borders, size=min(2, len(borders)), replace=False).tolist(), reverse=True)
    segments = list(segments)
    for border in chosen:
        segments.insert(border, _Segment(PAUSE, _points(400 * severity), True, -1, -1))
    return segments


def _articulation(
    utterance: Utterance, delivery: Delivery, segments: list[_Segment]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_], NDArray[np.float64]]:
    """Return envelope (P, BANDS), energy, voicing and aperiodicity, each (P,), at all points."""
    manner, melody = MANNERS[utterance.style], MELODIES[utterance.category]
    voice = utterance.speaker
    mumbled = delivery.of("mumbled")
    # the neutral envelope of a voice is the mean of its vowels
    neutral = np.mean([envelope(vowel, voice) for vowel in VOWELS], axis=0)
    shapes: list[NDArray[np.float64]] = []
    energies: list[float] = []
    voicing: list[bool] = []
    noise: list[float] = []
    for segment in segments:
        phone = PHONES.get(segment.phone)
        if phone is None:  # in a pause the envelope of the previous phone remains
            shapes.append(shapes[-1] if shapes else neutral)
        else:
            shape = envelope(segment.phone, voice)
            # reduced articulation moves all phones towards the neutral vowel
            shapes.append(shape + 0.6 * mumbled * (neutral - shape))
        open_mouth = phone is not None and not segment.closed
        energies.append(phone.energy if phone and open_mouth else QUIET_DB)
        voicing.append(bool(phone and open_mouth and phone.voiced))
        noise.append(phone.aperiodicity if phone else 0.0)
    counts = [segment.points for segment in segments]
    smoothing = COARTICULATION + round(6 * mumbled)
    # two box filters give a transition without corners
    envelope_PD = np.repeat(np.array(shapes), counts, axis=0)
    for _ in range(2):
        envelope_PD = uniform_filter1d(envelope_PD, smoothing, axis=0, mode="nearest")
    level = manner.energy + melody.energy + delivery.energy
    energy_P = np.repeat(np.array(energies), counts)
    quiet_P = energy_P <= QUIET_DB
    # smoothed as amplitude instead of dB, where closures of −60 dB would dominate
    amplitude_P = uniform_filter1d(np.where(quiet_P, 0.0, 10 ** ((energy_P + level) / 20)), 3, mode="nearest")
    energy_P = np.maximum(20 * np.log10(np.maximum(amplitude_P, 1e-6)), SILENCE_DB)
    # declination: the energy falls by 3 dB over the utterance
    energy_P = np.where(energy_P > QUIET_DB, energy_P - 3.0 * np.linspace(0, 1, len(energy_P)), SILENCE_DB)
    breath = VOICE_APERIODICITY + manner.aperiodicity + 0.5 * delivery.of("hoarse")
    aperiodicity_P = np.clip(np.repeat(np.array(noise), counts) + breath, 0.01, 0.95)
    return envelope_PD, energy_P, np.repeat(np.array(voicing), counts), aperiodicity_P


def _pitch(
    utterance: Utterance, delivery: Delivery, segments: list[_Segment], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return F0 in Hz at all points, including unvoiced ones."""
    manner, melody = MANNERS[utterance.style], MELODIES[utterance.category]
    counts = [segment.points for segment in segments]
    word_P = np.repeat([segment.word for segment in segments], counts)
    syllable_P = np.repeat([segment.syllable for segment in segments], counts)
    length = len(word_P)
    time_P = np.linspace(0, 1, length)
    semitones_P = melody.base + melody.fall * time_P
    last = len(utterance.words) - 1
    for word, syllables in enumerate(utterance.words):
        stressed = np.flatnonzero((word_P == word) & (syllable_P == 0))
        ending = np.flatnonzero((word_P == word) & (syllable_P == len(syllables) - 1))
        # the accent is a smooth bump on the first syllable
        semitones_P[stressed] += melody.accent * np.hanning(len(stressed) + 2)[1:-1]
        movement = melody.end if word == last else melody.word_end
        semitones_P[ending] += movement * np.linspace(0, 1, len(ending)) ** 1.5
        if word == last:
            semitones_P[ending[-1] + 1 :] += movement  # the final silence continues at the reached pitch
    # the voice moves smoothly between syllables
    semitones_P = uniform_filter1d(semitones_P, 7, mode="nearest")
    semitones_P *= manner.movement * delivery.movement * (1 - delivery.of("monotone"))
    wild = delivery.of("wild")
    if wild:  # random pitch movement, interpolated between knots 120 ms apart
        knots = np.linspace(0, length - 1, max(3, length // 12))
        semitones_P += np.interp(np.arange(length), knots, 7.0 * wild * rng.standard_normal(len(knots)))
    hoarse = delivery.of("hoarse")
    if hoarse:  # jitter: independent noise at each point
        semitones_P += 0.8 * hoarse * rng.standard_normal(length)
    return np.asarray(utterance.speaker.pitch * 2 ** ((semitones_P + delivery.pitch) / 12))


def _average(
    f0_P: NDArray[np.float64],
    envelope_PD: NDArray[np.float64],
    energy_P: NDArray[np.float64],
    aperiodicity_P: NDArray[np.float64],
) -> Frames:
    """Average points to frames: the mean of the power, and power-weighted means of the other tracks."""
    count = -(-len(f0_P) // POINTS_PER_FRAME)
    # the last frame is filled with silence
    missing = count * POINTS_PER_FRAME - len(f0_P)

    def grouped(values: NDArray[np.float64], fill: float) -> NDArray[np.float64]:
        return np.concatenate([values, np.full(missing, fill)]).reshape(count, POINTS_PER_FRAME)

    power_TP = 10 ** (grouped(energy_P, SILENCE_DB) / 10)
    power_T = power_TP.mean(1)
    f0_TP = grouped(f0_P, 0.0)
    voiced_power_TP = power_TP * (f0_TP > 0)
    fraction_T = voiced_power_TP.sum(1) / power_TP.sum(1)
    # a frame is voiced if most of its power is voiced
    voiced_T = fraction_T > 0.5
    weight_TP = voiced_power_TP / np.maximum(voiced_power_TP.sum(1, keepdims=True), 1e-30)
    # pitch is averaged in octaves, the scale of perception
    octaves_T = (np.log2(np.maximum(f0_TP, 1.0)) * weight_TP).sum(1)
    aperiodicity_T = (grouped(aperiodicity_P, 1.0) * weight_TP).sum(1)
    full_PD = np.concatenate([envelope_PD, np.repeat(envelope_PD[-1:], missing, axis=0)])
    envelope_TPD = full_PD.reshape(count, POINTS_PER_FRAME, BANDS)
    all_weight_TP = power_TP / power_TP.sum(1, keepdims=True)
    return Frames(
        f0_T=np.where(voiced_T, 2.0**octaves_T, 0.0),
        envelope_TD=(envelope_TPD * all_weight_TP[:, :, None]).sum(1),
        energy_T=np.maximum(10 * np.log10(power_T), SILENCE_DB),
        aperiodicity_T=np.where(voiced_T, aperiodicity_T, 1.0),
    )
