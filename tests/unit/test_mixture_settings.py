"""A stage with data of its own, and one vocabulary whatever the shares of a mixture."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support import planned

from rlhf_lab.core.types import Pair
from rlhf_lab.data.settings import Mixture
from rlhf_lab.data.world_settings import MiniHH, Reviews
from rlhf_lab.models.tokenizer import train_tokenizer
from rlhf_lab.training.start import vocabulary_rows


def test_data_of_another_kind_have_their_own_defaults():
    stage = planned("dpo", "data.train_pairs=500", "+stages.sft.data={kind:mini_hh,test_pairs:20}")
    data = stage.needs["policy"].config.data
    assert (data.train_pairs, data.test_pairs) == (500, 20)
    stage = planned("dpo", "data.train_pairs=500", "+stages.sft.data={kind:reviews,test_pairs:20}")
    assert isinstance(stage.config.data, MiniHH) and stage.config.data.train_pairs == 500
    policy_data = stage.needs["policy"].config.data
    assert isinstance(policy_data, Reviews)
    assert (policy_data.train_pairs, policy_data.test_pairs) == (Reviews().train_pairs, 20)


def run_of(vocabulary: str) -> SimpleNamespace:
    own = [Pair("\n\nHuman: cats\n\nAssistant:", "red", "green")]
    generated = {"corpus_agents": [Pair("\n\nHuman: sorpal\n\nAssistant:", "zemsal", "gamlen")]}
    config = SimpleNamespace(mixture=Mixture(vocabulary=vocabulary))
    return SimpleNamespace(own_corpus=SimpleNamespace(train=own), generate_rows=generated, config=config)


@pytest.mark.parametrize(("vocabulary", "known"), [("data", False), ("all", True)])
def test_the_vocabulary_has_the_words_of_the_corpora_if_asked(vocabulary, known):
    texts = [text for pair in vocabulary_rows(run_of(vocabulary)) for text in (pair.prompt, f" {pair.chosen}")]
    texts += [f" {pair.rejected}" for pair in vocabulary_rows(run_of(vocabulary))]
    tokenizer = train_tokenizer(texts, 400)
    for word in (" sorpal", " zemsal", " gamlen"):
        assert (len(tokenizer(word)["input_ids"]) == 1) is known
    assert len(tokenizer(" red")["input_ids"]) == 1
