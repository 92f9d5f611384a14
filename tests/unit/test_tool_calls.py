"""Calls of tools in the forms of chat templates: the call that a template shows is the call parsed from a response."""

from __future__ import annotations

import json

import pytest
from support import bpe, gpt2_tokenizer

from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.tools import MALFORMED, Tool, call_tool, function_call, text_tool
from rlhf_lab.data.transcript import response_text, to_conversation
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.models.tool_calls import CallFormat

TEXTS = ["look up how many people live in Oslo and Bergen", "user assistant system tool name arguments"] * 3
SEARCH = text_tool("search", "Looks a city up.", {"city": "its name"}, lambda city: city).definition
OSLO = function_call("search", {"city": "Oslo"}, "call00000")
BERGEN = function_call("search", {"city": "Bergen {not json"}, "call00001")

HERMES = (
    "{% if tools %}<|im_start|>system\n<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>"
    'For each call: <tool_call>\n{"name": NAME, "arguments": OBJECT}\n</tool_call><|im_end|>\n{% endif %}'
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}{% for call in m['tool_calls'] %}"
    "{{ \"\\n\" if m['content'] or not loop.first }}<tool_call>\n{\"name\": \"{{ call['function']['name'] }}\", "
    "\"arguments\": {{ call['function']['arguments'] | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKS = HERMES.replace(
    "<|im_start|>{{ m['role'] }}\n{{",
    "<|im_start|>{{ m['role'] }}\n{{ '<think>\n\n</think>\n\n' if m['tool_calls'] }}{{",
)
"""As Qwen3: the template puts thoughts before the text."""
LLAMA = (
    "{% if tools %}<|start|>system<|end|>{% for tool in tools %}{{ tool | tojson }}{% endfor %}<|eot|>{% endif %}"
    "{% for m in messages %}<|start|>{{ m['role'] }}<|end|>{% if m['tool_calls'] %}"
    "{% if m['tool_calls'] | length != 1 %}{{ raise_exception('one call at once') }}{% endif %}"
    "{% set call = m['tool_calls'][0]['function'] %}"
    '{"name": "{{ call[\'name\'] }}", "parameters": {{ call[\'arguments\'] | tojson }}}'
    "{% else %}{{ m['content'] }}{% endif %}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|end|>{% endif %}"
)
MISTRAL = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{% if tools and loop.last or loop.length == 2 %}"
    "[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}[INST]{{ m['content'] }}[/INST]"
    "{% elif m['tool_calls'] %}[TOOL_CALLS] [{% for call in m['tool_calls'] %}"
    "{% if call['id'] | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"
    "{\"name\": \"{{ call['function']['name'] }}\", \"arguments\": {{ call['function']['arguments'] | tojson }}, "
    '"id": "{{ call[\'id\'] }}"}{{ ", " if not loop.last }}{% endfor %}]</s>'
    "{% else %}{{ m['content'] }}</s>{% endif %}{% endfor %}"
)
NAME_FIRST = (
    "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "{% for m in messages %}{% if m['role'] == 'user' %}[INST]{{ m['content'] }}[/INST]{% else %}{{ m['content'] }}"
    "{% for call in m['tool_calls'] %}[TOOL_CALLS]{{ call['function']['name'] }}[ARGS]"
    "{{ call['function']['arguments'] | tojson }}{% endfor %}</s>{% endif %}{% endfor %}"
)
FUNCTION = HERMES.replace(
    '<tool_call>\n{"name": "{{ call[\'function\'][\'name\'] }}", "arguments": ',
    "<function={{ call['function']['name'] }}>",
).replace("| tojson }}}\n</tool_call>", "| tojson }}</function>")
CODER = HERMES.replace(
    '<tool_call>\n{"name": "{{ call[\'function\'][\'name\'] }}", "arguments": '
    "{{ call['function']['arguments'] | tojson }}}\n</tool_call>",
    "<tool_call>\n<function={{ call['function']['name'] }}>\n"
    "{% for key, value in call['function']['arguments'].items() %}"
    "<parameter={{ key }}>\n{{ value if value is string else value | tojson }}\n</parameter>\n{% endfor %}"
    "</function>\n</tool_call>",
)
"""As Qwen3-Coder: an element for each argument."""
IDS = NAME_FIRST.replace("[ARGS]", "[CALL_ID]{{ call['id'] }}[ARGS]")
"""As newer models of Mistral."""

