"""Members of a reward model: initial weights, training pairs, the loss of a step, scoring and saving.

A single reward model has one member, an ensemble has several. Each is a separate model.

ODIN's length term is a statistic of a full step. If a step is split into several forward passes, a pass without
gradient first computes the statistic and its derivative by every score (`add_step_statistics`). Each pass then adds its
part, so the gradient equals that of the unsplit step up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_lab.algorithms.reward_models.settings import RewardModel
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.losses.reward_model import bradley_terry, head_overlap, length_split, spread_over_pairs, stated_confidence
from rlhf_lab.models.build import load_encoder, load_reward_model, reward_outputs, save_model
from rlhf_lab.models.encoding import Encoder, TokenBatch
from rlhf_lab.models.lora import trainable
from rlhf_lab.models.pair_rows import PairRows, pair_batch
from rlhf_lab.models.reward_ensemble import averaged, same_shape
from rlhf_lab.models.sharded import unsharded
from rlhf_lab.rewards.learned.bt import AVERAGE_FILE, MEMBERS, Scorer, ScoreScale
from rlhf_lab.training.batching import epoch_steps
from rlhf_lab.training.loop import LossOutput
from rlhf_lab.training.run import Run

SCORING_TOKENS = 16384
"""Padded tokens per forward pass when responses are scored."""


@dataclass(frozen=True)
class Member:
    """One trained model.

    Attributes:
        attributes: names of the head's outputs, of which the first is the score; empty for a scalar head.
        pairs: indices of the pairs that it trains on, sorted.
    """

    model: nn.Module
    attributes: tuple[str, ...]
    pairs: list[int]

    def head(self) -> Tensor:
        """Return the weights of the head, (outputs, hidden)."""
        weight: Tensor = self.model.score.weight  # type: ignore[union-attr, assignment]
        return weight

    def scale(self, settings: RewardModel) -> ScoreScale:
        """Return a score scale with the score's column and the prompt context, still without mean and sd."""
        # One-hot: the score is the first column.
        weights = tuple(float(column == 0) for column in range(len(self.attributes)))
        return ScoreScale(
            max_length=settings.max_length, attributes=self.attributes, weights=weights, context=settings.context
        )


def build_members(settings: RewardModel, run: Run, encoder: Encoder, pairs: int) -> list[Member]:
    """Build all members, each with its initial weights and its fraction of `pairs` training pairs."""
    sources = [run.needs.get(f"policy_{k}", run.needs["policy"]) for k in range(settings.members)]
    _check_sources(settings, run, encoder)
    attributes = ("quality", "length") if settings.length_head else ()
    return [
        Member(_load_model(settings, run, source, k), attributes, _draw_fraction(settings, run, k, pairs))
        for k, source in enumerate(sources)
    ]


def _check_sources(settings: RewardModel, run: Run, encoder: Encoder) -> None:
    """Raise ConfigError if a `needs.policy_<k>` is unused or has a different vocabulary."""
    for k in range(1, 10):  # every role of OTHER_POLICIES, used or not
        source = run.needs.get(f"policy_{k}")
        if source and k >= settings.members:
            raise ConfigError(
                f"needs.policy_{k} is for member {k}, counted from 0, but there are {settings.members} members; "
                "remove it"
            )
        if not source:
            continue
        vocabulary = load_encoder(source, run.config.model).tokenizer.get_vocab()
        if vocabulary != encoder.tokenizer.get_vocab():
            raise ConfigError(
                f"needs.policy_{k}={source} has another vocabulary than needs.policy, but members share token rows; "
                "train both on the same data.seed"
            )


def _load_model(settings: RewardModel, run: Run, source: str, k: int) -> nn.Module:
    """Load a policy's backbone with a new head: zero for a single score, else random.

    Two equal initial heads on one backbone would have equal gradients and stay equal.
    """
    outputs = 2 if settings.length_head else 1
    model: Any = load_reward_model(source, run.config.model, outputs=outputs, device=run.load_device, trained=True)
    if settings.members > 1 or outputs > 1:
        # Division by √(hidden size) makes the scale of initial scores independent of the model's width.
        weight = model.score.weight
        noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(run.seed("reward_model/head", k)))
        weight.data.copy_(settings.head_noise * noise / weight.shape[1] ** 0.5)
    return trainable(model, run.config.model.lora, run.seed("lora", k))


def _draw_fraction(settings: RewardModel, run: Run, k: int, pairs: int) -> list[int]:
    """Sample the pairs that member k trains on; return their indices, sorted."""
    count = max(1, round(settings.member_fraction * pairs))
    generator = torch.Generator().manual_seed(run.seed("reward_model/share", k))
    return sorted(torch.randperm(pairs, generator=generator)[:count].tolist())


def plan_members(
    settings: RewardModel, run: Run, members: Sequence[Member], lengths: Sequence[int]
) -> list[list[list[int]]]:
    """Return the pair indices of every step for each member: its pairs in its own order."""
    plans = []
    for k, member in enumerate(members):
        steps = epoch_steps([lengths[i] for i in member.pairs], settings, run.seed("reward_model/order", k))
        plans.append([[member.pairs[i] for i in step] for step in steps])
    return plans


def build_scorers(settings: RewardModel, run: Run, members: Sequence[Member], encoder: Encoder) -> list[Scorer]:
    """Return a scorer for each member. Mean and sd of its score scale are set after training."""
    encoder = encoder.uncounted()  # responses of an audit do not count as training data
    return [Scorer(m.model, encoder, m.scale(settings), run.device, SCORING_TOKENS) for m in members]


