"""Delay pattern of Parler-TTS, column by column: decoder inputs, allowed choices and log-probabilities.

A clip has T frames of K codes. Codebook k of frame t is in column t + k. At position j the decoder reads the codes of
column j − 1: the start token before the first frame of a codebook, and the end token after its last frame. Codebook 0
chooses between a code and the end in each column except the first. The other codebooks have a code for each frame of
codebook 0. Probabilities are normalised over these choices, so that the probabilities of all clips sum to one. Parler's
own `generate` lets other codebooks end later than codebook 0 and drops incomplete frames. Trained models rarely do so.
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
        count: number of codebooks, K.
        size: number of codes of each codebook, S.
        start, end: decoder tokens before and after the codes of a codebook; both are S or above.
        min_frames: minimum number of frames of a clip; an earlier end has probability 0.
    """

    count: int
    size: int
    start: int
    end: int
    min_frames: int = 1


class CodecClip(NamedTuple):
    """Codes of one clip.

    Attributes:
        codes_TK: codec codes, int64.
        is_finished: True if the model ended the clip; False if it was cut, so that the end has no log-probability.
    """

    codes_TK: Tensor
    is_finished: bool


class ClipLogps(NamedTuple):
    """Log-probabilities of one clip in nats.

    Attributes:
        codes_TK: log-probability of each code, conditioned on all previous columns.
        end: log-probability of the end after the last frame; 0 for a clip that was cut.
    """

    codes_TK: Tensor
    end: Tensor


def columns_of(clip: CodecClip, codebooks: Codebooks) -> int:
    """Return the number of columns predicted for a clip, up to its last code and its end."""
    frames = len(clip.codes_TK)
    # the last code of codebook K − 1 is in column T + K − 2, the end of codebook 0 in column T
    return max(frames + codebooks.count - 1, frames + clip.is_finished)


def decoder_inputs(clips: Sequence[CodecClip], codebooks: Codebooks) -> Tensor:
    """Return the decoder inputs for all columns of the clips, (B, K, L), where L is the largest column count."""
    columns = max(columns_of(clip, codebooks) for clip in clips)
    inputs_BKL = torch.full((len(clips), codebooks.count, columns), codebooks.end)
    for row, clip in enumerate(clips):
        for k in range(codebooks.count):
            # codebook k starts in column k, and position j reads column j − 1: hence k + 1 start tokens
            inputs_BKL[row, k, : k + 1] = codebooks.start
            codes_T = clip.codes_TK[: columns - k - 1, k]
            inputs_BKL[row, k, k + 1 : k + 1 + len(codes_T)] = codes_T
    return inputs_BKL


def choices(logits_BKLV: Tensor, codebooks: Codebooks, *, temperature: float, first_column: int = 0) -> Tensor:
    """Return log-probabilities for every column, (B, K, L, S + 1): codes at indices 0 to S − 1, the end token at S.

    Args:
        logits_BKLV: decoder logits of the columns from `first_column` on.
    """
    allowed = [*range(codebooks.size), codebooks.end]
    logits_BKLC = logits_BKLV[..., allowed]
    if logits_BKLC.dtype == torch.bfloat16:  # its log-probabilities would have three digits
        logits_BKLC = logits_BKLC.float()
    scores_BKLC = logits_BKLC / temperature
    # only codebook 0 may end a clip; never in the first column, so that each clip has at least one frame
    may_end_KL = torch.zeros(scores_BKLC.shape[1:3], dtype=torch.bool, device=scores_BKLC.device)
    column_L = first_column + torch.arange(scores_BKLC.shape[2], device=scores_BKLC.device)
    may_end_KL[0] = column_L >= max(1, codebooks.min_frames)
    is_barred_KLC = torch.zeros(scores_BKLC.shape[1:], dtype=torch.bool, device=scores_BKLC.device)
    is_barred_KLC[..., codebooks.size] = ~may_end_KL
    return scores_BKLC.masked_fill(is_barred_KLC, -torch.inf).log_softmax(-1)


def clip_logps(logps_KLC: Tensor, clip: CodecClip, codebooks: Codebooks) -> ClipLogps:
    """Select the log-probabilities of a clip from those of all choices in its columns (`choices`)."""
    frames = len(clip.codes_TK)
    frame_T = torch.arange(frames, device=logps_KLC.device)
    # codebook k of frame t is in column t + k
    of_codes = [logps_KLC[k, frame_T + k, clip.codes_TK[:, k]] for k in range(codebooks.count)]
    end = logps_KLC[0, frames, codebooks.size] if clip.is_finished else logps_KLC.new_zeros(())
    return ClipLogps(torch.stack(of_codes, 1), end)


