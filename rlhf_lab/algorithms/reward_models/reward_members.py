"""Members of a reward model: initial weights, training pairs, the loss of a step, scoring and saving.

A single reward model has one member. An ensemble has several: each is a separate model, or a head of a shared model.

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


@dataclass
class Member:
    """One trained score.

    Attributes:
        model: trunk and head; the same object for all heads of a shared trunk.
        first: column of its score in the head's outputs; the column of its length head follows.
        outputs: number of its columns, 1 or 2.
        attributes: names of all columns of the head; empty for a scalar head.
        in_bootstrap_N: True for each pair that it trains on, (N,).
    """

    model: nn.Module
    first: int
    outputs: int
    attributes: tuple[str, ...]
    in_bootstrap_N: Tensor

    def select_outputs(self, outputs_BA: Tensor) -> Tensor:
        """Return this member's columns of the head's outputs, (B, outputs)."""
        return outputs_BA[:, self.first : self.first + self.outputs]

    def head(self) -> Tensor:
        """Return the head weights of this member's columns, (outputs, hidden)."""
        weight: Tensor = self.model.score.weight  # type: ignore[union-attr, assignment]
        return weight[self.first : self.first + self.outputs]

    def scale(self, settings: RewardModel) -> ScoreScale:
        """Return a score scale with this member's score column and prompt context, still without mean and sd."""
        # One-hot: the score is this member's first column.
        columns = range(len(self.attributes))
        weights = tuple(float(column == self.first) for column in columns)
        return ScoreScale(
            max_length=settings.max_length, attributes=self.attributes, weights=weights, context=settings.context
        )


def build_members(settings: RewardModel, run: Run, encoder: Encoder, pairs: int) -> list[Member]:
    """Build all members, each with its initial weights and its fraction of `pairs` training pairs."""
    sources = [run.needs.get(f"policy_{k}", run.needs["policy"]) for k in range(settings.members)]
    _check_sources(settings, run, encoder)
    outputs_per_head = 2 if settings.length_head else 1
    heads_per_model = settings.members if settings.shared_trunk else 1
    attributes = _attribute_names(heads_per_model, outputs_per_head)
    # A shared trunk is loaded once; its head has the outputs of all members.
    trunk_sources = sources[:1] if settings.shared_trunk else sources
    outputs = heads_per_model * outputs_per_head
    models = [_load_model(settings, run, source, k, outputs) for k, source in enumerate(trunk_sources)]
    members = []
    for k in range(settings.members):
        model, first = (models[0], outputs_per_head * k) if settings.shared_trunk else (models[k], 0)
        in_bootstrap_N = _draw_fraction(settings, run, k, pairs)
        members.append(Member(model, first, outputs_per_head, attributes, in_bootstrap_N))
    return members


def _check_sources(settings: RewardModel, run: Run, encoder: Encoder) -> None:
    """Raise ConfigError if a `needs.policy_<k>` is unused or has a different vocabulary."""
    for k in range(1, 10):  # every role of OTHER_POLICIES, used or not
        source = run.needs.get(f"policy_{k}")
        if source and (k >= settings.members or settings.shared_trunk):
            why = "members share a trunk" if settings.shared_trunk else f"there are {settings.members} members"
            raise ConfigError(f"needs.policy_{k} is for member {k}, counted from 0, but {why}; remove it")
        if not source:
            continue
        vocabulary = load_encoder(source, run.config.model).tokenizer.get_vocab()
        if vocabulary != encoder.tokenizer.get_vocab():
            raise ConfigError(
                f"needs.policy_{k}={source} has another vocabulary than needs.policy, but members share token rows; "
                "train both on the same data.seed"
            )


def _attribute_names(heads: int, outputs_per_head: int) -> tuple[str, ...]:
    """Return the names of a model's outputs, such as `quality_0`, in order; empty for a single scalar output."""
    if heads == 1:
        return ("quality", "length") if outputs_per_head == 2 else ()
    kinds = ("quality", "length") if outputs_per_head == 2 else ("member",)
    return tuple(f"{kind}_{k}" for k in range(heads) for kind in kinds)


def _load_model(settings: RewardModel, run: Run, source: str, k: int, outputs: int) -> nn.Module:
    """Load a policy's backbone with a new head: zero for a single score, else random.

    Equal initial heads on one trunk would have equal gradients and stay equal.
    """
    model: Any = load_reward_model(source, run.config.model, outputs=outputs, device=run.load_device, trained=True)
    if settings.members > 1 or outputs > 1:
        # Division by √(hidden size) makes the scale of initial scores independent of the model's width.
        weight = model.score.weight
        noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(run.seed("reward_model/head", k)))
        weight.data.copy_(settings.head_noise * noise / weight.shape[1] ** 0.5)
    return trainable(model, run.config.model.lora, run.seed("lora", k))


def _draw_fraction(settings: RewardModel, run: Run, k: int, pairs: int) -> Tensor:
    """Sample the pairs that member k trains on, a mask (N,)."""
    count = max(1, round(settings.member_fraction * pairs))
    generator = torch.Generator().manual_seed(run.seed("reward_model/share", k))
    in_bootstrap_N = torch.zeros(pairs, dtype=torch.bool)
    in_bootstrap_N[torch.randperm(pairs, generator=generator)[:count]] = True
    return in_bootstrap_N


def plan_members(
    settings: RewardModel, run: Run, members: Sequence[Member], lengths: Sequence[int]
) -> list[list[list[int]]]:
    """Return the pair indices of every step for each model: its member's pairs, in the member's own order.

    A shared trunk trains on all pairs; a head's weight is 0 for pairs that it does not train on.
    """
    if settings.shared_trunk:
        return [epoch_steps(lengths, settings, run.seed("reward_model/order", 0))]
    plans = []
    for k, member in enumerate(members):
        in_bootstrap = member.in_bootstrap_N.nonzero()[:, 0].tolist()
        steps = epoch_steps([lengths[i] for i in in_bootstrap], settings, run.seed("reward_model/order", k))
        plans.append([[in_bootstrap[i] for i in step] for step in steps])
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
    if len(scorers) == 1 or settings.shared_trunk or other_policies or not same_shape(models):
        return None
    first = scorers[0]
    with ExitStack() as stack:
        averaged_model = averaged([stack.enter_context(unsharded(model)) for model in models])
    return Scorer(averaged_model, first.encoder, first.scale, first.device, first.batch_tokens)


def save_members(directory: Path, scorers: Sequence[Scorer], averaged_scorer: Scorer | None) -> None:
    """Write the first member's scale next to its saved model, and a directory for each further member.

    The directory has the member's scale, and a model unless the member is a head of the first model.
    """
    for k, scorer in enumerate(scorers):
        member_dir = directory / MEMBERS / str(k) if k else directory
        if k and scorer.model is not scorers[0].model:
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
