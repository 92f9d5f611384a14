"""Files that `models/build.py` writes next to the weights, for programs that generate with a saved model."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import gpt2_tokenizer
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from rlhf_lab.models.build import save_model, scratch_policy
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.models.settings import Scratch


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_saved_model_generates_with_a_cache_and_its_tokenizer_knows_its_length(family: str, tmp_path: Path) -> None:
    tokenizer = gpt2_tokenizer(["some words to learn"])
    assert tokenizer.model_max_length > 10**20  # nobody told it
    settings = Scratch(family=family, hidden=16, layers=1, heads=2, max_positions=64)
    save_model(scratch_policy(settings, tokenizer, seed=0), Encoder(tokenizer), tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).use_cache is True
    assert GenerationConfig.from_pretrained(tmp_path).use_cache is True
    assert AutoTokenizer.from_pretrained(tmp_path).model_max_length == 64


def test_a_length_that_the_tokenizer_was_given_stays(tmp_path: Path) -> None:
    tokenizer = gpt2_tokenizer(["some words to learn"])
    tokenizer.model_max_length = 32
    settings = Scratch(family="llama", hidden=16, layers=1, heads=2, max_positions=64)
    save_model(scratch_policy(settings, tokenizer, seed=0), Encoder(tokenizer), tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).model_max_length == 32
