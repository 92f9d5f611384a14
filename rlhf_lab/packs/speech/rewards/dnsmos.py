"""Opinion scores by DNSMOS, as a reward term and for `algorithm.mos=dnsmos`: a neural network that predicts how people
rate a clip, 1…5, from its waveform alone.

Source: Reddy, Gopal and Cutler (2021), "DNSMOS: A non-intrusive perceptual objective speech quality metric to evaluate
noise suppressors", ICASSP, arXiv:2010.15258. The weights are those of the package `speechmos` (extra `speech`), which
also has models for separate scores of speech and noise. This is the one trained on overall ratings by ITU-T P.808. It
was trained on recorded speech with noise and its suppression, so its scores of synthetic voices need validation.

Difference from `speechmos`: a clip shorter than the input is repeated to exactly its length and scored once, instead of
at every second of a longer repetition.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.core.arrays import FloatArray
from rlhf_lab.core.errors import OPTIONAL, ConfigError, MissingDependency
from rlhf_lab.core.media import Audio
from rlhf_lab.core.progress import progress
from rlhf_lab.core.types import TextReward
from rlhf_lab.packs.speech.rewards.clips import renderer_of, reward_of_sound
from rlhf_lab.packs.speech.rewards.settings import OpinionScore
from rlhf_lab.packs.speech.sound.audio import import_librosa
from rlhf_lab.training.run import Run

RATE = 16000
"""Sampling rate of the network's input in Hz."""
INPUT_SECONDS = 9.01
"""Length of the network's input."""
INPUT_SAMPLES = int(INPUT_SECONDS * RATE)
LOWEST = 1.0
"""Score of a clip without sound: the lowest opinion score."""
HOP = 160
MELS = 120
BATCH = 16
"""Number of inputs per pass of the network."""


def predict(clips: Sequence[Audio]) -> FloatArray:
    """Return the predicted mean opinion score of each clip, 1…5, (N,); `LOWEST` for clips without sound.

    Raises:
        ConfigError: a clip has another rate than 16,000 samples per second.
        MissingDependency: the extra `speech` is not installed.
    """
    if other := next((clip.rate for clip in clips if clip.rate != RATE), None):
        raise ConfigError(f"DNSMOS expects {RATE} samples per second, but the clips have {other}; resample them")
    scores_N = np.full(len(clips), LOWEST)
    audible = [i for i, clip in enumerate(clips) if clip.samples_N.any()]
    with progress("DNSMOS", len(audible)) as ticker:
        for start in range(0, len(audible), BATCH):
            rows = audible[start : start + BATCH]
            windows = [windows_of(clips[row].samples_N) for row in rows]
            scores_W = _scores([window_N for own in windows for window_N in own])
            # a long clip has several windows, and its score is their mean
            ends = np.cumsum([len(own) for own in windows])[:-1]
            scores_N[rows] = [own_W.mean() for own_W in np.split(scores_W, ends)]
            ticker.advance(len(rows))
    return scores_N


def windows_of(samples_N: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    """Return the inputs of a clip: one at every second, or one of the repeated clip if it is shorter than an input."""
    if len(samples_N) < INPUT_SAMPLES:
        repeats = -(-INPUT_SAMPLES // len(samples_N))
        return [np.tile(samples_N, repeats)[:INPUT_SAMPLES]]
    count = int(len(samples_N) // RATE - INPUT_SECONDS) + 1
    return [samples_N[second * RATE : second * RATE + INPUT_SAMPLES] for second in range(count)]


def _scores(windows: Sequence[NDArray[np.float32]]) -> FloatArray:
    """Return the score of each input, (W,)."""
    scores = []
    for start in range(0, len(windows), BATCH):
        levels_WTM = np.stack([_mel_levels(window_N) for window_N in windows[start : start + BATCH]])
        output_W1 = _network().run(None, {"input_1": levels_WTM})[0]
        scores.append(output_W1[:, 0])
    return np.concatenate(scores).astype(np.float64)


def _mel_levels(window_N: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the input of the network, (T, M): levels relative to the loudest, 0 dB scaled to 1 and −80 dB to −1."""
    librosa = import_librosa()
    power_MT = librosa.feature.melspectrogram(
        y=window_N[:-HOP], sr=RATE, n_fft=2 * HOP + 1, hop_length=HOP, n_mels=MELS
    )
    levels_MT = (librosa.power_to_db(power_MT, ref=np.max) + 40) / 40
    levels_TM: NDArray[np.float32] = levels_MT.T.astype(np.float32)
    return levels_TM


def build(settings: OpinionScore, run: Run) -> TextReward:
    del settings  # it has no setting of its own
    renderer = renderer_of(run, "reward=dnsmos")
    return reward_of_sound(lambda responses: predict(renderer.render(responses)))


@lru_cache(maxsize=1)
def _network() -> Any:
    """Load the network. Raises MissingDependency if the extra `speech` is not installed."""
    try:
        import onnxruntime

        weights = files("speechmos") / "dnsmos_models" / "model_v8.onnx"
    except ModuleNotFoundError as error:
        raise MissingDependency(*OPTIONAL["speechmos"]) from error

    options = onnxruntime.SessionOptions()
    # waiting threads of onnxruntime keep their core busy, which slows down every other process
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(weights), options, providers=["CPUExecutionProvider"])
