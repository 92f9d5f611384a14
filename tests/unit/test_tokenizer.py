"""The trained tokenizer: any text survives, and a closed vocabulary is one token a word."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from rlhf_lab.models.tokenizer import train_tokenizer

TEXTS = ["\n\nHuman: When does the museum open?\n\nAssistant: The museum opens at 9.", "it's open, isn't it?"]


@pytest.fixture(scope="module", params=["words", "bpe"])
def tokenizer(request):
    """A closed vocabulary that fits, and one that does not and becomes BPE."""
    if request.param == "words":
        return train_tokenizer(TEXTS, 4096)
    return train_tokenizer([f"w{i} {chr(97 + i % 26) * 3}{i}x word{i}" for i in range(800)], 400)


@given(text=st.text())
def test_any_text_survives(tokenizer, text):
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_closed_vocabulary_is_one_token_a_word_and_other_words_are_bytes():
    tokenizer = train_tokenizer(TEXTS, 4096)
    pieces = ["\n\nHuman:", " When", " does", " the", " museum", " open", "?", "\n\nAssistant:", " The", " museum"]
    pieces += [" opens", " at", " 9", "."]
    assert [tokenizer.decode([i]) for i in tokenizer(TEXTS[0])["input_ids"]] == pieces
    assert len(tokenizer(" xyz")["input_ids"]) == 4


def test_vocabulary_limit_and_special_tokens(tokenizer):
    assert len(tokenizer) <= 4096
    assert tokenizer.eos_token_id != tokenizer.pad_token_id
    assert tokenizer("")["input_ids"] == []


def test_training_is_deterministic_and_survives_saving(tmp_path):
    first, second = train_tokenizer(TEXTS, 4096), train_tokenizer(reversed(TEXTS), 4096)
    assert first.get_vocab() == second.get_vocab()
    first.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)(TEXTS[0])["input_ids"] == first(TEXTS[0])["input_ids"]
