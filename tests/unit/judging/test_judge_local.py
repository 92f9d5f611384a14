"""A model on this machine as a judge (judge=local), with a chat template of each kind and without one."""

from __future__ import annotations

import json

import pytest
from support import bpe, gpt2_tokenizer, planned, save_tiny

from rlhf_lab.core import ranks
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.tools import function_call, text_tool
from rlhf_lab.memory.plan import plan_stage
from rlhf_lab.models.build import load_encoder, load_policy
from rlhf_lab.models.settings import HuggingFace
from rlhf_lab.packs.judging.judges.backends.local import LocalBackend, build, local_completer
from rlhf_lab.packs.judging.judges.backends.settings import LocalModel
from rlhf_lab.packs.judging.judges.client import estimate, takes_tools
from rlhf_lab.packs.judging.judges.context import JudgeContext, open_judge
from rlhf_lab.packs.judging.judges.requests import Completer, CompletionRequest
from rlhf_lab.sampling.local import LocalSampler
from rlhf_lab.sampling.turns import RowTokens

TEXTS = ["which reply is better, the first or the second", "user assistant system 1 2 3"] * 3
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WITHOUT_SYSTEM = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML[27:]
)


def chat_model(directory, template: str, *more: str):
    specials = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", *more]
    tokenizer = bpe(TEXTS, 400, specials, eos_token="<|endoftext|>")
    tokenizer.chat_template = template
    return save_tiny("llama", tokenizer, directory)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return chat_model(tmp_path_factory.mktemp("chatml"), CHATML)


def built(path, tmp_path) -> LocalBackend:
    return build(LocalModel(path=str(path)), JudgeContext("run", tmp_path))


def ask(number: int, **fields) -> CompletionRequest:
    values = {"system": "Judge.", "max_tokens": 12} | fields
    return CompletionRequest(({"role": "user", "content": f"which reply is better {number}"},), **values)


def judge(path, tmp_path, notes=None, **settings) -> Completer:
    note = (notes if notes is not None else []).append
    return open_judge(LocalModel(path=str(path), **settings), JudgeContext("run", tmp_path, note=note))


def test_answers_do_not_depend_on_who_else_asks(model, tmp_path):
    alone = judge(model, tmp_path).complete_many([ask(3)])[0]
    together = judge(model, tmp_path, batch_rows=2).complete_many([ask(i) for i in range(6)])
    assert together[3] == alone
    assert alone.cost_usd == 0 and alone.usage.input_tokens > 10
    assert 0 < alone.usage.output_tokens <= 12
    assert alone.stop == ("truncated" if alone.usage.output_tokens == 12 else "end")


def test_limits_of_each_request_hold(model, tmp_path):
    responses = judge(model, tmp_path).complete_many([ask(0, max_tokens=3), ask(0, max_tokens=9)])
    assert responses[0].usage.output_tokens <= 3 and responses[1].usage.output_tokens <= 9
    assert responses[1].text.startswith(responses[0].text[:4])


def test_instructions_reach_models_of_each_kind(tmp_path):
    """In a separate turn, before the question if the template has none, and in a simple transcript."""
    chatml = built(chat_model(tmp_path / "a", CHATML), tmp_path)
    refuses = built(chat_model(tmp_path / "b", WITHOUT_SYSTEM), tmp_path)
    simple = built(save_tiny("gpt2", gpt2_tokenizer(TEXTS), tmp_path / "c"), tmp_path)
    backends = (chatml, refuses, simple)
    written = {backend: backend.encoder.decode(backend._prompt(ask(0), ask(0).messages)) for backend in backends}
    assert "system\nJudge." in written[chatml]
    assert "user\nJudge.\n\nwhich reply is better 0" in written[refuses]
    assert "System: Judge.\n\nHuman: which reply is better 0\n\nAssistant:" in written[simple]
    for backend in written:
        assert len(backend.complete_many([ask(0)])) == 1


def test_questions_that_are_cut_are_noted(model, tmp_path):
    notes: list[str] = []
    judge(model, tmp_path, notes, max_prompt_tokens=16).complete_many([ask(0), ask(1)])
    assert "2 of 2 questions to the judge are longer than judge.max_prompt_tokens=16" in notes[0]


# --- tools and stop texts

TOOLS = "{{ tools | tojson if tools }}" + CHATML.replace(
    "{{ m['content'] }}",
    "{{ m['content'] }}{% for call in m['tool_calls'] %}[CALL]{{ call['function'] | tojson }}{% endfor %}",
)
SEARCH = text_tool("search", "Looks a city up.", {"city": "its name"}, lambda city: "709,000")
RESULT = {"role": "tool", "content": "709,000", "tool_call_id": "call00000", "name": "search"}
OSLO = '[CALL]{"name": "search", "arguments": {"city": "Oslo"}}'


def tools_model(directory):
    return chat_model(directory, TOOLS, "[CALL]")


