"""Members of a reward model: initial weights, training pairs, scoring and saving.

A single reward model has one member. An ensemble has several: each is a separate model, or a head of a shared model.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_lab.algorithms.reward_models.settings import RewardModel
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.models.build import load_encoder, load_reward_model, save_model
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.models.lora import trainable
from rlhf_lab.models.reward_ensemble import averaged, same_shape
from rlhf_lab.models.sharded import unsharded
from rlhf_lab.rewards.learned.bt import AVERAGE_FILE, MEMBERS, Scorer, ScoreScale
from rlhf_lab.training.batching import epoch_steps
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
