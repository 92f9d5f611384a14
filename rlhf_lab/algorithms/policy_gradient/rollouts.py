"""Draws tasks, collects groups of episodes and scores them: the first half of an on-policy iteration."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from rlhf_lab.algorithms.pair_selection.rules import filter_replies
from rlhf_lab.algorithms.policy_gradient.curriculum import EdgeCurriculum
from rlhf_lab.algorithms.policy_gradient.settings import OnPolicySettings
from rlhf_lab.algorithms.policy_gradient.shaping import RewardShaper
from rlhf_lab.core.episodes import Episode, Task
from rlhf_lab.core.types import FloatArray, TrainingReward
from rlhf_lab.models.encoding import Encoder, TokenBatch
from rlhf_lab.rewards.graph import part_means
from rlhf_lab.sampling.episodes import Collection, EpisodeCollector
from rlhf_lab.sampling.experience import Group, Imitation, episode_from, episode_state, episodes_of
from rlhf_lab.training.batching import micro_batches
from rlhf_lab.training.run import Run

FEWEST_CALLS = 0.5
FEWEST_INFORMATIVE = 0.25
"""Calls per episode, and share of groups whose scores differ, below which training has collapsed."""
LEARNED = 0.75
"""Share of right answers from which on equal rewards mean that the tasks are learned."""


def truth_means(truth: Mapping[str, FloatArray]) -> dict[str, float]:
    """Mean of each measure of the samples that is known, over those that have it; NaN where none has."""
    known = {key: values[~np.isnan(values)] for key, values in truth.items()}
    return {key: float(values.mean()) if len(values) else float("nan") for key, values in known.items()}


@dataclass
class Drawn:
    """What was drawn for an iteration.

    Attributes:
        order: positions of tasks in the corpus; the first ones are sampled, the others may replace groups.
        prompts_cut: of those that are sampled.
    """

    order: list[int]
    collection: Collection
    prompts_cut: int

    def state_dict(self) -> dict[str, Any]:
        """Plain values. Waits for the episodes."""
        episodes = [[episode_state(episode) for episode in group] for group in self.collection.episodes()]
        return {"order": self.order, "episodes": episodes, "prompts_cut": self.prompts_cut}

    @classmethod
    def from_state(cls, state: dict[str, Any], tasks: Sequence[Task]) -> Drawn:
        sampled = zip(state["order"], state["episodes"], strict=False)  # the further tasks of the order have none
        episodes = [[episode_from(tasks[position], values) for values in group] for position, group in sampled]
        return cls(state["order"], Collection(lambda: episodes), state["prompts_cut"])


class Rollouts:
    """Samples from the policy. Prompts and noise of an iteration follow from the run's seed."""

    def __init__(
        self, settings: OnPolicySettings, run: Run, encoder: Encoder, reward: TrainingReward, shaper: RewardShaper
    ):
        self.settings, self.run, self.encoder, self.reward, self.shaper = settings, run, encoder, reward, shaper
        self.collector = EpisodeCollector(run, encoder)
        self.tasks = run.corpus.tasks("train")
        self.curriculum = None
        if settings.curriculum == "edge":
            self.curriculum = EdgeCurriculum(len(self.tasks), settings.curriculum_explore)
        self.ahead: deque[Drawn] = deque()  # what the next iterations train on
        self.groups = self.wasted = 0  # of the whole run
        self.prompts_cut = 0  # of the iteration
        self.reward_parts: list[Mapping[str, FloatArray]] = []  # of the iteration

    def draw(self, model: nn.Module, iteration: int) -> tuple[list[Group], dict[str, float]]:
        """The iteration's groups and what to log about them.

        With `dynamic_sampling`, groups in which the reward prefers no episode are replaced by groups of further
        prompts, as often as allowed; those that are left then stay. As in DAPO, a difference in penalties alone
        keeps no group.
        """
        settings = self.settings
        size = settings.prompts_per_iteration
        if not self.ahead:
            self._draw_ahead(model, iteration)
        drawn = self.ahead.popleft()
        episodes = drawn.collection.episodes()  # until they are there, servers cannot take other weights
        # what samples between scoring and training would have to wait for what is drawn ahead
        samples_again = settings.dynamic_sampling or settings.advantage == "remax"
        if not samples_again:
            self._draw_later(model, iteration)
        order = drawn.order
        positions = order[:size]
        self.prompts_cut = drawn.prompts_cut
        groups = sampled = self._scored(model, positions, episodes, iteration, 0)
        for attempt in range(1, settings.dynamic_sampling + 1):
            useful = [group for group in groups if not group.undecided]
            missing = size - len(useful)
            if not missing:
                break
            begin = attempt * size
            further = order[begin : begin + missing]
            cut_before = self.collector.prompts_cut
            sampled_further = self._collect(model, further, iteration, attempt).episodes()
            self.prompts_cut += self.collector.prompts_cut - cut_before
            replacements = self._scored(model, further, sampled_further, iteration, attempt)
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
        """Begin to sample, with the weights of this iteration, what iterations up to `staleness` later train on."""
        last = min(iteration + self.settings.staleness, self.settings.iterations - 1)
        for later in range(iteration + len(self.ahead) + 1, last + 1):
            self._draw_ahead(model, later)

    def _draw_ahead(self, model: nn.Module, iteration: int) -> None:
        """Draw the tasks of an iteration, and begin to sample their episodes."""
        size = self.settings.prompts_per_iteration
        # Attempt k takes its prompts from order[k · size:].
        order = self._order(size * (self.settings.dynamic_sampling + 1), iteration)
        cut_before = self.collector.prompts_cut
        collection = self._collect(model, order[:size], iteration, 0)
        self.ahead.append(Drawn(order, collection, self.collector.prompts_cut - cut_before))

    def close(self) -> None:
        """Give up what no iteration will train on."""
        self.ahead.clear()
        self.collector.close()

    def _order(self, count: int, iteration: int) -> list[int]:
        """Positions of at least `count` tasks in the order in which they are drawn; where there are fewer, again."""
        if self.curriculum is not None:
            return self.curriculum.draw(count, self.run.seed("on_policy/curriculum", iteration))
        generator = torch.Generator().manual_seed(self.run.seed("on_policy/prompts", iteration))
        order = torch.randperm(len(self.tasks), generator=generator).tolist()
        return order * -(-count // len(order))

    def _collect(self, model: nn.Module, positions: list[int], iteration: int, attempt: int) -> Collection:
        """Sample episodes of the tasks at these positions of the corpus; what is drawn ahead, beside training."""
        tasks = [self.tasks[i] for i in positions]
        seed = self.run.seed(f"on_policy/rollout/{attempt}", iteration)
        group = self.settings.sampled_per_prompt
        if self.settings.staleness and not attempt:
            return self.collector.submit(model, tasks, group, seed)
        episodes = self.collector.collect(model, tasks, group, seed)
        return Collection(lambda: episodes)

    def _scored(
        self, model: nn.Module, positions: list[int], episodes: list[list[Episode]], iteration: int, attempt: int
    ) -> list[Group]:
        """Scored and filtered groups of the episodes of the tasks at these positions."""
        groups = [Group(self.tasks[i], sampled) for i, sampled in zip(positions, episodes, strict=True)]
        self._score_groups(groups)
        if self.settings.advantage == "remax":
            self._score_greedy_replies(model, groups)
        return self._filter_groups(groups, iteration, attempt)

    def _filter_groups(self, groups: list[Group], iteration: int, attempt: int) -> list[Group]:
        """The replies of each group that are trained on; see `OnPolicySettings.rollout_filter`."""
        settings = self.settings
        if settings.rollout_filter == "none":
            return groups
        rng = np.random.default_rng(self.run.seed(f"on_policy/filter/{attempt}", iteration))
        how, size = settings.rollout_filter, settings.group_size
        return [group.keep(filter_replies(np.array(group.rewards), size, how, rng).tolist()) for group in groups]

    def _score_groups(self, groups: list[Group]) -> None:
        """Write rewards and shaped scores into freshly sampled groups, all in one call of the reward."""
        size = self.settings.sampled_per_prompt
        episodes = episodes_of(groups)
        batch = self.reward(episodes)
        self.reward.observe(batch)
        self.reward_parts.append(batch.parts)
        rewards = batch.total_N
        self.shaper.observe(rewards)
        scores = self._shape(episodes, rewards)
        for group, rewards_G, scores_G in zip(groups, rewards.reshape(-1, size), scores.reshape(-1, size), strict=True):
            group.rewards = rewards_G.tolist()
            group.scores = scores_G.tolist()
        # A clipped total is no sum of what the turns earned: the whole score then lies on the last one.
        if batch.turns is not None and not self.settings.reward_clip:
            early = [[reward / self.shaper.scale for reward in turns[:-1]] for turns in batch.turns]
            for number, group in enumerate(groups):
                group.early = early[number * size : (number + 1) * size]

    def _shape(self, episodes: Sequence[Episode], rewards: FloatArray) -> FloatArray:
        """The scores that episodes are trained on."""
        lengths = [len(episode.turns[-1].token_ids) for episode in episodes]
        return self.shaper(rewards, lengths, [episode.ended for episode in episodes])

    def _score_greedy_replies(self, model: nn.Module, groups: list[Group]) -> None:
        """Score the most likely reply to each prompt: the baseline of ReMax.

        It is shaped like the samples, but counts neither in the running scale nor in the reward's running mean.
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
        """Mean of every node of the reward graph over the iteration's replies; nothing where there is one node."""
        batches, self.reward_parts = self.reward_parts, []
        nodes = dict.fromkeys(node for parts in batches for node in parts)
        if len(nodes) < 2:
            return {}
        return part_means({node: np.concatenate([parts[node] for parts in batches if node in parts]) for node in nodes})

    def _metrics(self, trained: list[Group]) -> dict[str, float]:
        """See metrics.py.

        Args:
            trained: groups with the replies that a rollout filter left.
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
        """`count` corpus replies whose mean −log π joins the step's loss with weight `ptx_weight`."""
        corpus = self.run.corpus.train
        generator = torch.Generator().manual_seed(self.run.seed("on_policy/ptx", step))
        pairs = [corpus[i] for i in torch.randint(len(corpus), (count,), generator=generator).tolist()]
        encoder = replace(self.encoder, counts={})
        rows = [encoder.row(pair.prompt, pair.chosen, self.settings.max_length) for pair in pairs]
        # The loop divides the step's sum by `units`; times units / tokens this is the mean over corpus tokens.
        weight = self.settings.ptx_weight * units / sum(len(reply) for _, reply in rows)
        lengths = [len(prompt) + len(reply) for prompt, reply in rows]
        splits = micro_batches(range(count), lengths, micro_batch_tokens)
        batches = [TokenBatch.from_rows([rows[i] for i in split], self.run.device) for split in splits]
        return [Imitation(batch, weight) for batch in batches]

    def totals(self) -> dict[str, float]:
        """Groups sampled in the whole run, and the share of them that was wasted; nothing for groups of one."""
        if self.settings.group_size == 1:
            return {}
        return {"groups": self.groups, "wasted_groups": self.wasted / max(1, self.groups)}

    def state_dict(self) -> dict[str, Any]:
        state = {"groups": self.groups, "wasted": self.wasted, "reward": self.reward.state_dict()}
        if self.settings.staleness:
            # the weights that drew them are gone after the next update
            state["ahead"] = [drawn.state_dict() for drawn in self.ahead]
        return state if self.curriculum is None else {**state, "curriculum": self.curriculum.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.groups = int(state["groups"])
        self.wasted = int(state["wasted"])
        self.reward.load_state_dict(state["reward"])
        self.ahead = deque(Drawn.from_state(drawn, self.tasks) for drawn in state.get("ahead", []))
        if self.curriculum is not None:
            self.curriculum.load_state_dict(state["curriculum"])


def penalty_means(shaper: RewardShaper, groups: Sequence[Group]) -> dict[str, float]:
    """Mean of each penalty over the scored samples, by metric; an unscored sample has no score to subtract from."""
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
    penalties = shaper.penalties(lengths, [episode.ended for episode in episodes])
    return {f"penalty/{name}": float(penalty_N.mean()) for name, penalty_N in penalties.items()}


def collapse_alarms(metrics: Mapping[str, float]) -> list[str]:
    """Signs that an agent learns nothing more, in words.

    An episode without calls is absorbing: once all episodes of a task answer at once, their rewards are equal, and no
    gradient leads back.
    """
    alarms = []
    if metrics.get("calls", FEWEST_CALLS) < FEWEST_CALLS:
        alarms.append(
            f"calls per episode fell below {FEWEST_CALLS:g}: a policy that calls no tool gets equal rewards and "
            "does not come back; lower what a call costs, or algorithm.lr"
        )
    informative = 1 - metrics.get("wasted_groups", 0.0)
    # groups that solve their task every time are equal too, and that is no collapse
    if "calls" in metrics and informative < FEWEST_INFORMATIVE and metrics.get("correct", 0.0) < LEARNED:
        alarms.append(
            f"fewer than {FEWEST_INFORMATIVE:.0%} of an iteration's groups had different scores: the others taught "
            "nothing; choose easier tasks, a lower algorithm.lr, or algorithm.dynamic_sampling"
        )
    return alarms


def group_metrics(trained: Sequence[Group]) -> dict[str, float]:
    """What the episodes alone say (see metrics.py): of all that were sampled, where not said otherwise.

    Args:
        trained: groups of the same size, with the replies that a rollout filter left.
    """
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
        "ended": float(np.mean([episode.ended for episode in episodes])),
        "unscored": float(1 - scored.mean()),
        "generated_tokens": float(sum(lengths) + sum(group.greedy_tokens for group in groups)),
    }
    if len(trained[0].episodes) > 1:  # a group of one cannot differ from itself
        metrics["wasted_groups"] = float(np.mean([group.wasted for group in trained]))
    return metrics
