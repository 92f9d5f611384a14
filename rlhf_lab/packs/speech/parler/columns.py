"""The delay pattern of Parler-TTS, column by column: what its decoder reads, what it may say, and log-probabilities.

A clip has T frames of K codes. Codebook k of frame t stands in column t + k, and its decoder reads at position j the
codes of column j − 1: the begin token where a codebook has not begun, the end token where it is over. Codebook 0
chooses in each column but the first between a code and the end; the others then have a code for every frame that
codebook 0 has. Probabilities are over these choices alone, so that those of all clips sum to one. Parler's own
`generate` lets other codebooks end later than codebook 0 and drops what is incomplete; a trained model hardly does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Codebooks:
    """The vocabulary of one column.

    Attributes:
        count: K, codebooks.
        size: S, codes of each.
        begin, end: the decoder's tokens before and behind a codebook's codes; both are S or above.
    """

    count: int
    size: int
    begin: int
    end: int


class Clip(NamedTuple):
    """Attributes:
    codes_TK: int64.
    is_ended: the model has ended it; False if it was cut, and then no choice of ending counts.
    """

    codes_TK: Tensor
    is_ended: bool


class ClipLogps(NamedTuple):
    """Log-probabilities of one clip, nats.

    Attributes:
        codes_TK: of each code, given all columns before its own.
        end: of ending behind the last frame; zero for a clip that was cut.
    """

    codes_TK: Tensor
    end: Tensor


def columns_of(clip: Clip, codebooks: Codebooks) -> int:
    """Columns that are predicted for a clip: with its last code, and with its end."""
    frames = len(clip.codes_TK)
    return max(frames + codebooks.count - 1, frames + clip.is_ended)


def decoder_inputs(clips: Sequence[Clip], codebooks: Codebooks) -> Tensor:
    """What the decoder reads to predict every column of the clips, (B, K, L), L the most columns of a clip."""
    columns = max(columns_of(clip, codebooks) for clip in clips)
    inputs_BKL = torch.full((len(clips), codebooks.count, columns), codebooks.end)
    for row, clip in enumerate(clips):
        for k in range(codebooks.count):
            inputs_BKL[row, k, : k + 1] = codebooks.begin
            codes_T = clip.codes_TK[: columns - k - 1, k]
            inputs_BKL[row, k, k + 1 : k + 1 + len(codes_T)] = codes_T
    return inputs_BKL


def choices(logits_BKLV: Tensor, codebooks: Codebooks, *, temperature: float, first_column: int = 0) -> Tensor:
    """Log-probability of each code, and as choice S of ending, in every column, (B, K, L, S + 1).

    Args:
        logits_BKLV: of columns from `first_column` on.
    """
    allowed = [*range(codebooks.size), codebooks.end]
    scores_BKLC = logits_BKLV[..., allowed] / temperature
    may_end_KL = torch.zeros(scores_BKLC.shape[1:3], dtype=torch.bool, device=scores_BKLC.device)
    may_end_KL[0] = first_column + torch.arange(scores_BKLC.shape[2], device=scores_BKLC.device) > 0
    is_barred_KLC = torch.zeros(scores_BKLC.shape[1:], dtype=torch.bool, device=scores_BKLC.device)
    is_barred_KLC[..., codebooks.size] = ~may_end_KL
    return scores_BKLC.masked_fill(is_barred_KLC, -torch.inf).log_softmax(-1)


def clip_logps(logps_KLC: Tensor, clip: Clip, codebooks: Codebooks) -> ClipLogps:
    """The log-probabilities of a clip among those of all choices (`choices`) in its columns."""
    frames = len(clip.codes_TK)
    frame_T = torch.arange(frames, device=logps_KLC.device)
    of_codes = [logps_KLC[k, frame_T + k, clip.codes_TK[:, k]] for k in range(codebooks.count)]
    end = logps_KLC[0, frames, codebooks.size] if clip.is_ended else logps_KLC.new_zeros(())
    return ClipLogps(torch.stack(of_codes, 1), end)


class Sampling:
    """Draws the columns of several clips of one prompt, and keeps the log-probability of each choice."""

    def __init__(self, clips: int, codebooks: Codebooks, *, max_frames: int, temperature: float, seed: int):
        self.codebooks, self.max_frames, self.temperature = codebooks, max_frames, temperature
        self.generator = torch.Generator().manual_seed(seed)
        self.frames_B = torch.full((clips,), max_frames)  # until codebook 0 ends earlier
        self.is_ended_B = torch.zeros(clips, dtype=torch.bool)
        self.drawn_BK: list[Tensor] = []
        self.logps_BK: list[Tensor] = []

    @property
    def is_complete(self) -> bool:
        """Whether every clip has all its codes."""
        return len(self.drawn_BK) >= int(self.frames_B.max()) + self.codebooks.count - 1

    def inputs(self) -> Tensor:
        """What the decoder reads to predict the next column, (B, K)."""
        column = len(self.drawn_BK) - 1
        k_K = torch.arange(self.codebooks.count)
        begin = torch.tensor(self.codebooks.begin)
        if column < 0:
            return begin.expand(len(self.frames_B), self.codebooks.count)
        is_over_BK = (column - k_K)[None] >= self.frames_B[:, None]
        codes_BK = self.drawn_BK[-1].masked_fill(is_over_BK, self.codebooks.end)
        return torch.where(column < k_K, begin, codes_BK)

    def draw(self, logits_BKV: Tensor) -> None:
        """Draw the next column of all clips from the decoder's logits."""
        column = len(self.drawn_BK)
        options = choices(logits_BKV[:, :, None], self.codebooks, temperature=self.temperature, first_column=column)
        logps_BKC = options[:, :, 0].cpu()
        flat = logps_BKC.flatten(0, 1).double().exp()
        drawn_BK = torch.multinomial(flat, 1, generator=self.generator).view(logps_BKC.shape[:2])
        self.drawn_BK.append(drawn_BK)
        self.logps_BK.append(logps_BKC.gather(2, drawn_BK[..., None])[..., 0])
        ends_B = (drawn_BK[:, 0] == self.codebooks.size) & (column < self.frames_B)
        self.is_ended_B |= ends_B
        self.frames_B[ends_B] = column

    def clips(self) -> list[tuple[Clip, ClipLogps]]:
        """The clips, and the log-probabilities with which they were drawn."""
        drawn_LBK, logps_LBK = torch.stack(self.drawn_BK), torch.stack(self.logps_BK)
        clips = []
        for row, (frames, is_ended) in enumerate(zip(self.frames_B.tolist(), self.is_ended_B.tolist(), strict=True)):
            spans = [slice(k, k + frames) for k in range(self.codebooks.count)]
            codes_TK = torch.stack([drawn_LBK[span, row, k] for k, span in enumerate(spans)], 1)
            logps_TK = torch.stack([logps_LBK[span, row, k] for k, span in enumerate(spans)], 1)
            end = logps_LBK[frames, row, 0] if is_ended else logps_LBK.new_zeros(())
            clips.append((Clip(codes_TK, is_ended), ClipLogps(logps_TK, end)))
        return clips
