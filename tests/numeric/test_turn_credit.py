"""Policy gradients on episodes of several turns: from the environment's rewards to an advantage per token, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rlhf_lab.algorithms.policy_gradient.grpo import GroupPolicyOptimisation
from rlhf_lab.algorithms.policy_gradient.ppo import ProximalPolicyOptimisation
from rlhf_lab.algorithms.policy_gradient.rollouts import Rollouts
from rlhf_lab.algorithms.policy_gradient.settings import GRPO, PPO
from rlhf_lab.algorithms.policy_gradient.shaping import RewardShaper
from rlhf_lab.core.episodes import Episode, Segment, Task
from rlhf_lab.core.types import RewardBatch
from rlhf_lab.sampling.experience import EpisodeGroup, Experience
from rlhf_lab.sampling.settings import Local

TASK = Task("p")
NAN = float("nan")


def spoken(*rewards: float, tokens: int = 2, finished: bool = True) -> Episode:
    """An episode with a turn of `tokens` tokens for each reward, and three tokens of the environment between two."""
    segments: list[Segment] = []
    for reward in rewards:
        if segments:
            segments.append(Segment([7, 7, 7], sampled=False))
        segments.append(Segment([5] * tokens, sampled=True, logps=[-0.5] * tokens, reward=reward))
    return Episode(TASK, "p", "r", [1, 2], tuple(segments), finished)


class TurnRewards:
    """Scores an episode by its turns; one whose first turn is worth NaN is left unscored."""

    def __call__(self, episodes: Sequence[Episode]) -> RewardBatch:
        turns = [[turn.reward for turn in episode.turns] for episode in episodes]
        total_N = np.array([sum(rewards) for rewards in turns])
        return RewardBatch(total_N, turns=[[] if np.isnan(sum(rewards)) else rewards for rewards in turns])

    def observe(self, batch: RewardBatch) -> None:
        pass


def rollouts(**settings: Any) -> Rollouts:
    """Scoring and filtering of groups, without a policy that samples them. A cut turn costs nothing here by itself."""
    generated = Rollouts.__new__(Rollouts)
    generated.settings = PPO(**{"missing_eos_penalty": 0.0, **settings})
    generated.shaper = RewardShaper(generated.settings, max_new_tokens=8)
    generated.reward: Any = TurnRewards()
    generated.reward_parts = []
    generated.run: Any = SimpleNamespace(seed=lambda name, iteration: 0)
    return generated


def scored(made: Rollouts, *groups: Sequence[Episode]) -> list[EpisodeGroup]:
    """Groups of these episodes as an iteration trains on them."""
    sampled = [EpisodeGroup(TASK, list(episodes)) for episodes in groups]
    made._score_groups(sampled)
    return made._filter_groups(sampled, iteration=0, attempt=0)


def credited(groups: list[EpisodeGroup], values: Sequence[float] | None = None, **settings: Any) -> Experience:
    """The experience of these groups with PPO's advantages and returns; values are 0 by default."""
    algorithm = ProximalPolicyOptimisation.__new__(ProximalPolicyOptimisation)
    algorithm.settings = PPO(**{"lam": 1.0, "value_lam": 1.0, "log_kl": False, **settings})
    algorithm.beta, algorithm.checked = 0.0, True
    # a float32 policy and an exact sampler: the sampler's log-probabilities are taken, no model computes any
    algorithm.model = nn.Identity()
    algorithm.sampler: Any = SimpleNamespace(exact=True)
    algorithm.run: Any = SimpleNamespace(config=SimpleNamespace(runtime=SimpleNamespace(dtype="float32")))
    experience, scores_R = algorithm._experience(groups, {})
    value_N = torch.tensor(values) if values else torch.zeros(experience.start[-1])
    algorithm._state_values = lambda experience: value_N  # type: ignore[method-assign]
    algorithm.credit(groups, experience, scores_R, torch.zeros(experience.start[-1]))
    return experience


def test_each_turn_s_reward_lies_on_its_own_last_token():
    """Turns of two tokens earn ¼ and 1: token rewards 0 ¼ 0 1, so that with V = 0, γ = λ = 1 what is still to come is
    1¼ 1¼ 1 1. At γ = ½ it is, from the end: 1, ½, ¼ + ¼, ¼. The environment's three tokens in between discount nothing.
    """
    groups = scored(rollouts(), [spoken(0.25, 1.0)])
    assert credited(groups).tokens["advantage"].tolist() == [1.25, 1.25, 1.0, 1.0]
    assert credited(groups, gamma=0.5).tokens["advantage"].tolist() == [0.25, 0.5, 0.5, 1.0]