def clip_kl(policy_KLC: Tensor, reference_KLC: Tensor, clip: CodecClip) -> Tensor:
    """Return KL(policy ‖ reference) of a clip in nats: the sum over its choices, each exact over all options.

    Args:
        policy_KLC, reference_KLC: log-probabilities of all choices in the columns of the clip (`choices`).
    """
    probability_KLC = policy_KLC.exp()
    # an option that both models rule out has log-probability −∞ − (−∞), and contributes nothing
    terms_KLC = torch.where(probability_KLC > 0, probability_KLC * (policy_KLC - reference_KLC), 0.0)
    kl_KL = terms_KLC.sum(-1)
    frames = len(clip.codes_TK)
    of_codes = [kl_KL[k, k : k + frames].sum() for k in range(len(kl_KL))]
    # a cut clip has no choice after its last frame
    end = kl_KL[0, frames] if clip.is_finished else kl_KL.new_zeros(())
    return torch.stack([*of_codes, end]).sum()


class ColumnSampler:
    """Sampler of the columns of several clips of one prompt. It records the log-probability of each choice."""

    def __init__(self, clips: int, codebooks: Codebooks, *, max_frames: int, temperature: float, seed: int):
        self.codebooks, self.max_frames, self.temperature = codebooks, max_frames, temperature
        self.generator = torch.Generator().manual_seed(seed)
        self.frames_B = torch.full((clips,), max_frames)  # lowered once codebook 0 chooses the end
        self.is_ended_B = torch.zeros(clips, dtype=torch.bool)
        self.sampled_BK: list[Tensor] = []
        self.logps_BK: list[Tensor] = []

    @property
    def is_complete(self) -> bool:
        """True if every clip has all its codes."""
        return len(self.sampled_BK) >= int(self.frames_B.max()) + self.codebooks.count - 1

    def inputs(self) -> Tensor:
        """Return the decoder inputs for the next column, (B, K)."""
        column = len(self.sampled_BK) - 1
        k_K = torch.arange(self.codebooks.count)
        start = torch.tensor(self.codebooks.start)
        if column < 0:
            return start.expand(len(self.frames_B), self.codebooks.count)
        # codebook k has finished once its next frame is beyond the end of the clip
        is_over_BK = (column - k_K)[None] >= self.frames_B[:, None]
        codes_BK = self.sampled_BK[-1].masked_fill(is_over_BK, self.codebooks.end)
        return torch.where(column < k_K, start, codes_BK)

    def draw(self, logits_BKV: Tensor) -> None:
        """Sample the next column of all clips from the decoder's logits."""
        column = len(self.sampled_BK)
        options = choices(logits_BKV[:, :, None], self.codebooks, temperature=self.temperature, first_column=column)
        # sampled on the CPU, so that the random numbers do not depend on the device
        logps_BKC = options[:, :, 0].cpu()
        flat = logps_BKC.flatten(0, 1).double().exp()
        sampled_BK = torch.multinomial(flat, 1, generator=self.generator).view(logps_BKC.shape[:2])
        self.sampled_BK.append(sampled_BK)
        self.logps_BK.append(logps_BKC.gather(2, sampled_BK[..., None])[..., 0])
        # after its end a clip is still sampled until all clips are complete, and those columns are ignored
        ends_B = (sampled_BK[:, 0] == self.codebooks.size) & (column < self.frames_B)
        self.is_ended_B |= ends_B
        self.frames_B[ends_B] = column

    def clips(self) -> list[tuple[CodecClip, ClipLogps]]:
        """Return the clips with the log-probabilities at which they were sampled."""
        sampled_LBK, logps_LBK = torch.stack(self.sampled_BK), torch.stack(self.logps_BK)
        clips = []
        for row, (frames, is_finished) in enumerate(zip(self.frames_B.tolist(), self.is_ended_B.tolist(), strict=True)):
            # undo the delay: codebook k of all frames is in columns k … k + frames − 1
            spans = [slice(k, k + frames) for k in range(self.codebooks.count)]
            codes_TK = torch.stack([sampled_LBK[span, row, k] for k, span in enumerate(spans)], 1)
            logps_TK = torch.stack([logps_LBK[span, row, k] for k, span in enumerate(spans)], 1)
            end = logps_LBK[frames, row, 0] if is_finished else logps_LBK.new_zeros(())
            clips.append((CodecClip(codes_TK, is_finished), ClipLogps(logps_TK, end)))
        return clips
