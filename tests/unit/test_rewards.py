"""The scale of the scores of a reward model."""

from __future__ import annotations

import pytest
import torch
from support import gpt2_tokenizer
from transformers import GPT2Config, GPT2ForSequenceClassification

from rlhf_lab.models.settings import HuggingFace
from rlhf_lab.rewards.learned.bt import SCALE_FILE, ScoreScale, load_scorer


def test_the_score_scale_is_read_from_the_model_folder(tmp_path):
    assert ScoreScale.read(tmp_path) == ScoreScale(0.0, 1.0, 0, 512)
    (tmp_path / SCALE_FILE).write_text('{"mean": 2.0, "sd": 0.5, "n": 10, "max_length": 64}')
    assert ScoreScale.read(tmp_path) == ScoreScale(2.0, 0.5, 10, 64)


def test_a_reward_model_of_another_program_reads_as_many_tokens_as_it_has_positions(tmp_path):
    """Its rows were cut to 512 tokens: a longer response lost its end, where the score is read."""
    tokenizer = gpt2_tokenizer(["some words to learn"])
    config = GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2, n_positions=700, num_labels=1)
    torch.manual_seed(0)
    model = GPT2ForSequenceClassification(config).eval()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    scorer = load_scorer(str(tmp_path), HuggingFace(path=str(tmp_path)), "cpu", 16384, lambda text: None)
    prompt, response = "some words", " ".join(["learn"] * 600)
    ((prompt_ids, response_ids),) = scorer.rows([prompt], [response])
    assert 512 < len(prompt_ids) + len(response_ids) <= 700 and response_ids[-1] == tokenizer.eos_token_id
    with torch.no_grad():
        hidden = model.transformer(torch.tensor([[*prompt_ids, *response_ids]])).last_hidden_state[0, -1]
        assert scorer([prompt], [response])[0] == pytest.approx(float(model.score(hidden)), abs=1e-5)
    ScoreScale(max_length=64).write(tmp_path)
    scorer = load_scorer(str(tmp_path), HuggingFace(path=str(tmp_path)), "cpu", 16384, lambda text: None)
    assert scorer.scale.max_length == 64


def test_a_reward_model_of_another_program_reads_the_rendered_conversation_to_its_end(tmp_path):
    """The score was read at <|im_end|>, and other programs read it at the line break behind."""
    tokenizer = gpt2_tokenizer(["some words to learn"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}assistant\n{% endif %}"
    )
    config = GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2, n_positions=64, num_labels=1)
    GPT2ForSequenceClassification(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    scorer = load_scorer(str(tmp_path), HuggingFace(path=str(tmp_path)), "cpu", 16384, lambda text: None)
    ((prompt_ids, response_ids),) = scorer.rows(["\n\nHuman: some words\n\nAssistant:"], ["learn"])
    messages = [{"role": "user", "content": "some words"}, {"role": "assistant", "content": "learn"}]
    assert [*prompt_ids, *response_ids] == tokenizer.apply_chat_template(messages, return_dict=False)