def test_values_of_the_next_turn_follow_those_of_the_turn_before():
    """V = .1 .2 .3 .4 and λ = 0: A_t = r_t + V_{t+1} − V_t, which is .2 − .1, ¼ + .3 − .2, .4 − .3 and 1 − .4.

    With value_lam = 1 the critic's returns are still the full 1¼ 1¼ 1 1; with 0 they are A + V.
    """
    groups = scored(rollouts(), [spoken(0.25, 1.0)])
    values = [0.1, 0.2, 0.3, 0.4]
    decoupled = credited(groups, values, lam=0.0).tokens
    assert decoupled["advantage"].tolist() == pytest.approx([0.1, 0.35, 0.1, 0.6])
    assert decoupled["return"].tolist() == pytest.approx([1.25, 1.25, 1.0, 1.0])
    coupled = credited(groups, values, lam=0.0, value_lam=0.0).tokens
    assert coupled["return"].tolist() == pytest.approx([0.2, 0.55, 0.4, 1.0])


def test_the_running_scale_divides_what_each_turn_earned():
    """Totals 4, 0, 0, 0 deviate from their mean by 3, −1, −1, −1: sd √(12/3) = 2, already in the first iteration.

    Halved, the turns earn ½ 1½, −1 1, 3 −3 and ¼ −¼. Four more zeros bring the mean to ½: the squares add up to
    3½² + 7·½² = 14, sd √(14/7) = √2.
    """
    generated = rollouts(reward_scaling="running_sd")
    episodes = [spoken(*rewards, tokens=1) for rewards in ((1.0, 3.0), (-2.0, 2.0), (6.0, -6.0), (0.5, -0.5))]
    groups = scored(generated, episodes[:1], episodes[1:2], episodes[2:3], episodes[3:])
    to_come = credited(groups).tokens["advantage"].view(4, 2)
    assert to_come.tolist() == [[2.0, 1.5], [0.0, 1.0], [0.0, -3.0], [0.0, -0.25]]
    later = scored(generated, *([spoken(1.0, -1.0, tokens=1)] for _ in range(4)))
    to_come = credited(later).tokens["advantage"].view(4, 2)
    assert to_come.flatten().tolist() == pytest.approx([0.0, -(0.5**0.5)] * 4)


def test_a_score_that_is_no_sum_of_the_turns_lies_on_the_last_turn():
    """Turns 1 and 3, clipped at 2: what the first turn was worth of those 2 is not known, so all tokens have 2."""
    groups = scored(rollouts(reward_clip=2.0), [spoken(1.0, 3.0)])
    assert groups[0].early == []
    assert credited(groups).tokens["advantage"].tolist() == [2.0, 2.0, 2.0, 2.0]


def test_what_is_taken_off_a_score_is_taken_off_its_last_turn():
    """Turns 1 and 3; the last one is cut, which costs ½: 3½ are still to come in the first turn, 2½ in the last."""
    groups = scored(rollouts(missing_eos_penalty=0.5), [spoken(1.0, 3.0, finished=False)])
    assert credited(groups).tokens["advantage"].tolist() == [3.5, 3.5, 2.5, 2.5]


@pytest.mark.parametrize(("tokens", "penalty"), [(3, 0.0), (6, 0.5), (8, 1.0)])
def test_only_the_last_turn_can_be_overlong(tokens, penalty):
    """Turns may have 8 tokens, and from 4 on each costs ¼. Two turns of 3 tokens are 6 tokens, but none is overlong."""
    (group,) = scored(rollouts(overlong_tokens=4), [spoken(1.0, 3.0, tokens=tokens)])
    assert group.scores == [4.0 - penalty]


