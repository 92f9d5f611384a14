"""A model on this machine as a judge (judge=local), with a chat template of each kind and without one."""

from __future__ import annotations

import pytest
from support import bpe, gpt2_tokenizer, save_tiny

from rlhf_lab.judges.backends.local import build
from rlhf_lab.judges.backends.settings import LocalModel
from rlhf_lab.judges.caller import Caller, open_judge
from rlhf_lab.judges.client import estimate
from rlhf_lab.judges.requests import Completer, Request

TEXTS = ["which reply is better, the first or the second", "user assistant system 1 2 3"] * 3
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WITHOUT_SYSTEM = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML[27:]
)


def chat_model(folder, template: str):
    specials = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    tokenizer = bpe(TEXTS, 400, specials, eos_token="<|endoftext|>")
    tokenizer.chat_template = template
    return save_tiny("llama", tokenizer, folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return chat_model(tmp_path_factory.mktemp("chatml"), CHATML)


def ask(number: int, **fields) -> Request:
    values = {"system": "Judge.", "max_tokens": 12} | fields
    return Request(({"role": "user", "content": f"which reply is better {number}"},), **values)


def judge(path, tmp_path, notes=None, **settings) -> Completer:
    note = (notes if notes is not None else []).append
    return open_judge(LocalModel(path=str(path), **settings), Caller("run", tmp_path, note=note))


def test_answers_do_not_depend_on_who_else_asks(model, tmp_path):
    alone = judge(model, tmp_path).complete_many([ask(3)])[0]
    together = judge(model, tmp_path, batch_rows=2).complete_many([ask(i) for i in range(6)])
    assert together[3] == alone
    assert alone.cost_usd == 0 and alone.usage.input_tokens > 10
    assert 0 < alone.usage.output_tokens <= 12
    assert alone.stop == ("truncated" if alone.usage.output_tokens == 12 else "end")


def test_draws_at_a_temperature_differ_and_are_the_same_again(model, tmp_path):
    requests = [ask(0, draw=draw) for draw in range(4)]
    warm = judge(model, tmp_path, temperature=1.0)
    first, again = warm.complete_many(requests), warm.complete_many(requests[::-1])[::-1]
    assert first == again
    assert len({reply.text for reply in first}) > 1
    cold = judge(model, tmp_path).complete_many(requests)
    assert len({reply.text for reply in cold}) == 1


def test_limits_of_each_request_hold(model, tmp_path):
    replies = judge(model, tmp_path).complete_many([ask(0, max_tokens=3), ask(0, max_tokens=9)])
    assert replies[0].usage.output_tokens <= 3 and replies[1].usage.output_tokens <= 9
    assert replies[1].text.startswith(replies[0].text[:4])


def test_instructions_reach_models_of_each_kind(tmp_path):
    """In a turn of their own, before the question where the template has none, and in a plain transcript."""
    chatml = build(LocalModel(path=str(chat_model(tmp_path / "a", CHATML))), Caller("run", tmp_path))
    refuses = build(LocalModel(path=str(chat_model(tmp_path / "b", WITHOUT_SYSTEM))), Caller("run", tmp_path))
    plain = build(LocalModel(path=str(save_tiny("gpt2", gpt2_tokenizer(TEXTS), tmp_path / "c"))), Caller("r", tmp_path))
    written = {
        backend: backend.encoder.decode(backend.encoder.prompt(backend._prompt(ask(0))))
        for backend in (chatml, refuses, plain)
    }
    assert "system\nJudge." in written[chatml]
    assert "user\nJudge.\n\nwhich reply is better 0" in written[refuses]
    assert "System: Judge.\n\nHuman: which reply is better 0\n\nAssistant:" in written[plain]
    for backend in written:
        assert len(backend.complete_many([ask(0)])) == 1


def test_questions_that_are_cut_are_noted(model, tmp_path):
    notes: list[str] = []
    judge(model, tmp_path, notes, max_prompt_tokens=16).complete_many([ask(0), ask(1)])
    assert "2 of 2 questions to the judge are longer than judge.max_prompt_tokens=16" in notes[0]


def test_nothing_is_sent(model, tmp_path):
    backend = judge(model, tmp_path)
    assert str(estimate(backend, [ask(0), ask(0), ask(1)])).endswith("2 to ask; nothing is sent")
    assert backend.identity["kind"] == "local"
    assert not (tmp_path / "judges.sqlite").exists()
