"""The members of a reward model: where each starts, which pairs it trains on, how it is scored and saved.

A single reward model is one member. An ensemble has several, each a model of its own or a head of one model.
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
from rlhf_lab.models.divided import plain
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.models.lora import trainable
from rlhf_lab.models.reward_ensemble import averaged, same_shape
from rlhf_lab.rewards.learned.bt import AVERAGE_FILE, MEMBERS, Scorer, ScoreScale
from rlhf_lab.training.batching import epoch_steps
from rlhf_lab.training.run import Run

SCORING_TOKENS = 16384


@dataclass
class Member:
    """One score that is trained.

    Attributes:
        model: trunk and head; the same object for all heads of a shared trunk.
        first: column of its score among the head's outputs; that of the length head follows.
        outputs: columns that are its own, 1 or 2.
        attributes: names of all columns of the head; empty for a scalar one.
        in_share_N: whether it trains on each of the pairs, (N,).
    """

    model: nn.Module
    first: int
    outputs: int
    attributes: tuple[str, ...]
    in_share_N: Tensor

    def select_outputs(self, outputs_BA: Tensor) -> Tensor:
        """This member's columns of the head's outputs, (B, outputs)."""
        return outputs_BA[:, self.first : self.first + self.outputs]

    def head(self) -> Tensor:
        """Head weights of this member's columns, (outputs, hidden)."""
        weight: Tensor = self.model.score.weight  # type: ignore[union-attr, assignment]
        return weight[self.first : self.first + self.outputs]

    def scale(self, settings: RewardModel) -> ScoreScale:
        """Which output is the score and how prompts are cut; mean and sd are fixed after training."""
        weights = tuple(float(i == self.first) for i in range(len(self.attributes)))
        return ScoreScale(
            max_length=settings.max_length, attributes=self.attributes, weights=weights, context=settings.context
        )


def build_members(settings: RewardModel, run: Run, encoder: Encoder, pairs: int) -> list[Member]:
    """All members, each with its start and its share of `pairs` training pairs."""
    sources = [run.needs.get(f"policy_{k}", run.needs["policy"]) for k in range(settings.members)]
    _check_sources(settings, run, encoder)
    outputs_per_head = 2 if settings.length_head else 1
    heads_per_model = settings.members if settings.shared_trunk else 1
    attributes = _attribute_names(heads_per_model, outputs_per_head)
    trunk_sources = sources[:1] if settings.shared_trunk else sources
    outputs = heads_per_model * outputs_per_head
    models = [_load_model(settings, run, source, k, outputs) for k, source in enumerate(trunk_sources)]
    members = []
    for k in range(settings.members):
        model, first = (models[0], outputs_per_head * k) if settings.shared_trunk else (models[k], 0)
        members.append(Member(model, first, outputs_per_head, attributes, _draw_share(settings, run, k, pairs)))
    return members


def _check_sources(settings: RewardModel, run: Run, encoder: Encoder) -> None:
    """Raise ConfigError for a policy that no member can start from."""
    for k in range(1, 10):  # every role of OTHER_POLICIES, also those beyond the number of members
        source = run.needs.get(f"policy_{k}")
        if source and (k >= settings.members or settings.shared_trunk):
            why = "members share a trunk" if settings.shared_trunk else f"there are {settings.members} members"
            raise ConfigError(f"needs.policy_{k} is for member {k}, counted from 0, and {why}; drop it")
        if not source:
            continue
        vocabulary = load_encoder(source, run.config.model).tokenizer.get_vocab()
        if vocabulary != encoder.tokenizer.get_vocab():
            raise ConfigError(f"needs.policy_{k}={source} has another vocabulary than needs.policy; members share rows")


def _attribute_names(heads: int, outputs_per_head: int) -> tuple[str, ...]:
    """Names of a model's outputs, head by head; none for a scalar one."""
    if heads == 1:
        return ("quality", "length") if outputs_per_head == 2 else ()
    kinds = ("quality", "length") if outputs_per_head == 2 else ("member",)
    return tuple(f"{kind}_{k}" for k in range(heads) for kind in kinds)


def _load_model(settings: RewardModel, run: Run, source: str, k: int, outputs: int) -> nn.Module:
    """A policy's backbone and a new head: zero where there is one score in all, else random.

    Heads of one trunk that started alike would stay alike.
    """
    model: Any = load_reward_model(source, run.config.model, outputs=outputs, device=run.load_device, trained=True)
    if settings.members > 1 or outputs > 1:
        weight = model.score.weight
        noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(run.seed("reward_model/head", k)))
        weight.data.copy_(settings.head_noise * noise / weight.shape[1] ** 0.5)
    return trainable(model, run.config.model.lora, run.seed("lora", k))


def _draw_share(settings: RewardModel, run: Run, k: int, pairs: int) -> Tensor:
    """Which pairs member k trains on, (N,)."""
    count = max(1, round(settings.member_fraction * pairs))
    generator = torch.Generator().manual_seed(run.seed("reward_model/share", k))
    in_share_N = torch.zeros(pairs, dtype=torch.bool)
    in_share_N[torch.randperm(pairs, generator=generator)[:count]] = True
    return in_share_N


def plan_members(
    settings: RewardModel, run: Run, members: Sequence[Member], lengths: Sequence[int]
) -> list[list[list[int]]]:
    """Pair indices of every step, for each model: its member's share, in an order of its own.

    A shared trunk trains on all pairs; pairs outside a head's share have weight 0 for that head.
    """
    if settings.shared_trunk:
        return [epoch_steps(lengths, settings, run.seed("reward_model/order", 0))]
    plans = []
    for k, member in enumerate(members):
        share = member.in_share_N.nonzero()[:, 0].tolist()
        steps = epoch_steps([lengths[i] for i in share], settings, run.seed("reward_model/order", k))
        plans.append([[share[i] for i in step] for step in steps])
    return plans


def build_scorers(settings: RewardModel, run: Run, members: Sequence[Member], encoder: Encoder) -> list[Scorer]:
    """A scorer for each member, its scale not fixed yet."""
    return [Scorer(m.model, encoder, m.scale(settings), run.device, SCORING_TOKENS) for m in members]


def average_weights(settings: RewardModel, run: Run, scorers: Sequence[Scorer]) -> Scorer | None:
    """The scorer whose weights are the mean of the members'; None unless they are models with one start."""
    models = [scorer.model for scorer in scorers]
    other_policies = any(run.needs.get(f"policy_{k}") for k in range(1, settings.members))
    if len(scorers) == 1 or settings.shared_trunk or other_policies or not same_shape(models):
        return None
    first = scorers[0]
    with ExitStack() as stack:
        averaged_model = averaged([stack.enter_context(plain(model)) for model in models])
    return Scorer(averaged_model, first.encoder, first.scale, first.device, first.batch_tokens)


def save_members(folder: Path, scorers: Sequence[Scorer], averaged_scorer: Scorer | None) -> None:
    """Write the first member's scale beside its saved model, and a folder for each further member.

    The folder has the member's scale, and a model unless the member is a head of the first model.
    """
    for k, scorer in enumerate(scorers):
        member_folder = folder / MEMBERS / str(k) if k else folder
        if k and scorer.model is not scorers[0].model:
            save_model(scorer.model, scorer.encoder, member_folder)
        scorer.scale.write(member_folder)
    if averaged_scorer is not None:
        # Only its scale: whoever wants the model averages the members again.
        averaged_scorer.scale.write(folder, AVERAGE_FILE)
