"""Rollouts of an on-policy iteration: sample tasks, collect groups of episodes and score them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from rlhf_lab.algorithms.pair_selection.selection import filter_responses
from rlhf_lab.algorithms.policy_gradient.curriculum import EdgeCurriculum, by_length, ordered_tasks
from rlhf_lab.algorithms.policy_gradient.settings import OnPolicySettings
from rlhf_lab.algorithms.policy_gradient.shaping import RewardShaper
from rlhf_lab.core.episodes import Episode, Task
from rlhf_lab.core.types import FloatArray, TrainingReward
from rlhf_lab.models.encoding import Encoder, TokenBatch
from rlhf_lab.rewards.graph import part_means
from rlhf_lab.sampling.episodes import Collection, EpisodeCollector
from rlhf_lab.sampling.experience import EpisodeGroup, Imitation, episode_from, episode_state, episodes_of
from rlhf_lab.training.batching import micro_batches
from rlhf_lab.training.run import Run

FEWEST_CALLS = 0.5
FEWEST_INFORMATIVE = 0.25
"""Minimum tool calls per episode, and minimum fraction of groups with unequal scores, of a run that still learns."""
LEARNED = 0.75
"""Fraction of correct answers above which equal rewards mean that the tasks are solved, not that training collapsed."""


def truth_means(truth: Mapping[str, FloatArray]) -> dict[str, float]:
    """Return the mean of each measure over the samples for which it is known; NaN if it is known for none."""
    means = {}
    for key, values in truth.items():
        known = values[~np.isnan(values)]
        means[key] = float(known.mean()) if len(known) else float("nan")  # the mean of no value would warn
    return means


@dataclass
class PendingRollouts:
    """Rollouts of one iteration whose episodes may still be sampled.

    Attributes:
        order: positions of tasks in the corpus. The first ones are sampled; the others may replace groups.
        collection: episodes of the first tasks.
        prompts_cut: number of truncated prompts among them.
    """

    order: list[int]
    collection: Collection
    prompts_cut: int

    def state_dict(self) -> dict[str, Any]:
        """Return a JSON-like state. Wait until the episodes are complete."""
        episodes = [[episode_state(episode) for episode in group] for group in self.collection.episodes()]
        return {"order": self.order, "episodes": episodes, "prompts_cut": self.prompts_cut}

    @classmethod
    def from_state(cls, state: dict[str, Any], tasks: Sequence[Task]) -> PendingRollouts:
        sampled = zip(state["order"], state["episodes"], strict=False)  # replacement tasks have no episodes yet
        episodes = [[episode_from(tasks[i], values) for values in group] for i, group in sampled]
        return cls(state["order"], Collection(lambda: episodes), state["prompts_cut"])


class Rollouts:
    """Rollouts of the policy. Prompts and sampling noise of an iteration derive from the run's seed."""

    def __init__(
        self, settings: OnPolicySettings, run: Run, encoder: Encoder, reward: TrainingReward, shaper: RewardShaper
    ):
        self.settings, self.run, self.encoder = settings, run, encoder
        self.reward, self.shaper = reward, shaper
        self.collector = EpisodeCollector(run, encoder)
        self.tasks = run.corpus.tasks("train")
        self.curriculum = None
        if settings.curriculum == "edge":
            self.curriculum = EdgeCurriculum(len(self.tasks), settings.curriculum_explore)
        self.by_difficulty: list[int] = []  # positions of all tasks in training order; empty if it is random
        if settings.curriculum in ("easy_to_hard", "hard_to_easy"):
            self.by_difficulty = by_length([task.prompt for task in self.tasks])
        if settings.curriculum == "hard_to_easy":
            self.by_difficulty.reverse()
        self.ahead: deque[PendingRollouts] = deque()  # rollouts of the next iterations
        self.groups = self.wasted = 0  # counts of the entire run
        self.prompts_cut = 0  # count of the iteration
        self.reward_parts: list[Mapping[str, FloatArray]] = []  # reward nodes of the iteration

    def draw(self, model: nn.Module, iteration: int) -> tuple[list[EpisodeGroup], dict[str, float]]:
        """Return the groups of the iteration and its metrics.

        Groups in which all episodes have the same reward are replaced by groups of further prompts, in at most
        `dynamic_sampling` rounds. Such groups are kept if they remain after the last round. As in DAPO, only the reward
        counts: a difference in penalties does not make a group useful.
        """
        settings = self.settings
        size = settings.prompts_per_iteration
        if not self.ahead:
            self._draw_ahead(model, iteration)
        selected = self.ahead.popleft()
        episodes = selected.collection.episodes()  # wait here, because servers cannot load new weights before
        # Greedy baselines and replacements are sampled between scoring and training. If the next iterations were
        # submitted first, these samples would have to wait for them.
        samples_again = settings.dynamic_sampling or settings.advantage == "remax"
        if not samples_again:
            self._draw_later(model, iteration)
        order = selected.order
        positions = order[:size]
        self.prompts_cut = selected.prompts_cut
        groups = sampled = self._score_and_filter(model, positions, episodes, iteration, 0)
        for attempt in range(1, settings.dynamic_sampling + 1):
            useful = [group for group in groups if not group.undecided]
            missing = size - len(useful)
            if not missing:
                break
            # Every round has its own section of the order, so tasks repeat only if the corpus is small.
            start = attempt * size
            further = order[start : start + missing]
            cut_before = self.collector.prompts_cut
            sampled_further = self._collect(model, further, iteration, attempt).episodes()
            self.prompts_cut += self.collector.prompts_cut - cut_before
            replacements = self._score_and_filter(model, further, sampled_further, iteration, attempt)
            positions = positions + further
            sampled = sampled + replacements
            useful += [group for group in replacements if not group.undecided]
            undecided = [group for group in (*replacements, *groups) if group.undecided]
            groups = [*useful, *undecided][:size]
        self.groups += len(sampled)
        self.wasted += sum(group.wasted for group in sampled)
        metrics = self._metrics(sampled) | self._node_means()
        if self.curriculum is not None:
            metrics |= self.curriculum.metrics(positions)
            metrics["curriculum/informative"] = float(np.mean([not group.sampled.undecided for group in sampled]))
            self.curriculum.observe(positions, [group.sampled.rewards for group in sampled])
        if samples_again:
            self._draw_later(model, iteration)
        return groups, metrics

    def _draw_later(self, model: nn.Module, iteration: int) -> None:
        """Start to sample the rollouts of the next `staleness` iterations with the current weights."""
        last = min(iteration + self.settings.staleness, self.settings.iterations - 1)
        for later in range(iteration + len(self.ahead) + 1, last + 1):
            self._draw_ahead(model, later)

    def _draw_ahead(self, model: nn.Module, iteration: int) -> None:
        """Select the tasks of an iteration and start to sample their episodes."""
        size = self.settings.prompts_per_iteration
        # Attempt k takes its prompts from order[k · size:].
        order = self._order(size * (self.settings.dynamic_sampling + 1), iteration)
        cut_before = self.collector.prompts_cut
        collection = self._collect(model, order[:size], iteration, 0)
        self.ahead.append(PendingRollouts(order, collection, self.collector.prompts_cut - cut_before))

    def close(self) -> None:
        """Cancel rollouts that no iteration will train on."""
        self.ahead.clear()
        self.collector.close()

    def _order(self, count: int, iteration: int) -> list[int]:
        """Return at least `count` task positions in sampling order; a small corpus repeats."""
        if self.curriculum is not None:
            return self.curriculum.draw(count, self.run.seed("on_policy/curriculum", iteration))
        if self.by_difficulty:
            seed = self.run.seed("on_policy/curriculum", iteration)
            return ordered_tasks(self.by_difficulty, count, iteration, self.settings.iterations, seed)
        generator = torch.Generator().manual_seed(self.run.seed("on_policy/prompts", iteration))
        order = torch.randperm(len(self.tasks), generator=generator).tolist()
        return order * math.ceil(count / len(order))

    def _collect(self, model: nn.Module, positions: list[int], iteration: int, attempt: int) -> Collection:
        """Sample episodes of the tasks at these corpus positions; with `staleness`, in parallel with training."""
        tasks = [self.tasks[i] for i in positions]
        seed = self.run.seed(f"on_policy/rollout/{attempt}", iteration)
        group = self.settings.sampled_per_prompt
        # Replacements (attempt > 0) are needed at once, so they are never submitted ahead.
        if self.settings.staleness and not attempt:
            return self.collector.submit(model, tasks, group, seed)
        episodes = self.collector.collect(model, tasks, group, seed)
        return Collection(lambda: episodes)

    def _score_and_filter(
        self, model: nn.Module, positions: list[int], episodes: list[list[Episode]], iteration: int, attempt: int
    ) -> list[EpisodeGroup]:
        groups = [EpisodeGroup(self.tasks[i], sampled) for i, sampled in zip(positions, episodes, strict=True)]
        self._score_groups(groups)
        if self.settings.advantage == "remax":
            self._score_greedy_responses(model, groups)
        return self._filter_groups(groups, iteration, attempt)

    def _filter_groups(self, groups: list[EpisodeGroup], iteration: int, attempt: int) -> list[EpisodeGroup]:
        """Reduce each group to the responses that are trained on; see `OnPolicySettings.rollout_filter`."""
        settings = self.settings
        if settings.rollout_filter == "none":
            return groups
        rng = np.random.default_rng(self.run.seed(f"on_policy/filter/{attempt}", iteration))
        how, size = settings.rollout_filter, settings.group_size
        # In order, because `best_random` uses one stream of random numbers.
        kept = [filter_responses(np.array(group.rewards), size, how, rng) for group in groups]
        return [group.keep(positions.tolist()) for group, positions in zip(groups, kept, strict=True)]

    def _score_groups(self, groups: list[EpisodeGroup]) -> None:
        """Write rewards and shaped scores into newly sampled groups with a single call of the reward."""
        size = self.settings.sampled_per_prompt
        episodes = episodes_of(groups)
        batch = self.reward(episodes)
        self.reward.observe(batch)
        self.reward_parts.append(batch.parts)
        rewards = batch.total_N
        self.shaper.observe(rewards)
        scores = self._shape(episodes, rewards)
        rewards_BG = rewards.reshape(-1, size)
        scores_BG = scores.reshape(-1, size)
        for group, rewards_G, scores_G in zip(groups, rewards_BG, scores_BG, strict=True):
            group.rewards = rewards_G.tolist()
            group.scores = scores_G.tolist()
        # A clipped total is not the sum of the turns' rewards, so the last turn then gets the full score.
        if batch.turns is not None and not self.settings.reward_clip:
            early = [[reward / self.shaper.scale for reward in turns[:-1]] for turns in batch.turns]
            for index, group in enumerate(groups):
                group.early = early[index * size : (index + 1) * size]

    def _shape(self, episodes: Sequence[Episode], rewards: FloatArray) -> FloatArray:
        lengths = [len(episode.turns[-1].token_ids) for episode in episodes]
        return self.shaper(rewards, lengths, [episode.finished for episode in episodes])

    def _score_greedy_responses(self, model: nn.Module, groups: list[EpisodeGroup]) -> None:
        """Score the greedy response to each prompt, the baseline of ReMax.

        Greedy responses are shaped like samples, but update neither the running scale nor the reward's running mean.
        """
        prompts = [group.episodes[0].prompt_ids for group in groups]
        tasks = [group.task for group in groups]
        collected = self.collector.collect(model, tasks, 1, 0, temperature=0.0, prompts=prompts)
        greedy = [episode for (episode,) in collected]
        scores = self._shape(greedy, self.reward(greedy).total_N)
        for group, score, episode in zip(groups, scores.tolist(), greedy, strict=True):
            group.greedy = score
            group.greedy_tokens = episode.sampled_tokens

    def _node_means(self) -> dict[str, float]:
        """Return the mean of every node of the reward graph over the iteration; empty for a single node."""
        batches, self.reward_parts = self.reward_parts, []
        nodes = dict.fromkeys(node for parts in batches for node in parts)
        if len(nodes) < 2:
            return {}
        values = {node: [parts[node] for parts in batches if node in parts] for node in nodes}
        return part_means({node: np.concatenate(parts) for node, parts in values.items()})

    def _metrics(self, trained: list[EpisodeGroup]) -> dict[str, float]:
        """Return the metrics of the iteration (definitions: metrics.py).

        Args:
            trained: groups after the rollout filter.
        """
        episodes = episodes_of(group.sampled for group in trained)
        metrics = group_metrics(trained)
        metrics |= penalty_means(self.shaper, trained)
        metrics["prompts_cut"] = float(self.prompts_cut)
        if self.settings.rollout_filter != "none" and metrics["unscored"] < 1:
            metrics["reward_kept"] = float(np.nanmean([group.rewards for group in trained]))
        if self.collector.environment is not None:
            metrics["turns"] = float(np.mean([len(episode.turns) for episode in episodes]))
        metrics |= truth_means(self.run.measure_samples(episodes))
        for alarm in collapse_alarms(metrics):
            self.run.note(alarm)
        return metrics

    def imitation(self, step: int, count: int, units: int, micro_batch_tokens: int) -> list[Imitation]:
        """Return `count` corpus responses whose mean −log π is added to the step's loss with weight `ptx_weight`."""
        corpus = self.run.corpus.train
        generator = torch.Generator().manual_seed(self.run.seed("on_policy/ptx", step))
        selected = torch.randint(len(corpus), (count,), generator=generator).tolist()
        pairs = [corpus[i] for i in selected]
        encoder = self.encoder.uncounted()  # these rows must not count as truncated rows of the corpus report
        rows = [encoder.row(pair.prompt, pair.chosen, self.settings.max_length) for pair in pairs]
        # The loop divides the sum of a step by `units`, so units / tokens makes this the mean over corpus tokens.
        corpus_tokens = sum(len(response) for _, response in rows)
        weight = self.settings.ptx_weight * units / corpus_tokens
        lengths = [len(prompt) + len(response) for prompt, response in rows]
        splits = micro_batches(range(count), lengths, micro_batch_tokens)
        batches = [TokenBatch.from_rows([rows[i] for i in split], self.run.device) for split in splits]
        return [Imitation(batch, weight) for batch in batches]

    def totals(self) -> dict[str, float]:
        """Return the number of groups of the run and the fraction of wasted ones; empty for groups of one."""
        if self.settings.group_size == 1:
            return {}
        return {"groups": self.groups, "wasted_groups": self.wasted / max(1, self.groups)}

    def state_dict(self) -> dict[str, Any]:
        state = {"groups": self.groups, "wasted": self.wasted, "reward": self.reward.state_dict()}
        if self.settings.staleness:
            # saved because the weights that sampled them change with the next update
            state["ahead"] = [selected.state_dict() for selected in self.ahead]
        return state if self.curriculum is None else {**state, "curriculum": self.curriculum.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.groups = int(state["groups"])
        self.wasted = int(state["wasted"])
        self.reward.load_state_dict(state["reward"])
        pending = state.get("ahead", [])
        self.ahead = deque(PendingRollouts.from_state(selected, self.tasks) for selected in pending)
        if self.curriculum is not None:
            self.curriculum.load_state_dict(state["curriculum"])


def penalty_means(shaper: RewardShaper, groups: Sequence[EpisodeGroup]) -> dict[str, float]:
    """Return metric name → mean of each penalty. Samples without a score are left out."""
    sampled = [group.sampled for group in groups]
    episodes = [
        episode
        for group in sampled
        for episode, reward in zip(group.episodes, group.rewards, strict=True)
        if np.isfinite(reward)
    ]
    if not episodes:
        return {}
    lengths = [len(episode.turns[-1].token_ids) for episode in episodes]
    penalties = shaper.penalties(lengths, [episode.finished for episode in episodes])
    return {f"penalty/{name}": float(penalty_N.mean()) for name, penalty_N in penalties.items()}


def collapse_alarms(metrics: Mapping[str, float]) -> list[str]:
    """Return warnings that an agent has stopped learning.

    A policy that no longer calls tools cannot recover: if all episodes of a task answer immediately, their rewards are
    equal and give no gradient.
    """
    alarms = []
    if metrics.get("calls", FEWEST_CALLS) < FEWEST_CALLS:
        alarms.append(
            f"calls per episode fell below {FEWEST_CALLS:g}: a policy that calls no tool gets equal rewards and "
            "cannot recover; lower the cost of a call, or algorithm.lr"
        )
    informative = 1 - metrics.get("wasted_groups", 0.0)
    # Groups that always solve their task also have equal scores, but this is success, not collapse.
    if "calls" in metrics and informative < FEWEST_INFORMATIVE and metrics.get("correct", 0.0) < LEARNED:
        alarms.append(
            f"fewer than {FEWEST_INFORMATIVE:.0%} of an iteration's groups had different scores, and the others have "
            "no gradient; choose easier tasks, a lower algorithm.lr, or algorithm.dynamic_sampling"
        )
    return alarms


def group_metrics(trained: Sequence[EpisodeGroup]) -> dict[str, float]:
    """Return metrics of episodes (definitions: metrics.py), over all sampled episodes unless stated otherwise.

    Args:
        trained: groups of equal size, after the rollout filter.
    """
    # `sampled` undoes the rollout filter
    groups = [group.sampled for group in trained]
    rewards = np.array([group.rewards for group in groups])
    episodes = episodes_of(groups)
    lengths = [episode.sampled_tokens for episode in episodes]
    scored = np.isfinite(rewards)
    metrics = {
        "reward": float(rewards[scored].mean()) if scored.any() else float("nan"),
        "reward_sd": float(rewards[scored].std()) if scored.any() else float("nan"),
        "score": float(np.nanmean([group.scores for group in trained])) if scored.any() else float("nan"),
        "score_sd": float(np.nanstd([group.scores for group in trained])) if scored.any() else float("nan"),
        "tokens": float(np.mean(lengths)),
        "ended": float(np.mean([episode.finished for episode in episodes])),
        "unscored": float(1 - scored.mean()),
        "generated_tokens": float(sum(lengths) + sum(group.greedy_tokens for group in groups)),
    }
    if len(trained[0].episodes) > 1:  # a group of one has no differences
        metrics["wasted_groups"] = float(np.mean([group.wasted for group in trained]))
    return metrics