def says(backend: LocalBackend, policy, monkeypatch) -> list[str]:
    """Let a policy, prompt → text, stand in for the tiny model; returns the prompts that it is shown."""
    shown: list[str] = []

    def sample(requests, prompts):
        shown.extend(backend.encoder.tokenizer.decode(prompt) for prompt in prompts)
        texts = [policy(text) for text in shown[-len(prompts) :]]
        ids = [backend.encoder.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        return [RowTokens([*row, backend.encoder.eos_id], finished=True) for row in ids]

    monkeypatch.setattr(backend, "_sample", sample)
    return shown


def test_a_conversation_with_calls(tmp_path, monkeypatch):
    """The call is read although its marker is a special token, and shown again as the model wrote it."""
    backend = built(tools_model(tmp_path / "m"), tmp_path)
    shown = says(backend, lambda prompt: "709,000 people" if "709,000" in prompt else f"look {OSLO}", monkeypatch)
    first = backend.complete_many([ask(0, tools=(SEARCH.definition,))])[0]
    assert (first.text, first.stop) == ("look", "end")
    assert first.tool_calls == (function_call("search", {"city": "Oslo"}, "call00000"),)
    messages = ({"role": "user", "content": "x"}, first.message)
    second = backend.complete_many([CompletionRequest((*messages, RESULT), tools=(SEARCH.definition,))])[0]
    assert (second.text, second.tool_calls) == ("709,000 people", ())
    assert "Looks a city up." in shown[0]
    assert f"assistant\nlook{OSLO}<|im_end|>" in shown[1] and "tool\n709,000<|im_end|>" in shown[1]
    # the next call of a conversation has the next number
    more = (*messages, {"role": "user", "content": "y"})
    third = backend.complete_many([CompletionRequest(more, tools=(SEARCH.definition,))])
    assert third[0].tool_calls[0]["id"] == "call00001"


def test_a_plain_transcript_shows_calls_without_ids(tmp_path, monkeypatch):
    backend = built(save_tiny("gpt2", gpt2_tokenizer(TEXTS), tmp_path), tmp_path)
    call = function_call("search", {"city": "Oslo"})
    shown = says(backend, lambda prompt: f" \n\nCalls: {json.dumps([call])}", monkeypatch)
    response = backend.complete_many([ask(0, tools=(SEARCH.definition,))])[0]
    assert response.tool_calls == ({"id": "call00000", **call},)
    messages = ({"role": "user", "content": "x"}, response.message, RESULT)
    backend.complete_many([CompletionRequest(messages, tools=(SEARCH.definition,))])
    assert "\n\nTools: [" in shown[0]
    # the turn ends as it did in the first conversation
    assert f'\n\nCalls: {json.dumps([call])}<|endoftext|>\n\nTool: {{"name": "search"}}\n709,000' in shown[1]
    assert "call00000" not in shown[1]


def test_whose_models_know_tools(model, tmp_path):
    knows = built(tools_model(tmp_path / "m"), tmp_path)
    assert takes_tools(knows)
    assert not takes_tools(judge(model, tmp_path))
    assert not takes_tools(judge(save_tiny("gpt2", gpt2_tokenizer(TEXTS), tmp_path / "p"), tmp_path))


def test_a_template_without_tools_is_refused(model, tmp_path):
    with pytest.raises(ConfigError, match=r"accepts no tools.*send no tools, and describe in the instructions"):
        judge(model, tmp_path).complete_many([ask(0, tools=(SEARCH.definition,))])


def test_stop_texts_end_an_answer(model, tmp_path):
    full = judge(model, tmp_path).complete_many([ask(0, max_tokens=40)])[0]
    stop = full.text[5:7]
    short, same = judge(model, tmp_path).complete_many([ask(0, max_tokens=40, stop=(stop,)), ask(0, max_tokens=40)])
    assert short.text == full.text.partition(stop)[0].rstrip()
    assert short.stop == "end"
    assert short.usage.output_tokens < full.usage.output_tokens
    assert same == full


# --- batches at a temperature, and a model that is loaded


@pytest.mark.parametrize("batch_rows", [1, 3, 8])
def test_draws_do_not_depend_on_their_batch(model, tmp_path, batch_rows):
    """Each prompt has a seed of its own, which is the one that it has alone."""
    requests = [ask(i, draw=draw) for i in range(3) for draw in range(2)]
    alone = [judge(model, tmp_path, temperature=1.0).complete_many([request])[0] for request in requests]
    backend = judge(model, tmp_path, temperature=1.0, batch_rows=batch_rows)
    assert backend.complete_many(requests) == alone
    assert len({response.text for response in alone}) > 3
    cold = judge(model, tmp_path, batch_rows=batch_rows).complete_many([ask(0, draw=draw) for draw in range(4)])
    assert len({response.text for response in cold}) == 1


def loaded(model, notes: list[str], **options) -> Completer:
    """The same model, loaded by whoever uses it."""
    settings = HuggingFace(path=str(model))
    options |= {"content": "abc", "max_prompt_tokens": 16, "section": "agent", "note": notes.append}
    return local_completer(load_policy(model, settings), load_encoder(model, settings), **options)


def test_a_loaded_model_answers(model, tmp_path):
    """Equal to the same model loaded from its directory, where greedy answers need no seed."""
    notes: list[str] = []
    completer = loaded(model, notes)
    cut = judge(model, tmp_path, max_prompt_tokens=16)
    assert completer.complete_many([ask(0)]) == cut.complete_many([ask(0)])
    assert "1 of 1 questions to the agent are longer than agent.max_prompt_tokens=16" in notes[0]
    assert completer.identity == {"kind": "local", "content": "abc", "temperature": 0.0, "max_prompt_tokens": 16}
    assert completer.complete_many([ask(0)])[0].latency_s > 0


def test_a_process_that_asks_waits_for_no_other(model, tmp_path, monkeypatch):
    """Rewards are computed in the main process alone; otherwise the sampler would exchange its rows with the others."""
    worlds = []
    monkeypatch.setattr(ranks.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(ranks.dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(ranks.dist, "get_rank", lambda: 0)
    backend = judge(model, tmp_path)
    build_decoder = LocalSampler._build_decoder

    def spy(*args):
        worlds.append(ranks.world())
        return build_decoder(*args)

    monkeypatch.setattr(LocalSampler, "_build_decoder", spy)
    assert len(backend.complete_many([ask(0)])) == 1
    assert worlds == [1] and ranks.world() == 2


def test_nothing_is_loaded_before_it_is_asked(model, tmp_path, monkeypatch):
    """With several processes, only those that send requests load the model; `--dry-run` loads none."""
    loads = []

    def counted(*args, **options):
        loads.append(1)
        return load_policy(*args, **options)

    monkeypatch.setattr("rlhf_lab.packs.judging.judges.backends.local.load_policy", counted)
    backend = judge(model, tmp_path)
    assert str(estimate(backend, [ask(0), ask(0), ask(1)])).endswith("2 to send; nothing is sent")
    assert not loads and not (tmp_path / "judges.sqlite").exists()
    backend.complete_many([ask(0)])
    backend.complete_many([ask(1)])
    assert loads == [1]


def test_a_local_judge_is_in_the_memory_plan():
    overrides = ("reward=judge", "needs.reward=null", "judge=local", "judge.path=gpt2-medium")
    lines = plan_stage(planned("grpo", *overrides)).lines
    assert [line.copy.name for line in lines] == ["policy", "reference", "judge"]


def conversation(turns: int, **fields) -> CompletionRequest:
    """A question, then `turns` turns with a result each."""
    messages = [{"role": "user", "content": "which reply is better"}]
    for number in range(turns):
        messages.append({"role": "assistant", "content": f"the first {number}"})
        messages.append({"role": "user", "content": f"the second {number}"})
    return CompletionRequest(tuple(messages), system="Judge.", max_tokens=4, **fields)


def tokens(backend, turns: int) -> int:
    return len(backend._prompt(conversation(turns), conversation(turns).messages))


def test_a_conversation_that_is_too_long_loses_its_oldest_turns_and_keeps_its_instructions(model, tmp_path):
    notes: list[str] = []
    whole = judge(model, tmp_path)
    limited = judge(model, tmp_path, notes, max_prompt_tokens=tokens(whole, 2))
    text = limited.encoder.decode(limited._fit(conversation(5)).ids)
    assert "Judge." in text and "which reply is better" in text
    assert [f"the second {number}" in text for number in range(5)] == [False, False, False, True, True]
    assert limited._fit(conversation(2)).loss == ""
    limited.complete_many([conversation(5), conversation(2)])
    assert "1 of 2 questions to the judge" in notes[0] and "their oldest turns were left out" in notes[0]
    # the messages before an earlier conversation's question belong to the task
    kept = limited.encoder.decode(limited._fit(conversation(4, kept=3)).ids)
    assert "the second 0" in kept and "the second 1" not in kept and "the second 3" in kept


def test_a_question_that_does_not_fit_is_rejected_if_it_must_not_be_cut(model):
    notes: list[str] = []
    completer = loaded(model, notes, cuts_questions=False)
    short = CompletionRequest(({"role": "user", "content": "1"},), max_tokens=4)
    rejected, answered = completer.complete_many([ask(0), short])
    assert (rejected.stop, rejected.usage.input_tokens) == ("rejected", 0)
    assert "more than agent.max_prompt_tokens=16; use a model with more positions" in rejected.text
    assert answered.stop != "rejected"
    assert "1 of 2 questions to the agent" in notes[0] and "do not fit, so they are not answered" in notes[0]
