"""Logs of sampled groups, by this engine or by TRL, count abstentions as unscored; TRL receives None."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import prompt_text
from test_chat import FAMILIES, tokenizer_of

from rlhf_lab.algorithms.policy_gradient.rollouts import group_metrics
from rlhf_lab.algorithms.trl.engine import reward_function
from rlhf_lab.core.episodes import Episode, Segment, Task
from rlhf_lab.core.types import Corpus, RewardBatch
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.sampling.experience import EpisodeGroup


def group(rewards: list[float], lengths: list[int], finished: list[bool]) -> EpisodeGroup:
    episodes = [
        Episode(Task("Q"), "Q", "x", [1], (Segment([7] * length, sampled=True),), end)
        for length, end in zip(lengths, finished, strict=True)
    ]
    return EpisodeGroup(Task("Q"), episodes, rewards, rewards)


def test_metrics_of_two_groups_by_hand():
    found = group_metrics([group([1.0, 3.0], [2, 4], [True, True]), group([math.nan, 2.0], [6, 8], [True, False])])
    assert found["reward"] == pytest.approx(2.0)
    assert found["reward_sd"] == pytest.approx(math.sqrt(2 / 3))
    assert found["unscored"] == 0.25
    assert (found["tokens"], found["generated_tokens"], found["ended"]) == (5.0, 20.0, 0.75)


@dataclass
class CountingEncoder(Encoder):
    """Counts how often each prompt is encoded."""

    encoded: Counter[str] = field(default_factory=Counter)

    def prompt(self, text: str, max_tokens: int | None = None) -> list[int]:
        self.encoded[text] += 1
        return super().prompt(text, max_tokens)


class Told:
    """A reward that returns fixed values, and records its inputs."""

    def __init__(self, rewards: list[float]):
        self.rewards = np.array(rewards)
        self.episodes: list[Episode] = []

    def __call__(self, episodes: list[Episode]) -> RewardBatch:
        self.episodes = list(episodes)
        return RewardBatch(self.rewards)

    def observe(self, batch: RewardBatch) -> None:
        pass


class Double:
    """A shaper that doubles."""

    def observe(self, rewards: np.ndarray) -> None:
        pass

    def __call__(self, rewards: np.ndarray, lengths: list[int], finished: list[bool]) -> np.ndarray:
        return 2 * rewards

    def penalties(self, lengths: list[int], finished: list[bool]) -> dict[str, np.ndarray]:
        return {"missing_eos": 1.0 * ~np.array(finished)}


def test_trl_is_given_shaped_scores_of_episodes_whose_prompts_are_encoded_once():
    encoder = CountingEncoder(tokenizer_of(FAMILIES["chatml"]))
    reward = Told([1.0, math.nan, 0.5, 0.5])
    rows: list[dict[str, Any]] = []
    run = SimpleNamespace(
        config=SimpleNamespace(rollout=SimpleNamespace(max_prompt_tokens=64)),
        corpus=Corpus("toy", [], [], "", metadata={prompt_text("you"): {"answer": "2"}}),
        measure_samples=lambda episodes: {"gold": np.array([1.0, 2.0, 3.0, 4.0])},
        log=lambda step, **metrics: rows.append({"step": step, **metrics}),
    )
    algorithm: Any = SimpleNamespace(
        encoder=encoder,
        rollouts=SimpleNamespace(reward=reward, groups=0, wasted=0),
        shaper=Double(),
        settings=SimpleNamespace(group_size=2, log_kl=False),
        run=run,
        monitor=SimpleNamespace(see_groups=lambda groups: {"groups_seen": len(groups)}),
        beta=0.0,
        generated=0,
    )
    prompts = [prompt_text("hello")] * 2 + [prompt_text("you")] * 2
    responses = [encoder.response("you"), encoder.response("there"), encoder.response("hello")[:-1], []]
    scores = reward_function(algorithm)(prompts, responses, SimpleNamespace(global_step=3))
    assert scores == [2.0, None, 1.0, 1.0]
    assert encoder.encoded == {prompt_text("hello"): 1, prompt_text("you"): 1}
    assert [episode.prompt_ids for episode in reward.episodes] == [encoder.prompt(prompt) for prompt in prompts]
    assert [episode.response for episode in reward.episodes] == ["you", "there", "hello", ""]
    assert [episode.finished for episode in reward.episodes] == [True, True, False, False]
    assert reward.episodes[2].task.metadata == {"answer": "2"}
    (row,) = rows
    assert (row["step"], row["reward"], row["unscored"], row["wasted_groups"]) == (3, pytest.approx(2 / 3), 0.25, 1.0)
    assert row["gold"] == 2.5
    assert row["groups_seen"] == algorithm.rollouts.groups == algorithm.rollouts.wasted == 2
    assert algorithm.generated == sum(map(len, responses)) == row["generated_tokens"]