def average_weights(settings: RewardModel, run: Run, scorers: Sequence[Scorer]) -> Scorer | None:
    """Return a scorer with the mean of the members' weights; None if their architectures or initial models differ."""
    # Averaging weights requires the same initial model (WARM, docs/design/009).
    models = [scorer.model for scorer in scorers]
    other_policies = any(run.needs.get(f"policy_{k}") for k in range(1, settings.members))
    if len(scorers) == 1 or other_policies or not same_shape(models):
        return None
    first = scorers[0]
    with ExitStack() as stack:
        averaged_model = averaged([stack.enter_context(unsharded(model)) for model in models])
    return Scorer(averaged_model, first.encoder, first.scale, first.device, first.batch_tokens)


def save_members(directory: Path, scorers: Sequence[Scorer], averaged_scorer: Scorer | None) -> None:
    """Write the first member's scale next to its saved model, and a directory with each further member."""
    for k, scorer in enumerate(scorers):
        member_dir = directory / MEMBERS / str(k) if k else directory
        if k:
            save_model(scorer.model, scorer.encoder, member_dir)
        scorer.scale.write(member_dir)
    if averaged_scorer is not None:
        # Only the scale is stored, because the averaged model can be recomputed from the members.
        averaged_scorer.scale.write(directory, AVERAGE_FILE)


Statistic = tuple[Tensor, Tensor]
"""Length statistic of a step, (), and its derivative by the scores of this pass's pairs, (2, B, outputs).

The derivative is multiplied by the number of pairs of the step."""


@dataclass(frozen=True)
class PairMicro:
    """One forward pass of a member.

    Attributes:
        batch: all chosen rows, then all rejected ones; with stated confidence, four more rows per pair follow.
        pairs: number of pairs in the batch.
        weight: weight of each pair in the loss.
        statistic: length term of the full step; None if this pass is the full step.
    """

    member: Member
    batch: TokenBatch
    pairs: int
    weight: float
    statistic: Statistic | None = None

    @property
    def tokens_2B(self) -> Tensor:
        """Response lengths of both sides in tokens, (2, B), without the rows of stated confidence."""
        length_R = self.batch.length_B - self.batch.prompt_len_B
        return length_R[: 2 * self.pairs].view(2, -1)

    def outputs(self) -> Tensor:
        """Return the outputs of the head for all rows, (R, outputs)."""
        return reward_outputs(self.member.model, self.batch)


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
    """Return the weighted loss of each pair, and accuracy and margin of the score that is used after training."""
    scores_RA = micro.outputs()
    scores_2BA = scores_RA[: 2 * micro.pairs].view(2, micro.pairs, -1)
    # With a length head the pair loss uses quality + length, but the later score is quality alone.
    loss_B = bradley_terry(*scores_2BA.sum(-1), margin=settings.margin, centering=settings.centering)
    if settings.confidence_weight:
        stated_4B = scores_RA[2 * micro.pairs :, 0].view(4, micro.pairs)
        loss_B = loss_B + settings.confidence_weight * stated_confidence(*stated_4B)
    if settings.length_head:
        loss_B = loss_B + settings.length_weight * _length_term(scores_2BA, micro)
        overlap = head_overlap(*micro.member.head().float())  # the same for every pair
        loss_B = loss_B + settings.orthogonal_weight * overlap
    chosen_B, rejected_B = scores_2BA[..., 0].detach()
    margin_B = chosen_B - rejected_B
    return LossOutput(micro.weight * loss_B, {"accuracy": (margin_B > 0).float(), "margin": margin_B})


def _length_term(scores_2BA: Tensor, micro: PairMicro) -> Tensor:
    """Return the length statistic of the step, (), or this pass's part of it, (B,)."""
    if micro.statistic is None:
        return length_statistic(scores_2BA, micro.tokens_2B)
    value, gradient_2BA = micro.statistic
    return spread_over_pairs(value, scores_2BA, gradient_2BA)


def length_statistic(scores_2BA: Tensor, tokens_2B: Tensor) -> Tensor:
    """Return ODIN's length loss over pairs, (); 0 for fewer than two pairs."""
    if scores_2BA.shape[1] < 2:
        return scores_2BA.new_zeros(())
    quality_N, length_N = scores_2BA.flatten(0, 1).unbind(-1)
    return length_split(quality_N, length_N, tokens_2B.flatten())


@torch.no_grad()
def add_step_statistic(micros: Sequence[PairMicro]) -> list[PairMicro]:
    """Return the passes of one member in a step, each with its part of the step's length statistic."""
    sizes = [micro.pairs for micro in micros]
    scores_2BA = torch.cat([micro.outputs()[: 2 * micro.pairs].view(2, micro.pairs, -1) for micro in micros], dim=1)
    tokens_2B = torch.cat([micro.tokens_2B for micro in micros], dim=1)
    value, gradient_2BA = _length_statistic_gradient(scores_2BA, tokens_2B)
    gradients = gradient_2BA.split(sizes, dim=1)
    return [replace(micro, statistic=(value, part)) for micro, part in zip(micros, gradients, strict=True)]


@torch.enable_grad()
def _length_statistic_gradient(scores_2BA: Tensor, tokens_2B: Tensor) -> Statistic:
    """Return `length_statistic` and its derivative by the scores, as a `Statistic`."""
    scores_2BA = scores_2BA.detach().requires_grad_()
    value = length_statistic(scores_2BA, tokens_2B)
    if not value.requires_grad:  # fewer than two pairs: a constant 0
        return value, torch.zeros_like(scores_2BA)
    (gradient_2BA,) = torch.autograd.grad(value, scores_2BA)
    return value.detach(), gradient_2BA * scores_2BA.shape[1]
