"""A reward model of three sources: a stage with data of its own, and one vocabulary whatever the shares."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support import checked, planned

from rlhf_lab.config import compose
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.types import Pair
from rlhf_lab.data.mixture_settings import Mixture
from rlhf_lab.data.world_settings import MiniHH
from rlhf_lab.models.tokenizer import train_tokenizer
from rlhf_lab.packs.agents.tools.settings import Tools
from rlhf_lab.training.start import vocabulary_rows

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
    assert stages["agent_pairs"].settings_key == planned("agent_pairs").settings_key
    assert stages["sft_mixed"].settings_key == planned("sft_mixed").settings_key
    assert stages["sft_tools"].settings_key == planned("sft_tools").settings_key
    assert stages["mixed_reward_model"].sources()["attempts"] == stages["agent_pairs"].output


def test_settings_of_its_own_data_can_be_written():
    stages = by_recipe("mixed_reward_model", "data.train_pairs=500", "stages.agent_pairs.data.train_tasks=300")
    assert stages["agent_pairs"].config.data.train_tasks == stages["sft_tools"].config.data.train_tasks == 300
    assert stages["sft"].config.data.train_pairs == 500
    with pytest.raises(ConfigError, match="train_pairs"):
        planned("mixed_reward_model", "+stages.agent_pairs.data.train_pairs=300")


def test_data_of_the_same_kind_are_still_taken_over():
    stages = by_recipe("dpo", "data.train_pairs=500", "+stages.sft.data={kind:mini_hh,test_pairs:20}")
    assert (stages["sft"].config.data.train_pairs, stages["sft"].config.data.test_pairs) == (500, 20)


def test_all_shares_start_from_the_same_policy():
    """A study over shares compares reward models of one vocabulary: their start is one stage."""
    first, second = planned("mixed_reward_model"), planned("mixed_reward_model", SHARES)
    assert first.settings_key != second.settings_key
    assert {role: need.settings_key for role, need in first.needs.items()} == {
        role: need.settings_key for role, need in second.needs.items()
    }


def run_of(vocabulary: str) -> SimpleNamespace:
    own = [Pair("\n\nHuman: cats\n\nAssistant:", "red", "green")]
    made = {"corpus_agents": [Pair("\n\nHuman: sorpal\n\nAssistant:", "zemsal", "gamlen")]}
    config = SimpleNamespace(mixture=Mixture(vocabulary=vocabulary))
    return SimpleNamespace(own_corpus=SimpleNamespace(train=own), made_rows=made, config=config)


@pytest.mark.parametrize(("vocabulary", "known"), [("data", False), ("all", True)])
def test_the_vocabulary_has_the_words_of_the_corpora_if_asked(vocabulary, known):
    texts = [text for pair in vocabulary_rows(run_of(vocabulary)) for text in (pair.prompt, f" {pair.chosen}")]
    texts += [f" {pair.rejected}" for pair in vocabulary_rows(run_of(vocabulary))]
    tokenizer = train_tokenizer(texts, 400)
    for word in (" sorpal", " zemsal", " gamlen"):
        assert (len(tokenizer(word)["input_ids"]) == 1) is known
    assert len(tokenizer(" red")["input_ids"]) == 1


def test_the_vocabulary_is_in_the_key_only_where_it_is_set():
    """The key of 0.10 for a stage that names a corpus, and another one with a vocabulary of all rows."""
    plain = planned("sft_synthetic")
    assert plain.settings_key == planned("sft_synthetic", "mixture.vocabulary=data").settings_key
    assert plain.settings_key != planned("sft_synthetic", "mixture.vocabulary=all").settings_key
    assert plain.settings_key == "d291b99962f4"


def test_a_vocabulary_that_is_given_cannot_be_chosen():
    with pytest.raises(ConfigError, match=r"mixture\.vocabulary=all: the model that this stage starts from"):
        checked("mixed_reward_model", "mixture.vocabulary=all")


def test_the_study_has_the_shares_of_its_question():
    study = compose.check_command(["+recipe=study/mix_ratio"]).study
    shares = [tuple(level.values()) for level in study.sweep["mixture.shares"]]
    assert shares == [(100, 0, 0), (50, 50, 0), (50, 0, 50), (33, 33, 33), (25, 25, 50), (0, 0, 100)]
    assert len(study.sweep["seed"]) >= 3
    assert study.fronts[0].metrics == ["accuracy", "agent_accuracy"]


@pytest.mark.parametrize("settings", [{"attempts": 1}, {"pairs_per_task": 0}, {"heldout_tasks": -1}])
def test_attempts_that_cannot_be_compared_are_refused(settings):
    from rlhf_lab.packs.agents.synthesis.settings import AttemptPairs

    with pytest.raises(ValueError, match=next(iter(settings))):
        AttemptPairs(**settings)


def test_attempts_need_an_environment():
    with pytest.raises(ConfigError, match="attempts tasks in an environment"):
        checked("agent_pairs", "data=mini_hh")
