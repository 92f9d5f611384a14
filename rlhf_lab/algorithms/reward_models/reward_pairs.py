"""Loss of a training step of reward models: one value per pair and member of the ensemble.

ODIN's length term is a statistic of a full step. If a step is split into several forward passes, a pass without
gradient first computes the statistic and its derivative by every score (`add_step_statistics`). Each pass then adds its
part, so the gradient equals that of the unsplit step up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from rlhf_lab.algorithms.reward_models.reward_members import Member
from rlhf_lab.algorithms.reward_models.settings import RewardModel
from rlhf_lab.losses.reward_model import bradley_terry, head_overlap, length_split, spread_over_pairs, stated_confidence
from rlhf_lab.models.build import reward_outputs
from rlhf_lab.models.encoding import Encoder, TokenBatch
from rlhf_lab.models.pair_rows import PairRows, pair_batch
from rlhf_lab.training.loop import LossOutput

Statistic = tuple[Tensor, Tensor]
"""Length statistic of a step, (), and its derivative by the scores of this pass's pairs, (2, B, outputs).

The derivative is multiplied by the number of pairs of the step."""


@dataclass(frozen=True)
class PairMicro:
    """One forward pass.

    Attributes:
        model: trunk and head of the forward pass.
        members: members that the head scores.
        batch: all chosen rows, then all rejected ones; with stated confidence, four more rows per pair follow.
        weight_KB: weight of each pair in the loss of each member; 0 if the member does not train on it.
        statistics: length term of the full step for each member; None if this pass is the full step.
    """

    model: nn.Module
    members: Sequence[Member]
    batch: TokenBatch
    weight_KB: Tensor
    statistics: Sequence[Statistic] | None = None

    @property
    def tokens_2B(self) -> Tensor:
        """Response lengths of both sides in tokens, (2, B), without the rows of stated confidence."""
        length_R = self.batch.length_B - self.batch.prompt_len_B
        return length_R[: 2 * self.weight_KB.shape[1]].view(2, -1)


def confidence_rows(encoder: Encoder, pair: PairRows, sure: str, unsure: str, max_length: int) -> list[PairRows]:
    """Append a confidence sentence to each response and return ((chosen, sure), (chosen, unsure)), then the same for
    the rejected response.

    If a row is too long, the end of the response is cut, not the sentence.
    """
    space = " " if encoder.chat else ""  # without a chat template `response` adds a space itself
    ends = [encoder.response(space + sure), encoder.response(space + unsure)]

    def append_sentence(row: tuple[list[int], list[int]], end: list[int]) -> tuple[list[int], list[int]]:
        prompt, response = row
        # the sentence belongs before EOS; `end` already contains its own EOS
        body = response[:-1] if response[-1:] == [encoder.eos_id] else response
        prompt = prompt[max(len(prompt) + len(end) - max_length, 0) :]
        return prompt, body[: max_length - len(prompt) - len(end)] + end

    return [(append_sentence(row, ends[0]), append_sentence(row, ends[1])) for row in pair]


def confidence_batch(pairs: Sequence[PairRows], stated: Sequence[Sequence[PairRows]], device: str) -> TokenBatch:
    """Return a batch (6B, T): chosen, rejected, chosen sure, chosen unsure, rejected sure, rejected unsure."""
    blocks = [[pair[side] for pair in pairs] for side in range(2)]
    for side in range(2):
        for end in range(2):
            blocks.append([rows[side][end] for rows in stated])
    return TokenBatch.from_rows([row for block in blocks for row in block], device)


def make_batch(pairs: Sequence[PairRows], stated: Sequence[Sequence[PairRows]] | None, device: str) -> TokenBatch:
    return pair_batch(pairs, device) if stated is None else confidence_batch(pairs, stated, device)


def pair_loss(micro: PairMicro, settings: RewardModel) -> LossOutput:
    """Return the loss of each pair, weighted and summed over the members of this pass."""
    outputs_RA = reward_outputs(micro.model, micro.batch)
    losses, margins = [], []
    for k, member in enumerate(micro.members):
        loss_B, margin_B = _member_loss(k, member.select_outputs(outputs_RA), micro, settings)
        weight_B = micro.weight_KB[k]
        losses.append(weight_B * loss_B)
        margins.append(margin_B[weight_B > 0])  # accuracy and margin only count pairs that the member trains on
    margin_N = torch.cat(margins).detach()
    return LossOutput(torch.stack(losses).sum(0), {"accuracy": (margin_N > 0).float(), "margin": margin_N})


def _member_loss(k: int, scores_RA: Tensor, micro: PairMicro, settings: RewardModel) -> tuple[Tensor, Tensor]:
    """Return (loss, margin in the score that is used after training) of each pair under member k, (B,) each."""
    pairs = micro.weight_KB.shape[1]
    scores_2BA = scores_RA[: 2 * pairs].view(2, pairs, -1)
    # With a length head the pair loss uses quality + length, but the later score is quality alone.
    loss_B = bradley_terry(*scores_2BA.sum(-1), margin=settings.margin, centering=settings.centering)
    if settings.confidence_weight:
        stated_4B = scores_RA[2 * pairs :, 0].view(4, pairs)
        loss_B = loss_B + settings.confidence_weight * stated_confidence(*stated_4B)
    if settings.length_head:
        loss_B = loss_B + settings.length_weight * _length_term(k, scores_2BA, micro)
        overlap = head_overlap(*micro.members[k].head().float())  # the same for every pair
        loss_B = loss_B + settings.orthogonal_weight * overlap
    chosen_B, rejected_B = scores_2BA[..., 0]
    return loss_B, chosen_B - rejected_B


def _length_term(k: int, scores_2BA: Tensor, micro: PairMicro) -> Tensor:
    """Return the length statistic of the step, (), or this pass's part of it, (B,)."""
    if micro.statistics is None:
        return length_statistic(scores_2BA, micro.tokens_2B, micro.weight_KB[k] > 0)
    value, gradient_2BA = micro.statistics[k]
    return spread_over_pairs(value, scores_2BA, gradient_2BA)


