"""A reward model of three sources: data of its own, shares that start from one policy; size=smoke of its stages."""

from __future__ import annotations

import pytest
from support import checked, planned

from rlhf_lab.config import command_line
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.data.world_settings import MiniHH
from rlhf_lab.packs.agents.tools.settings import Tools

SHARES = "mixture.shares={data:0,corpus:0,corpus_agents:100}"


def by_recipe(*command: str) -> dict:
    return {stage.recipe: stage for stage in planned(*command).upstream()}


def test_a_stage_may_have_data_of_another_kind():
    stages = by_recipe("mixed_reward_model")
    data = {name: type(stage.config.data) for name, stage in stages.items()}
    assert data == {
        **dict.fromkeys(("sft_tools", "agent_pairs"), Tools),
        **dict.fromkeys(("sft", "sft_mixed", "cai_preferences", "mixed_reward_model"), MiniHH),
    }
    for name in ("agent_pairs", "sft_mixed", "sft_tools"):
        assert stages[name].settings_key == planned(name).settings_key
    assert stages["mixed_reward_model"].sources()["attempts"] == stages["agent_pairs"].output


def test_all_shares_start_from_the_same_policy():
    """A study over shares compares reward models of one vocabulary: their start is one stage."""
    first, second = planned("mixed_reward_model"), planned("mixed_reward_model", SHARES)
    assert first.settings_key != second.settings_key
    assert {role: need.settings_key for role, need in first.needs.items()} == {
        role: need.settings_key for role, need in second.needs.items()
    }


def test_a_vocabulary_that_is_given_cannot_be_chosen():
    with pytest.raises(ConfigError, match=r"mixture\.vocabulary=all: the model that this stage starts from"):
        checked("mixed_reward_model", "mixture.vocabulary=all")


def test_attempts_need_an_environment():
    with pytest.raises(ConfigError, match="needs an environment"):
        checked("agent_pairs", "data=mini_hh")


def test_a_mixture_of_small_corpora_is_as_large_as_they_allow():
    full, small = (
        planned("mixed_reward_model").config.mixture,
        planned("mixed_reward_model", "size=smoke").config.mixture,
    )
    assert (full.rows, small.rows) == (4000, 0) and small.shares == full.shares
    assert planned("mixed_reward_model", "size=smoke", "mixture.rows=60").config.mixture.rows == 60
    volumes = command_line.check_command(["+recipe=study/cai_volume", "size=smoke", "mixture.rows=50,100"]).configs
    assert {config.mixture.rows for config in volumes} == {50, 100}


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
