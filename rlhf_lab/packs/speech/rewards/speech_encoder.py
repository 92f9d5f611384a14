"""A reward model on the waveform: a Wav2Vec2 trunk (arXiv:2006.11477), the mean over time, and a scalar head.

The file format is that of transformers (config.json, model.safetensors), with `head.safetensors` and
`speech_encoder.json` beside it.

Clips of one length make a batch, so that none is padded: trunks with a group norm in their feature encoder normalise
over time, and padding would change the score of a clip with what it is batched with. Streams of a codec have few
different lengths.
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
from rlhf_lab.core.files import read_json, write_text
from rlhf_lab.core.media import Audio

FILE = "speech_encoder.json"
HEAD_FILE = "head.safetensors"
RATE = 16000
"""Samples a second of the audio that Wav2Vec2 was made for."""
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
    # what the trunk would mask or drop in training is noise in the score of a clip
    "apply_spec_augment": False,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "feat_proj_dropout": 0.0,
    "layerdrop": 0.0,
}
"""A trunk of some 50,000 weights that starts at random: 50 positions a second, as the published ones."""


class SpeechScorer(nn.Module):
    """Samples → a score.

    Attributes:
        trunk: transformers' `Wav2Vec2Model`.
        frozen: whether only the head is trained.
    """

    def __init__(self, trunk: Any, *, frozen: bool):
        super().__init__()
        self.trunk = trunk
        self.frozen = frozen
        # starts at zero, so that all clips are worth the same before training
        self.head = nn.Linear(trunk.config.hidden_size, 1, bias=False)
        nn.init.zeros_(self.head.weight)
        self.trunk.requires_grad_(not frozen)

    def forward(self, samples_BN: Tensor) -> Tensor:
        """Scores, (B,), of clips of one length, standardised each by itself as the trunk was trained."""
        mean_B1 = samples_BN.mean(dim=1, keepdim=True)
        sd_B1 = samples_BN.std(dim=1, keepdim=True, unbiased=False)
        inputs_BN = (samples_BN - mean_B1) / (sd_B1 + 1e-7)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            states_BTd = self.trunk(inputs_BN).last_hidden_state
        scores_B: Tensor = self.head(states_BTd.mean(dim=1)).squeeze(-1)
        return scores_B


def load_trunk(source: str, seed: int) -> Any:
    """A `Wav2Vec2Model` from a folder or hub id; a small random one (`TINY`) where `source` is empty."""
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    if not source:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Wav2Vec2Model(Wav2Vec2Config(**TINY)).eval()
    try:
        # masking of spans and dropped layers would be noise in the score of a clip
        trunk = Wav2Vec2Model.from_pretrained(source, apply_spec_augment=False, layerdrop=0.0)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"algorithm.trunk={source} cannot be read as a Wav2Vec2 model ({error}); name a folder with config.json "
            "and weights, a hub id such as facebook/wav2vec2-base, or leave it empty for a small random one"
        ) from error
    return trunk.eval()


def receptive_samples(trunk: Any) -> int:
    """Samples that the feature encoder needs for its first position."""
    samples = 1
    layers = list(zip(trunk.config.conv_kernel, trunk.config.conv_stride, strict=True))
    for kernel, stride in reversed(layers):
        samples = (samples - 1) * stride + kernel
    return samples


@dataclass(frozen=True)
class SpeechModel:
    """A trained reward model on waveforms.

    Attributes:
        mean, sd: of the scorer's outputs on training clips.
        batch_seconds: audio per forward pass.
    """

    scorer: SpeechScorer
    device: str
    mean: float = 0.0
    sd: float = 1.0
    batch_seconds: float = 60.0

    @torch.no_grad()
    def outputs(self, clips: Sequence[Audio]) -> FloatArray:
        """What the scorer gives, (N,); NaN for clips too short for one position of the trunk."""
        self.scorer.eval()
        outputs_N = np.full(len(clips), np.nan)
        shortest = receptive_samples(self.scorer.trunk)
        for rows in equal_lengths(clips, self.batch_seconds):
            if len(clips[rows[0]].samples_N) >= shortest:
                outputs_N[rows] = self.scorer(stacked(clips, rows, self.device)).double().cpu().numpy()
        return outputs_N

    def __call__(self, clips: Sequence[Audio], silent: float) -> FloatArray:
        """Standardised scores, (N,); `silent` for clips without a sample that is not 0, or too short."""
        scores_N = (self.outputs(clips) - self.mean) / self.sd
        return np.where(has_sound(clips) & np.isfinite(scores_N), scores_N, silent)

    def with_scale(self, clips: Sequence[Audio]) -> SpeechModel:
        """The model whose scores have mean 0 and standard deviation 1 on these clips, without the silent ones.

        Raises ConfigError for fewer than two clips with sound that are long enough for the trunk.
        """
        outputs_N = self.outputs(clips)
        outputs_N = outputs_N[has_sound(clips) & np.isfinite(outputs_N)]
        if len(outputs_N) < 2:
            raise ConfigError(
                f"{len(outputs_N)} of {len(clips)} training clips have sound and are long enough for the trunk; the "
                "scale of the score is that of 2 or more: give other data"
            )
        return replace(self, mean=float(outputs_N.mean()), sd=max(float(outputs_N.std()), 1e-9))

    def save(self, folder: Path) -> None:
        """Write trunk, head and scale; the scale, by which `load` knows the folder, last."""
        folder.mkdir(parents=True, exist_ok=True)
        self.scorer.trunk.save_pretrained(folder)
        save_file({"weight": self.scorer.head.weight.detach().cpu().contiguous()}, folder / HEAD_FILE)
        entries = {"score_mean": self.mean, "score_sd": self.sd, "frozen": self.scorer.frozen}
        write_text(folder / FILE, json.dumps(entries, indent=1))

    @classmethod
    def load(cls, source: str | Path, role: str, device: str, batch_seconds: float) -> SpeechModel:
        """Read what `save` wrote. Raises ConfigError where the folder holds something else.

        Args:
            role: of `needs`, for the error.
        """
        folder = Path(source)
        entries = read_json(folder / FILE)
        if not isinstance(entries, dict):
            raise ConfigError(
                f"needs.{role}={source} has no {FILE}; name the folder of a run of algorithm=wav2vec2_reward"
            )
        scorer = SpeechScorer(load_trunk(str(folder), seed=0), frozen=entries["frozen"])
        scorer.head.load_state_dict(load_file(folder / HEAD_FILE))
        return cls(scorer.to(device).eval(), device, entries["score_mean"], entries["score_sd"], batch_seconds)


def has_sound(clips: Sequence[Audio]) -> BoolArray:
    """Clips with a sample that is not 0, (N,)."""
    return np.array([bool(clip.samples_N.any()) for clip in clips], dtype=bool)


def equal_lengths(clips: Sequence[Audio], batch_seconds: float) -> Iterator[list[int]]:
    """Indices of clips with the same number of samples, in batches of at most so much audio, at least one clip."""
    by_length: dict[int, list[int]] = {}
    for i, clip in enumerate(clips):
        by_length.setdefault(len(clip.samples_N), []).append(i)
    for length, rows in by_length.items():
        size = max(1, int(batch_seconds * RATE / max(length, 1)))
        for begin in range(0, len(rows), size):
            yield rows[begin : begin + size]


def stacked(clips: Sequence[Audio], rows: Sequence[int], device: str) -> Tensor:
    """Samples of clips of one length, (B, N). Raises ConfigError for another rate than Wav2Vec2 was made for."""
    other = next((clips[i].rate for i in rows if clips[i].rate != RATE), None)
    if other is not None:
        raise ConfigError(f"Wav2Vec2 takes {RATE} samples a second, and these clips have {other}; use another codec")
    return torch.from_numpy(np.stack([clips[i].samples_N for i in rows])).to(device)