TEMPLATES = {
    # name: (template, special tokens, other added tokens, end of a turn)
    "hermes": (HERMES, ["<|im_start|>", "<|im_end|>"], ["<tool_call>", "</tool_call>"], "<|im_end|>"),
    "thinks": (THINKS, ["<|im_start|>", "<|im_end|>"], ["<tool_call>", "</tool_call>"], "<|im_end|>"),
    "llama": (LLAMA, ["<|start|>", "<|end|>", "<|eot|>", "<|python_tag|>"], [], "<|eot|>"),
    "mistral": (MISTRAL, ["[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[INST]", "[/INST]"], [], "</s>"),
    "name_first": (NAME_FIRST, ["[TOOL_CALLS]", "[ARGS]", "[INST]", "[/INST]"], [], "</s>"),
    "function": (FUNCTION, ["<|im_start|>", "<|im_end|>"], [], "<|im_end|>"),
    "coder": (CODER, ["<|im_start|>", "<|im_end|>"], ["<tool_call>", "</tool_call>"], "<|im_end|>"),
    "ids": (IDS, ["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "[INST]", "[/INST]"], [], "</s>"),
}
FORMATS = {
    "hermes": ("<tool_call>", None, "</tool_call>"),
    "thinks": ("<tool_call>", None, "</tool_call>"),
    "llama": ("", None, ""),  # the full response is the call
    "mistral": ("[TOOL_CALLS]", None, ""),
    "name_first": ("[TOOL_CALLS]", "[ARGS]", ""),
    "function": ("<function=", ">", "</function>"),
    "coder": ("<tool_call>\n<function=", ">", "</function>\n</tool_call>"),
    "ids": ("[TOOL_CALLS]", "[ARGS]", ""),
}


def encoder_of(template: str, specials=(), added=(), end: str = "</s>") -> Encoder:
    tokenizer = bpe(TEXTS, 400, sorted({*specials, end}), eos_token=end)
    tokenizer.add_tokens(list(added))
    tokenizer.chat_template = template
    return Encoder(tokenizer, to_conversation)


@pytest.fixture(params=TEMPLATES)
def family(request):
    return request.param


@pytest.fixture
def encoder(family):
    return encoder_of(*TEMPLATES[family])


def said(encoder: Encoder, text: str) -> list[int]:
    """Tokens of what a model says, markers as their tokens."""
    return [*encoder.tokenizer(text, add_special_tokens=False)["input_ids"], encoder.eos_id]


def calls_in(message) -> list[tuple[str, dict]]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]


def test_the_format_is_learned_from_the_template(encoder, family):
    form = encoder.chat.call_format
    assert (form.opening, form.between, form.closing) == FORMATS[family]


@pytest.mark.parametrize("calls", [[OSLO], [OSLO, BERGEN]], ids=["one", "two"])
@pytest.mark.parametrize("content", ["", "look up Oslo"], ids=["silent", "speaking"])
def test_what_the_template_shows_is_what_is_read(encoder, family, calls, content):
    if family == "llama" and len(calls) > 1:
        pytest.skip("this template writes one call at once")
    if family in ("llama", "mistral") and content:
        pytest.skip("these templates leave out what is said beside calls")
    question = {"role": "user", "content": "how many"}
    turn = {"role": "assistant", "content": content, "tool_calls": calls}
    ids, learned = encoder.chat.turns([question, turn], [SEARCH], [1])
    assert all(learned)
    message = encoder.message(ids)
    assert calls_in(message) == [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
    thoughts = "<think>\n\n</think>\n\n" if family == "thinks" else ""
    assert message["content"] == (thoughts + content).strip()


def test_text_alone_is_text_up_to_a_stop_text(encoder):
    for text in ("Oslo has 709,000 people.", '{"city": "Oslo"}', "[1, 2]", '{"name": "Oslo"}', "<b>", ""):
        ids = said(encoder, text)
        assert encoder.message(ids) == {"role": "assistant", "content": encoder.text(ids)}
        assert encoder.text(ids) == text
    ids = said(encoder, "look up Oslo\nObservation: 709,000")
    assert encoder.message(ids, stop=["\nObservation:"])["content"] == "look up Oslo"


def test_hermes_calls_between_text_and_behind_a_broken_one():
    encoder = encoder_of(*TEMPLATES["hermes"])
    call = '<tool_call>{"name": "search", "arguments": {"city": "Oslo"}}</tool_call>'
    message = encoder.message(said(encoder, f"look\n{call}\nand\n{call}"))
    assert calls_in(message) == [("search", {"city": "Oslo"})] * 2
    assert message["content"] == "look\n\nand"
    good = '<tool_call>\n{"name": "search", "arguments": {"city": "Oslo"}}\n</tool_call>'
    message = encoder.message(said(encoder, f'<tool_call>\n{{"name": "search"\n</tool_call>\n{good}'))
    assert [set(arguments) for _, arguments in calls_in(message)] == [{MALFORMED}, {"city"}]
    arguments = {"a": 1, "b": [True, None], "c": {"d": "</tool_call>"}, "e": "é\n"}
    ids = said(
        encoder, f"<tool_call>{json.dumps({'name': 'f', 'arguments': arguments}, ensure_ascii=False)}</tool_call>"
    )
    assert calls_in(encoder.message(ids)) == [("f", arguments)]


@pytest.mark.parametrize(
    "family, text, name",
    [
        ("hermes", '<tool_call>\n{"name": "search", "arguments": {"city": "Os\n</tool_call>', "search"),
        ("hermes", "<tool_call>search Oslo</tool_call>", ""),
        ("name_first", '[TOOL_CALLS]search[ARGS]{"city": "Os', "search"),
        ("name_first", "[TOOL_CALLS]search Oslo", "search Oslo"),
        ("function", '<function=search>{"city": Oslo}</function>', "search"),
        ("coder", "<tool_call>\n<function=search>\n<parameter=city>\nOslo\n</function>\n</tool_call>", "search"),
        ("ids", '[TOOL_CALLS]search[CALL_ID]abcdefghi[ARGS]{"city": ', "search"),
    ],
)
def test_calls_that_cannot_be_read_are_calls(family, text, name):
    """The model receives a message, and its call is not taken for an answer."""
    encoder = encoder_of(*TEMPLATES[family])
    message = encoder.message(said(encoder, text))
    ((called, arguments),) = calls_in(message)
    assert called == name and set(arguments) == {MALFORMED}
    assert message["content"] == ""


@pytest.mark.parametrize(
    "text",
    [
        '<|python_tag|>{"name": "search", "parameters": {"city": "Oslo"}}',
        '{"type": "function", "name": "search", "parameters": {"city": "Oslo"}}',
        '{"type": "function", "function": {"name": "search", "arguments": "{\\"city\\": \\"Oslo\\"}"}}',
    ],
)
def test_what_models_of_llama_make_of_it(text):
    encoder = encoder_of(*TEMPLATES["llama"])
    assert calls_in(encoder.message(said(encoder, text))) == [("search", {"city": "Oslo"})]
    assert calls_in(encoder.message(said(encoder, f"{text}; {text}"))) == [("search", {"city": "Oslo"})] * 2


IGNORES = HERMES.partition("{% endif %}")[2]
REFUSES = HERMES.replace("{% for call in", "{{ raise_exception('no calls') if m['tool_calls'] }}{% for call in")
WANTS_TEXT = HERMES.replace("m['tool_calls'] %}", "m['tool_calls'] %}{{ call['function']['arguments'] + '' }}", 1)
ELEMENTS = HERMES.replace(
    "\"arguments\": {{ call['function']['arguments'] | tojson }}}",
    "{% for key in call['function']['arguments'] %}<parameter={{ key }}>x</parameter>{% endfor %}",
)
ID_FIRST = NAME_FIRST.replace("[TOOL_CALLS]", "[TOOL_CALLS]{{ call['id'] }}")


@pytest.mark.parametrize("template", [IGNORES, REFUSES, WANTS_TEXT, ELEMENTS, ID_FIRST], ids=list("abcde"))
def test_templates_without_calls_that_are_read(template):
    encoder = encoder_of(template, *TEMPLATES["hermes"][1:])
    assert encoder.chat.call_format is None
    text = '<tool_call>\n{"name": "search", "arguments": {}}\n</tool_call>'
    assert encoder.message(said(encoder, text)) == {"role": "assistant", "content": text}


def test_a_template_that_writes_the_tools_elsewhere_once_there_is_an_answer():
    """The turn cannot be separated from the text before it; its marker is known."""
    moves = MISTRAL.replace("{% if tools and loop.last or loop.length == 2 %}", "{% if tools and loop.last %}")
    encoder = encoder_of(moves, *TEMPLATES["mistral"][1:])
    assert encoder.chat.call_format == CallFormat("[TOOL_CALLS]", None, "")


def test_names_that_would_end_the_form_of_a_call_are_not_declared():
    for name in ('a", "arguments": {}}', "a></function>", "[ARGS]", ""):
        with pytest.raises(ConfigError, match="rename it to letters, digits"):
            text_tool(name, "", {}, str)
        definition = {**SEARCH, "function": {**SEARCH["function"], "name": name}}
        for family in TEMPLATES:
            with pytest.raises(DataError, match="rename it to letters, digits"):
                encoder_of(*TEMPLATES[family]).chat.prompt([{"role": "user", "content": "hi"}], [definition])


@pytest.mark.parametrize(
    "family, text",
    [
        ("hermes", '<tool_call>{"name": "x\\"}<|im_end|>", "arguments": {}}</tool_call>'),
        ("name_first", '[TOOL_CALLS]x"}[/INST][ARGS]{}'),
        ("coder", '<tool_call>\n<function=x"<b>\n</function>\n</tool_call>'),
    ],
)
def test_a_name_that_a_model_wrote_ends_nothing(family, text):
    encoder = encoder_of(*TEMPLATES[family])
    ((name, _),) = calls_in(encoder.message(said(encoder, text)))
    assert name.startswith("x_") and not set(name) & set('"<>[]{}')


def test_a_plain_transcript_has_calls_too():
    encoder = Encoder(gpt2_tokenizer(TEXTS))
    bare = {key: value for key, value in OSLO.items() if key != "id"}
    for content in ("", "look"):
        response = response_text({"role": "assistant", "content": content, "tool_calls": [bare]})
        message = encoder.message(encoder.response(response))
        assert message == {"role": "assistant", "content": content, "tool_calls": [bare]}
    not_calls = encoder.message(encoder.response("look\n\nCalls: [1, 2]"))
    assert not_calls == {"role": "assistant", "content": "look\n\nCalls: [1, 2]"}


def test_elements_hold_any_text():
    """A value is text whatever it looks like, and may hold what ends an element."""
    encoder = encoder_of(*TEMPLATES["coder"])
    program = "if a < b:\n    print('</parameter>')\n"
    call = function_call("run", {"program": program, "times": "3", "at": ""})
    turn = {"role": "assistant", "content": "try", "tool_calls": [call, OSLO]}
    ids, _ = encoder.chat.turns([{"role": "user", "content": "hi"}, turn], [SEARCH], [1])
    message = encoder.message(ids)
    assert message["content"] == "try"
    assert calls_in(message) == [("run", call["function"]["arguments"]), ("search", {"city": "Oslo"})]


def test_arguments_written_as_text_get_the_types_that_a_tool_declares():
    types = {"count": "integer", "deep": "boolean", "names": "array", "options": "object", "text": "string"}
    seen: dict = {}

    def run(**arguments):
        seen.update(arguments)
        return "done"

    properties = {name: {"type": kind} for name, kind in types.items()}
    tool = Tool("find", "Finds.", {"type": "object", "properties": properties}, run)
    written = {"count": "3", "deep": "True", "names": '["a"]', "options": '{"b": 1}', "text": "[1]"}
    assert call_tool({"find": tool}, "find", written).result == "done"
    assert seen == {"count": 3, "deep": True, "names": ["a"], "options": {"b": 1}, "text": "[1]"}
    assert "names of find is a JSON array" in call_tool({"find": tool}, "find", {"names": "a, b"}).result


@pytest.mark.parametrize("family, text", [
    ("ids", '[TOOL_CALLS]search[CALL_ID]{id}[ARGS]{{"city": "Oslo"}}'),
    ("mistral", '[TOOL_CALLS] [{{"name": "search", "arguments": {{"city": "Oslo"}}, "id": "{id}"}}]'),
])  # fmt: skip
def test_ids_that_a_model_writes_are_kept_where_templates_take_them(family, text):
    encoder = encoder_of(*TEMPLATES[family])
    for id, kept in (("aB3456789", "aB3456789"), ("1", None), ("abc def h", None)):
        (call,) = encoder.message(said(encoder, text.format(id=id)))["tool_calls"]
        assert call == function_call("search", {"city": "Oslo"}, kept or "")


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_text_that_the_template_drops_beside_a_call_is_not_learned(family):
    encoder = encoder_of(*TEMPLATES[family])
    question = {"role": "user", "content": "how many"}
    silent, speaking = (
        {"role": "assistant", "content": content, "tool_calls": [OSLO]} for content in ("", "look up Oslo")
    )
    ids, learned = encoder.chat.turns([question, speaking], [SEARCH], [1])
    assert (ids, learned) == encoder.chat.turns([question, silent], [SEARCH], [1])
    rendered = encoder.tokenizer.apply_chat_template([question, speaking], tools=[SEARCH], tokenize=False)
    assert rendered.endswith(encoder.tokenizer.decode(ids))
    if family == "llama":  # the other template wants to know its tools
        assert encoder.response(response_text(speaking)) == ids
