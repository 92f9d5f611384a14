"""Draws prompts, samples groups of replies, scores them: what both sides of an on-policy iteration start from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from rlhf_lab.algorithms.pair_selection.rules import filter_replies
from rlhf_lab.algorithms.policy_gradient.metrics import ROLLOUTS
from rlhf_lab.algorithms.policy_gradient.settings import OnPolicySettings
from rlhf_lab.algorithms.policy_gradient.shaping import RewardShaper
from rlhf_lab.config import registry
from rlhf_lab.core.metrics import names
from rlhf_lab.core.types import FloatArray, TrainingReward
from rlhf_lab.models.encoding import Encoder, TokenBatch
from rlhf_lab.rewards.graph import part_means
from rlhf_lab.sampling.experience import Group, Imitation
from rlhf_lab.training.batching import micro_batches
from rlhf_lab.training.run import Run


class Rollouts:
    """Samples from the current policy. Prompts and noise of an iteration follow from the run's seed."""

    def __init__(
        self, settings: OnPolicySettings, run: Run, encoder: Encoder, reward: TrainingReward, shaper: RewardShaper
    ):
        self.settings, self.run, self.encoder, self.reward, self.shaper = settings, run, encoder, reward, shaper
        self.sampler = registry.build("rollout", run.config.rollout, encoder)
        self.prompts = run.corpus.prompts("train")
        self.groups = self.wasted = self.cut = 0
        self.parts: list[Mapping[str, FloatArray]] = []

    def draw(self, model: nn.Module, iteration: int) -> tuple[list[Group], dict[str, float]]:
        """The iteration's groups and what to log about them.

        With `dynamic_sampling`, wasted groups are replaced by groups of further prompts, as often as allowed; what is
        still wasted then stays.
        """
        settings, self.cut = self.settings, 0
        generator = torch.Generator().manual_seed(self.run.seed("on_policy/prompts", iteration))
        order = torch.randperm(len(self.prompts), generator=generator).tolist()
        order = order * -(-settings.prompts_per_iteration * (settings.dynamic_sampling + 1) // len(order))
        found = drawn = self._sample(model, order[: settings.prompts_per_iteration], iteration, 0)
        for attempt in range(1, settings.dynamic_sampling + 1):
            kept = [group for group in found if not group.wasted]
            missing = settings.prompts_per_iteration - len(kept)
            if not missing:
                break
            begin = attempt * settings.prompts_per_iteration
            more = self._sample(model, order[begin : begin + missing], iteration, attempt)
            drawn = drawn + more
            useful = [group for group in more if not group.wasted]
            spare = [group for group in (*more, *found) if group.wasted]
            found = [*kept, *useful, *spare][: settings.prompts_per_iteration]
        self.groups += len(drawn)
        self.wasted += sum(group.wasted for group in drawn)
        return found, self._metrics(drawn) | self._nodes()

    def _sample(self, model: nn.Module, chosen: list[int], iteration: int, attempt: int) -> list[Group]:
        """G scored replies to each of the chosen prompts."""
        texts, size = [self.prompts[i] for i in chosen], self.settings.sampled_per_prompt
        encoder = replace(self.encoder, counts={})
        ids = [encoder.prompt(text, self.run.config.rollout.max_prompt_tokens) for text in texts]
        self.cut += sum(encoder.counts.values())
        stream = self.run.seed(f"on_policy/rollout/{attempt}", iteration)
        samples = self.sampler.sample(model, ids, size, stream)
        groups = [
            Group(text, prompt, replies, logps, [self.encoder.text(reply) for reply in replies], ended)
            for text, prompt, replies, logps, ended in zip(
                texts, samples.prompts, samples.replies_BG, samples.logps_BG, samples.ended_BG, strict=True
            )
        ]
        self._score(groups)
        if self.settings.advantage == "remax":
            self._score_greedy(model, groups)
        return self._filter(groups, iteration, attempt)

    def _filter(self, groups: list[Group], iteration: int, attempt: int) -> list[Group]:
        """The replies of each group that are trained on; see `OnPolicySettings.rollout_filter`."""
        settings = self.settings
        if settings.rollout_filter == "none":
            return groups
        rng = np.random.default_rng(self.run.seed(f"on_policy/filter/{attempt}", iteration))
        how, size = settings.rollout_filter, settings.group_size
        return [group.keep(filter_replies(np.array(group.rewards), size, how, rng).tolist()) for group in groups]

    def _score(self, groups: list[Group]) -> None:
        size = self.settings.sampled_per_prompt
        prompts = [group.text for group in groups for _ in range(size)]
        replies = [reply for group in groups for reply in group.replies]
        batch = self.reward(prompts, [text for group in groups for text in group.responses])
        self.reward.observe(batch)
        self.parts.append(batch.parts)
        rewards = batch.total_N
        self.shaper.observe(rewards)
        scores = self.shaper(rewards, [len(r) for r in replies], [end for group in groups for end in group.ended])
        for group, reward_G, score_G in zip(groups, rewards.reshape(-1, size), scores.reshape(-1, size), strict=True):
            group.rewards, group.scores = reward_G.tolist(), score_G.tolist()

    def _score_greedy(self, model: nn.Module, groups: list[Group]) -> None:
        """Score of the most likely reply to each prompt: the baseline of ReMax."""
        samples = self.sampler.sample(model, [group.ids for group in groups], 1, 0, temperature=0.0)
        replies = [reply for (reply,) in samples.replies_BG]
        rewards = self.reward([group.text for group in groups], [self.encoder.text(reply) for reply in replies]).total_N
        scores = self.shaper(rewards, [len(reply) for reply in replies], [end for (end,) in samples.ended_BG])
        for group, score, reply in zip(groups, scores.tolist(), replies, strict=True):
            group.greedy, group.greedy_tokens = score, len(reply)

    def _nodes(self) -> dict[str, float]:
        """Mean of every node of the reward graph over the iteration's replies; nothing where there is one node."""
        scored, self.parts = self.parts, []
        names = dict.fromkeys(name for parts in scored for name in parts)
        if len(names) < 2:
            return {}
        return part_means({n: np.concatenate([parts[n] for parts in scored if n in parts]) for n in names})

    def _metrics(self, groups: list[Group]) -> dict[str, float]:
        trained, groups = groups, [group.sampled for group in groups]
        rewards = np.array([group.rewards for group in groups])
        lengths = [len(reply) for group in groups for reply in group.replies]
        known = np.isfinite(rewards)
        metrics = {
            "reward": float(rewards[known].mean()) if known.any() else float("nan"),
            "reward_sd": float(rewards[known].std()) if known.any() else float("nan"),
            "score": float(np.nanmean([group.scores for group in trained])) if known.any() else float("nan"),
            "tokens": float(np.mean(lengths)),
            "ended": float(np.mean([group.ended for group in groups])),
            "unscored": float(1 - known.mean()),
            "generated_tokens": float(sum(lengths) + sum(group.greedy_tokens for group in groups)),
            "prompts_cut": float(self.cut),
        }
        if self.settings.group_size > 1:
            metrics["wasted_groups"] = float(np.mean([group.wasted for group in trained]))
        if self.settings.rollout_filter != "none" and known.any():
            metrics["reward_kept"] = float(np.nanmean([group.rewards for group in trained]))
        if self.run.corpus.oracle is not None:
            prompts = [group.text for group in groups for _ in group.responses]
            truth = self.run.corpus.oracle.measure(prompts, [text for group in groups for text in group.responses])
            metrics |= {key: float(values.mean()) for key, values in truth.items() if key in names(ROLLOUTS)}
        return metrics

    def imitation(self, step: int, count: int, units: int) -> list[Imitation]:
        """`count` corpus replies whose mean −log π joins the step's loss with weight `ptx_weight`."""
        corpus, length = self.run.corpus.train, self.settings.max_length
        generator = torch.Generator().manual_seed(self.run.seed("on_policy/ptx", step))
        chosen = [corpus[i] for i in torch.randint(len(corpus), (count,), generator=generator).tolist()]
        encoder = replace(self.encoder, counts={})
        rows = [encoder.row(pair.prompt, pair.chosen, length) for pair in chosen]
        weight = self.settings.ptx_weight * units / sum(len(reply) for _, reply in rows)
        parts = micro_batches(range(count), [len(p) + len(r) for p, r in rows], self.settings.micro_batch_tokens)
        batches = [TokenBatch.from_rows([rows[i] for i in part], self.run.device) for part in parts]
        return [Imitation(batch, weight) for batch in batches]

    def totals(self) -> dict[str, float]:
        """Numbers of the whole run."""
        if self.settings.group_size == 1:
            return {}
        return {"groups": self.groups, "wasted_groups": self.wasted / max(1, self.groups)}

    def state_dict(self) -> dict[str, Any]:
        return {"groups": self.groups, "wasted": self.wasted, "reward": self.reward.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.groups, self.wasted = int(state["groups"]), int(state["wasted"])
        self.reward.load_state_dict(state["reward"])