@pytest.mark.parametrize(
    ("max_turns", "max_episode_tokens", "constant"),
    [(1, 0, 8), (3, 0, 24), (3, 20, 20)],  # 8 tokens a turn; an episode of three turns may be cut at 20
)
def test_the_constant_of_dr_grpo_is_the_longest_episode_s(max_turns, max_episode_tokens, constant, monkeypatch):
    """Every sampled token weighs 1 / (maximum tokens that all turns of an episode may sample)."""
    module = "rlhf_lab.algorithms.policy_gradient.on_policy"
    nothing = SimpleNamespace(collector=SimpleNamespace(sampler=SimpleNamespace(truncation=None)))
    monkeypatch.setattr(f"{module}.load_policy_twice", lambda run: (nn.Identity(), nn.Identity(), None))
    monkeypatch.setattr(f"{module}.build_graph", lambda settings, run: TurnRewards())
    monkeypatch.setattr(f"{module}.Evaluator", lambda *arguments: None)
    monkeypatch.setattr(f"{module}.Watch", lambda *arguments: SimpleNamespace(listen=lambda reward: reward))
    monkeypatch.setattr(f"{module}.Rollouts", lambda *arguments: nothing)
    monkeypatch.setattr(f"{module}.Auditor", lambda *arguments: None)
    rollout = Local(max_new_tokens=8, max_episode_tokens=max_episode_tokens)
    config = SimpleNamespace(rollout=rollout, reward=None, data=SimpleNamespace(max_turns=max_turns))
    run: Any = SimpleNamespace(config=config, seed=lambda name, index: 0)
    settings = GRPO(advantage="dr_grpo", aggregation="constant", prompts_per_iteration=1, group_size=2, batch_size=2)
    algorithm = GroupPolicyOptimisation(settings, run)
    algorithm.experience = Experience.of([spoken(1.0, 0.0), spoken(2.0)])
    algorithm._plan_updates()
    assert algorithm.weight_N.tolist() == pytest.approx([1 / constant] * 6)


@pytest.mark.parametrize(("generated", "is_drawn"), [(99, True), (100, False), (101, False)])
def test_an_iteration_begins_only_below_the_token_budget(generated, is_drawn):
    """A run of 100 tokens: the iteration that crosses the budget is finished, and none begins once it is used up."""
    algorithm = ProximalPolicyOptimisation.__new__(ProximalPolicyOptimisation)
    algorithm.settings = PPO(token_budget=100)
    algorithm.monitor: Any = SimpleNamespace(stopped=None)
    algorithm.audit: Any = SimpleNamespace(stopped=None)
    algorithm.model, algorithm.generated = nn.Identity(), generated
    selected: list[int] = []

    class Drawn(Exception):
        """Nothing behind the draw is of interest here."""

    def draw(model: nn.Module, iteration: int) -> None:
        selected.append(iteration)
        raise Drawn

    algorithm.rollouts: Any = SimpleNamespace(draw=draw)
    with suppress(Drawn):
        algorithm._start_iteration(7)
    assert selected == ([7] if is_drawn else [])
    assert algorithm.experience is None and algorithm.plan == []


def test_every_group_has_the_turns_of_its_own_episodes():
    """Two groups of two: turns 1+0 and 2+0, then 0+3 and 0+4 (first turn + second turn)."""
    pairs = {"group_size": 2, "prompts_per_iteration": 2, "batch_size": 4}
    groups = scored(
        rollouts(**pairs),
        [spoken(1.0, 0.0, tokens=1), spoken(2.0, 0.0, tokens=1)],
        [spoken(0.0, 3.0, tokens=1), spoken(0.0, 4.0, tokens=1)],
    )
    assert [group.early for group in groups] == [[[1.0], [2.0]], [[0.0], [0.0]]]
    to_come = credited(groups, **pairs).tokens["advantage"].view(4, 2)
    assert to_come.tolist() == [[1.0, 0.0], [2.0, 0.0], [3.0, 3.0], [4.0, 4.0]]


def test_an_unscored_episode_takes_its_turns_with_it():
    """The first of three episodes has no score: the other two keep their own turns, 1 + 2 and 3 + 4."""
    three = {"group_size": 3, "prompts_per_iteration": 1, "batch_size": 3}
    groups = scored(
        rollouts(**three), [spoken(NAN, 9.0, tokens=1), spoken(1.0, 2.0, tokens=1), spoken(3.0, 4.0, tokens=1)]
    )
    to_come = credited(groups, **three).tokens["advantage"].view(2, 2)
    assert to_come.tolist() == [[3.0, 2.0], [7.0, 4.0]]


def test_a_filter_keeps_the_turns_of_the_episodes_that_it_keeps():
    """With totals 2, 9, 5 and 1 the best (second) and the worst (fourth) stay: turns 8 + 1 and −1 + 2."""
    two_of_four = {"group_size": 2, "filter_pool": 4, "rollout_filter": "best_worst"}
    two_of_four |= {"prompts_per_iteration": 1, "batch_size": 2}
    turns = [(0.0, 2.0), (8.0, 1.0), (3.0, 2.0), (-1.0, 2.0)]
    (group,) = scored(rollouts(**two_of_four), [spoken(*rewards, tokens=1) for rewards in turns])
    assert sorted(zip(group.rewards, group.early, strict=True)) == [(1.0, [-1.0]), (9.0, [8.0])]
    to_come = credited([group], **two_of_four).tokens["advantage"].view(2, 2)
    assert sorted(to_come.tolist()) == [[1.0, 2.0], [9.0, 1.0]]
