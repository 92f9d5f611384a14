"""Attempts that a reward selects: the highest score wins, whether it succeeded or not."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from support import planned

from rlhf_lab.core.episodes import Episode, Segment, Task
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.packs.agents.benchmarks.agent_bench import reward_metrics
from rlhf_lab.packs.agents.synthesis.reward_trajectories import UNSCORED, RewardTrajectoryMaker
from rlhf_lab.packs.agents.synthesis.trajectories import UNFINISHED

TASK = Task("\n\nHuman: where?\n\nAssistant:", {"category": "lookup"})


def episode(answer: str, *, finished: bool = True, turns: int = 2) -> Episode:
    prompt = f"{TASK.prompt} Action: search[ a ; b ]\n\nTool: c\n\nAssistant:"
    segments = (Segment([5], sampled=True, logps=[-1.0]), Segment([6], sampled=False)) * (turns - 1)
    return Episode(TASK, prompt, answer, [1], (*segments, Segment([7], sampled=True, logps=[-1.0])), finished)


def maker(scores: dict[str, float]) -> RewardTrajectoryMaker:
    """A maker whose reward knows each answer, and whose environment takes "right" for right."""
    generated = object.__new__(RewardTrajectoryMaker)
    read: list[str] = []

    def reward(episodes):
        read.extend(each.response for each in episodes)
        return SimpleNamespace(total_N=np.array([scores[each.response.split()[-1]] for each in episodes]))

    generated.reward, generated.read, generated.heldout = reward, read, set()
    right = lambda episodes: {"correct": [float(each.response == "right") for each in episodes]}  # noqa: E731
    generated.environment = SimpleNamespace(grade=right)
    return generated


def test_the_highest_reward_is_the_row_even_if_it_failed():
    chosen = maker({"right": 0.2, "wrong": 0.9, "other": 0.1})
    row = chosen.best_row(TASK, [episode("right"), episode("wrong"), episode("other")])
    assert (row["completion"], row["reward"], row["chosen_success"]) == ("wrong", 0.9, 0.0)
    assert row["success"] == pytest.approx(1 / 3)
    assert row["prompt"].endswith("Tool: c\n\nAssistant:") and row["learn_from"] == 1 and row["turns"] == 2
    # the reward reads an attempt as pairs have it: everything behind the question
    assert chosen.read[0] == "Action: search[ a ; b ]\n\nTool: c\n\nAssistant: right"


def test_unscored_attempts_are_not_chosen_and_the_first_of_equal_ones_is():
    attempts = [episode("wrong"), episode("right"), episode("other")]
    assert maker({"right": 0.5, "wrong": math.nan, "other": 0.5}).best_row(TASK, attempts)["completion"] == "right"
    row = maker({"right": math.nan, "wrong": math.nan}).best_row(TASK, attempts[:2])
    assert (row["problem"], row["reward"], row["chosen_success"]) == (UNSCORED, None, None)
    assert row["success"] == 0.5


def test_a_cut_attempt_is_no_row_and_no_success():
    row = maker({"right": 0.1, "wrong": 0.9}).best_row(TASK, [episode("right"), episode("wrong", finished=False)])
    assert row["problem"] == UNFINISHED
    row = maker({"right": 0.9, "wrong": 0.1}).best_row(TASK, [episode("right", finished=False), episode("wrong")])
    assert (row["success"], row["chosen_success"], row["problem"]) == (0.0, 0.0, UNFINISHED)


def test_an_agent_is_trained_for_each_mixture():
    """Every stage between the mixture and the agent has its own key for each mixture; what they start from has one."""
    shares = "stages.mixed_reward_model.mixture.shares"
    stages = []
    for mixture in ("{data: 100, corpus: 0, corpus_agents: 0}", "{data: 0, corpus: 0, corpus_agents: 100}"):
        stage = planned("agent_of_mixture", f"{shares}={mixture}")
        keys = {each.recipe: each.settings_key for each in stage.upstream()}
        stages.append({**keys, "agent_of_mixture": stage.settings_key})
    first, second = stages
    changed = {recipe for recipe in first if first[recipe] != second[recipe]}
    assert changed >= {"mixed_reward_model"}
    chain = planned("agent_of_mixture")
    agent = chain.needs["policy"]
    assert agent.recipe == "sft_of_mixture" and agent.needs["corpus"].recipe == "mixed_trajectories"
    assert agent.needs["corpus"].needs["reward"].directory == chain.needs["reward"].directory
    assert {"agent_pairs", "sft_mixed"} <= {each.recipe for each in chain.upstream()}


def test_metrics_of_the_reward_stage_are_copied(tmp_path):
    (tmp_path / "result.json").write_text('{"metrics": {"accuracy": {"mean": 0.7}, "auroc": {"mean": 0.6}}}')
    run = SimpleNamespace(needs={"reward": str(tmp_path / "model")})
    assert reward_metrics(run, ["accuracy"]) == {"accuracy": {"mean": 0.7}}
    assert reward_metrics(run, []) == {}
    with pytest.raises(ConfigError, match="has no gold_agreement; it has accuracy, auroc"):
        reward_metrics(run, ["gold_agreement"])


@pytest.mark.parametrize("overrides", [("algorithm.reward_metrics=[]",), ("needs.reward=null",)])
def test_metrics_and_the_stage_that_has_them_belong_together(overrides):
    with pytest.raises(ConfigError, match="belong together"):
        planned("agent_of_mixture", *overrides)