def length_statistic(scores_2BA: Tensor, tokens_2B: Tensor, in_bootstrap_B: Tensor) -> Tensor:
    """Return ODIN's length loss over the pairs that a member trains on, (); 0 for fewer than two pairs."""
    if int(in_bootstrap_B.sum()) < 2:
        return scores_2BA.new_zeros(())
    quality_N, length_N = scores_2BA[:, in_bootstrap_B].flatten(0, 1).unbind(-1)
    return length_split(quality_N, length_N, tokens_2B[:, in_bootstrap_B].flatten())


@torch.no_grad()
def add_step_statistics(micros: Sequence[PairMicro]) -> list[PairMicro]:
    """Return the passes of one model in a step, each with its part of the step's length statistics."""
    outputs = [reward_outputs(micro.model, micro.batch) for micro in micros]
    sizes = [micro.weight_KB.shape[1] for micro in micros]
    tokens_2B = torch.cat([micro.tokens_2B for micro in micros], dim=1)
    statistics: list[list[Statistic]] = [[] for _ in micros]
    for k, member in enumerate(micros[0].members):
        scores = [
            member.select_outputs(outputs_RA)[: 2 * size].view(2, size, -1)
            for outputs_RA, size in zip(outputs, sizes, strict=True)
        ]
        in_bootstrap_B = torch.cat([micro.weight_KB[k] > 0 for micro in micros])
        value, gradient_2BA = _length_statistic_gradient(torch.cat(scores, dim=1), tokens_2B, in_bootstrap_B)
        for of_pass, pass_gradient_2BA in zip(statistics, gradient_2BA.split(sizes, dim=1), strict=True):
            of_pass.append((value, pass_gradient_2BA))
    return [replace(micro, statistics=of_pass) for micro, of_pass in zip(micros, statistics, strict=True)]


@torch.enable_grad()
def _length_statistic_gradient(scores_2BA: Tensor, tokens_2B: Tensor, in_bootstrap_B: Tensor) -> Statistic:
    """Return `length_statistic` and its derivative by the scores, as a `Statistic`."""
    scores_2BA = scores_2BA.detach().requires_grad_()
    value = length_statistic(scores_2BA, tokens_2B, in_bootstrap_B)
    if not value.requires_grad:  # fewer than two pairs: a constant 0
        return value, torch.zeros_like(scores_2BA)
    (gradient_2BA,) = torch.autograd.grad(value, scores_2BA)
    return value.detach(), gradient_2BA * in_bootstrap_B.sum()
