"""Reward term on the waveform: a Wav2Vec2 trunk (arXiv:2006.11477), the mean over time, and a scalar head.

A saved model has the files of transformers (config.json, model.safetensors), plus `head.safetensors` and
`speech_encoder.json`.

A batch contains clips of equal length, so that no clip is padded. Trunks with a group norm in their feature encoder
normalise over time, so padding would make the score of a clip depend on its batch. Batches remain large, because
streams of a codec have few different lengths.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rlhf_lab.core.arrays import BoolArray, FloatArray
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import read_object, write_text
from rlhf_lab.core.media import Audio
from rlhf_lab.core.types import TextReward
from rlhf_lab.models.model_files import reading_weights
from rlhf_lab.packs.speech.rewards.clips import model_file, renderer_of, reward_of_sound
from rlhf_lab.packs.speech.rewards.settings import SpeechEncoder
from rlhf_lab.training.run import Run

FILE = "speech_encoder.json"
HEAD_FILE = "head.safetensors"
RATE = 16000
"""Sampling rate that Wav2Vec2 expects, in Hz."""
TINY: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "conv_dim": (16, 16, 32),
    "conv_stride": (10, 8, 4),
    "conv_kernel": (20, 16, 8),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    # masking and dropout in training would add noise to the score of a clip
    "apply_spec_augment": False,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "feat_proj_dropout": 0.0,
    "layerdrop": 0.0,
}
"""Configuration of a small random trunk with about 50,000 weights. It has 50 positions per second, like published
trunks."""


class SpeechScorer(nn.Module):
    """Network from samples to a score.

    Attributes:
        trunk: `Wav2Vec2Model` of transformers.
        frozen: True if only the head is trained.
    """

    def __init__(self, trunk: Any, *, frozen: bool):
        super().__init__()
        self.trunk = trunk
        self.frozen = frozen
        # initialised to zero, so that all clips have the same score before training
        self.head = nn.Linear(trunk.config.hidden_size, 1, bias=False)
        nn.init.zeros_(self.head.weight)
        self.trunk.requires_grad_(not frozen)

    def forward(self, samples_BN: Tensor) -> Tensor:
        """Return the scores of clips of equal length, (B,)."""
        # each clip is standardised separately, as in the training of the trunk
        mean_B1 = samples_BN.mean(dim=1, keepdim=True)
        sd_B1 = samples_BN.std(dim=1, keepdim=True, unbiased=False)
        inputs_BN = (samples_BN - mean_B1) / (sd_B1 + 1e-7)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            states_BTd = self.trunk(inputs_BN).last_hidden_state
        scores_B: Tensor = self.head(states_BTd.mean(dim=1)).squeeze(-1)
        return scores_B


def load_trunk(source: str, seed: int) -> Any:
    """Load a `Wav2Vec2Model` from a directory or hub id; an empty `source` creates a small random one (`TINY`).

    Raises ConfigError if the source cannot be read, or is a model of another architecture.
    """
    from transformers import AutoConfig, Wav2Vec2Config, Wav2Vec2Model

    if not source:
        # the fork keeps the seed from changing the global random state
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Wav2Vec2Model(Wav2Vec2Config(**TINY)).eval()
    try:
        # transformers only warns about another architecture, and gives random values to the weights that it lacks
        found = AutoConfig.from_pretrained(source).model_type
        if found != Wav2Vec2Config.model_type:
            raise ValueError(f"its model_type is {found}; expected {Wav2Vec2Config.model_type}")
        # masked spans and dropped layers would add noise to the score of a clip; samples and head are float32
        trunk = Wav2Vec2Model.from_pretrained(source, dtype=torch.float32, apply_spec_augment=False, layerdrop=0.0)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"algorithm.trunk={source} cannot be read as a Wav2Vec2 model ({error}); name a directory with config.json "
            "and weights or a hub id such as facebook/wav2vec2-base, or leave it empty for a small random model"
        ) from error
    return trunk.eval()


def receptive_samples(trunk: Any) -> int:
    """Return the number of samples that the feature encoder needs for one position."""
    # receptive field, computed from the last convolution back to the input
    samples = 1
    layers = list(zip(trunk.config.conv_kernel, trunk.config.conv_stride, strict=True))
    for kernel, stride in reversed(layers):
        samples = (samples - 1) * stride + kernel
    return samples


@dataclass(frozen=True)
class SpeechModel:
    """A trained reward model on waveforms.

    Attributes:
        scorer: network from samples to a score.
        device: device of the scorer.
        mean, sd: mean and standard deviation of the scorer's outputs on training clips.
        batch_seconds: seconds of audio per forward pass.
    """

    scorer: SpeechScorer
    device: str
    mean: float = 0.0
    sd: float = 1.0
    batch_seconds: float = 60.0

    @torch.no_grad()
    def outputs(self, clips: Sequence[Audio]) -> FloatArray:
        """Return the outputs of the scorer, (N,); NaN for clips that are too short for one position of the trunk."""
        self.scorer.eval()
        outputs_N = np.full(len(clips), np.nan)
        shortest = receptive_samples(self.scorer.trunk)
        for rows in equal_lengths(clips, self.batch_seconds):
            if len(clips[rows[0]].samples_N) >= shortest:
                outputs_N[rows] = self.scorer(stacked(clips, rows, self.device)).double().cpu().numpy()
        return outputs_N

    def __call__(self, clips: Sequence[Audio], silent: float) -> FloatArray:
        """Return standardised scores, (N,); `silent` for clips that contain only zeros or are too short."""
        scores_N = (self.outputs(clips) - self.mean) / self.sd
        return np.where(has_sound(clips) & np.isfinite(scores_N), scores_N, silent)

    def with_scale(self, clips: Sequence[Audio]) -> SpeechModel:
        """Return a model whose scores have mean 0 and standard deviation 1 on these clips, without silent ones.

        Raises ConfigError unless two or more clips have sound and are long enough for the trunk.
        """
        outputs_N = self.outputs(clips)
        outputs_N = outputs_N[has_sound(clips) & np.isfinite(outputs_N)]
        if len(outputs_N) < 2:
            raise ConfigError(
                f"{len(outputs_N)} of {len(clips)} training clips have sound and are long enough for the trunk; 2 or "
                "more are needed to standardise the score. Use other data"
            )
        return replace(self, mean=float(outputs_N.mean()), sd=max(float(outputs_N.std()), 1e-9))

    def save(self, directory: Path) -> None:
        """Write trunk, head and scale. The scale is written last, because `load` recognises a complete model by it."""
        directory.mkdir(parents=True, exist_ok=True)
        self.scorer.trunk.save_pretrained(directory)
        save_file({"weight": self.scorer.head.weight.detach().cpu().contiguous()}, directory / HEAD_FILE)
        entries = {"score_mean": self.mean, "score_sd": self.sd, "frozen": self.scorer.frozen}
        write_text(directory / FILE, json.dumps(entries, indent=1))

    @classmethod
    def load(cls, source: str | Path, role: str, device: str, batch_seconds: float) -> SpeechModel:
        """Read a model written by `save`. Raises ConfigError if the directory contains none.

        Args:
            role: role of the model in `needs`, for the error message.
        """
        file = model_file(source, FILE, role, "algorithm=wav2vec2_reward")
        with reading_weights(file.parent):
            entries = read_object(file)
            frozen, mean, sd = entries["frozen"], entries["score_mean"], entries["score_sd"]
            scorer = SpeechScorer(load_trunk(str(file.parent), seed=0), frozen=frozen)
            scorer.head.load_state_dict(load_file(file.with_name(HEAD_FILE)))
            return cls(scorer.to(device).eval(), device, mean, sd, batch_seconds)


def has_sound(clips: Sequence[Audio]) -> BoolArray:
    """Return True for clips with a non-zero sample, (N,)."""
    return np.array([bool(clip.samples_N.any()) for clip in clips], dtype=bool)


def equal_lengths(clips: Sequence[Audio], batch_seconds: float) -> Iterator[list[int]]:
    """Yield batches of indices of clips with the same number of samples.

    A batch has up to `batch_seconds` of audio, or a single longer clip.
    """
    by_length: dict[int, list[int]] = {}
    for i, clip in enumerate(clips):
        by_length.setdefault(len(clip.samples_N), []).append(i)
    for length, rows in by_length.items():
        # a clip longer than batch_seconds is a batch of its own
        size = max(1, int(batch_seconds * RATE / max(length, 1)))
        for start in range(0, len(rows), size):
            yield rows[start : start + size]


def stacked(clips: Sequence[Audio], rows: Sequence[int], device: str) -> Tensor:
    """Stack the samples of clips of equal length, (B, N). Raises ConfigError if their rate is not `RATE`."""
    # a different rate would scale all frequencies without an error
    other = next((clips[i].rate for i in rows if clips[i].rate != RATE), None)
    if other is not None:
        raise ConfigError(
            f"Wav2Vec2 expects {RATE} samples per second, but the clips have {other}; use a codec with that rate"
        )
    return torch.from_numpy(np.stack([clips[i].samples_N for i in rows])).to(device)


def build(settings: SpeechEncoder, run: Run) -> TextReward:
    renderer = renderer_of(run, "reward=wav2vec2")
    model = SpeechModel.load(run.needs["wav2vec2"], "wav2vec2", run.device, settings.batch_seconds)
    return reward_of_sound(lambda responses: model(renderer.render(responses), settings.silent))
