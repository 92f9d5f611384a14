"""size=smoke of recipes with agents: mixtures as large as small corpora allow, and rows to train on in any case."""

from __future__ import annotations

from support import planned

from rlhf_lab.config import compose
from rlhf_lab.stages import artifacts


def jobs(recipe: str, *overrides: str) -> list[artifacts.Stage]:
    command = compose.check_command([f"+recipe={recipe}", "size=smoke", *overrides])
    return [artifacts.plan(config, recipe) for config in command.configs]


def test_a_mixture_of_small_corpora_is_as_large_as_they_allow():
    assert planned("mixed_reward_model").config.mixture.rows == 4000
    stage = planned("mixed_reward_model", "size=smoke")
    assert stage.config.mixture.rows == 0
    assert stage.config.mixture.shares == planned("mixed_reward_model").config.mixture.shares
    assert planned("mixed_reward_model", "size=smoke", "mixture.rows=60").config.mixture.rows == 60
    job = jobs("study/synthetic_sft")[0]
    upstream = next(part for part in job.upstream() if part.recipe == "sft_synthetic")
    assert upstream.config.mixture.rows == 0
    assert {job.config.mixture.rows for job in jobs("study/cai_volume")} == {0}
    assert {job.config.mixture.rows for job in jobs("study/cai_volume", "mixture.rows=50,100")} == {50, 100}


def test_a_policy_that_succeeds_at_nothing_still_has_rows_to_train_on():
    pairs = next(part for part in planned("sft_mixed", "size=smoke").upstream() if part.recipe == "agent_pairs")
    assert pairs.config.algorithm.demonstrate
    assert not planned("agent_pairs").config.algorithm.demonstrate
    written = planned("agent_pairs", "size=smoke", "algorithm.demonstrate=false")
    assert not written.config.algorithm.demonstrate
    own = planned("agentic_sft_own", "size=smoke").needs["corpus"].config.algorithm
    assert not own.only_successes and planned("own_trajectories").config.algorithm.only_successes
    # an environment of the user need not know how its tasks are done, and is refused where it is asked to show it
    mine = ("data=environment", "data.environment=mine.py:Mine", "needs.policy=owner/policy")
    assert not planned("agent_pairs", "size=smoke", *mine).config.algorithm.demonstrate
