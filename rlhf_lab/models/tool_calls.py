r"""Parsing of tool calls in the form in which a chat template writes them.

The form is learned from the template itself. A conversation with one call of a probe tool is rendered, and the text
around the name and the arguments is the form. The model therefore sees calls in the same form in which they are parsed.
The following forms are supported:

    <tool_call>\n{"name": …, "arguments": {…}}\n</tool_call>     Hermes, Qwen: one such block for each call
    {"name": …, "parameters": {…}}                               Llama 3.1: the entire response
    [TOOL_CALLS] [{"name": …, "arguments": {…}}, …]              Mistral: a list
    [TOOL_CALLS]NAME[ARGS]{…}  <function=NAME>{…}</function>      the name before the arguments
    [TOOL_CALLS]NAME[CALL_ID]ID[ARGS]{…}                         newer models of Mistral: an id after the name
    <tool_call>\n<function=NAME>\n<parameter=KEY>\n…\n</parameter>\n</function>\n</tool_call>
                                                                 Qwen3-Coder: an element for each argument, all of them
                                                                 text (`core.tools.call_tool` converts numbers)

A template that writes calls in another form counts as having no tools. A call whose arguments cannot be parsed has the
argument `core.tools.MALFORMED`. The model's id of a call is kept if every template accepts it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.files import parse_json
from rlhf_lab.core.tools import MALFORMED, function_call, read_arguments, written_name

Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None, bool], str]
"""Function (messages, tools, True to add a response prompt) → text. Raises DataError for messages it rejects."""

NAME, KEY, VALUE, SAID, ID = "probe_tool", "probe_key", "probe_value", "probe said", "probeid00"
"""Contents of the probe conversation; no template contains these words."""
ARGUMENT_KEYS = ("arguments", "parameters")  # the second is the key of Llama's templates
WRITTEN_NAME = re.compile(r'"name"\s*:\s*"([^"]*)"')  # the name in a call that is no valid JSON
WRITTEN_ID = re.compile(r"[A-Za-z0-9]{9}")
"""Id that a template may write after a call's result; Mistral's templates reject all other ids."""
ELEMENTS = re.compile(rf"=\s*{NAME}\s*>\s*<(\w+)=\s*{KEY}\s*>\s*{VALUE}\s*</\1>")
"""Name and argument of the probe call in templates that write each argument as an element `<WORD=KEY>…</WORD>`; the
group is WORD."""
SPACE = re.compile(r"\s*")
DECODER = json.JSONDecoder()
FIRST_LENGTH = 4096
"""Number of characters in which the end of a JSON value is searched first."""
LONGEST_TOKEN = 16
"""Number of characters at the end of an excerpt. A JSON error in them may come from the cut and not from the text."""
NO_VALUE = object()
"""Value for missing JSON, because None is the value of `null`."""


@dataclass(frozen=True)
class CallFormat:
    """Form in which tool calls are written.

    Attributes:
        opening: text before a call, or before a list of calls; "" if a call is the entire response.
        between: text between the name and the arguments; None if one JSON object contains both.
        closing: text after a call; may be "".
        markers: texts of added tokens, one of which a model may write before a call that is the entire response.
        id_mark: text between the name and the call's id, which precedes `between`; "" without an id.
        element: word of the elements that contain the arguments (<word=KEY>VALUE</word>); "" if they are JSON.
    """

    opening: str
    between: str | None
    closing: str
    markers: tuple[str, ...] = ()
    id_mark: str = ""
    element: str = ""

    def read(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """Split a response, special tokens included, into (text outside the calls, calls)."""
        if not self.opening:
            return self._read_full(text)
        text_parts: list[str] = []
        calls: list[dict[str, Any]] = []
        position = 0
        while (opening := text.find(self.opening, position)) >= 0:
            text_parts.append(text[position:opening])
            written, position = self._read_one(text, opening + len(self.opening))
            calls += written
        text_parts.append(text[position:])
        return "".join(text_parts).strip() if calls else text, calls

    # The methods below take a position in the text instead of the remaining text. Copying the remaining text for each
    # call would make the time for a long response quadratic.

    def _read_one(self, text: str, start: int) -> tuple[list[dict[str, Any]], int]:
        """Return (the calls after the text that opens a call, the position at which they end)."""
        if self.between is not None:
            return self._read_named(text, start)
        value, end = _json_at(text, start)
        calls = calls_of(value)
        if calls:
            return calls, self._behind(text, end)
        # a malformed call is still a call: the tool then answers with an error, from which the model can learn
        written, end = self._up_to_end(text, start)
        named = WRITTEN_NAME.search(written)
        name = named[1] if named else ""
        return [_read_call(name, {MALFORMED: written.strip()})], end

    def _read_named(self, text: str, start: int) -> tuple[list[dict[str, Any]], int]:
        """Return (the call whose name precedes its arguments, the position at which it ends)."""
        name_end = text.find(self.between or "{", start)
        if name_end < 0:
            name, id = self._split_id(text[start:].strip())
            return [_read_call(name, {MALFORMED: ""}, id)], len(text)
        name, id = self._split_id(text[start:name_end].strip())
        # without a text between them, the arguments start with the brace itself
        start = name_end + len(self.between or "")
        if self.element:
            return self._read_elements(name, text, start)
        value, end = _json_at(text, start)
        if value is not NO_VALUE:
            return [_read_call(name, read_arguments(text[start:end]), id)], self._behind(text, end)
        written, end = self._up_to_end(text, start)
        return [_read_call(name, {MALFORMED: written.strip()}, id)], end

    def _split_id(self, name: str) -> tuple[str, str]:
        """Split the text before the arguments into (name, id or "")."""
        if not self.id_mark:
            return name, ""
        name, _, id = name.partition(self.id_mark)
        return name.strip(), _usable_id(id.strip())

    def _read_elements(self, name: str, text: str, start: int) -> tuple[list[dict[str, Any]], int]:
        """Return (the call whose arguments are XML-like elements, the position at which it ends)."""
        # A value may contain text that looks like the end of its element: another element or the closing must follow.
        element = re.compile(
            rf"\s*<{self.element}=([^>\n]*)>(.*?)</{self.element}>(?=\s*(?:<{self.element}=|{re.escape(self.closing)}))",
            re.DOTALL,
        )
        arguments: dict[str, Any] = {}
        position = start
        next_call = text.find(self.opening, start)
        limit = next_call if next_call >= 0 else len(text)
        while match := element.match(text, position, limit):
            # the template writes each value on separate lines
            arguments[match[1].strip()] = match[2].removeprefix("\n").removesuffix("\n")
            position = match.end()
        if text.startswith(self.closing, _skip_space(text, position)):
            return [_read_call(name, arguments)], self._behind(text, position)
        written, end = self._up_to_end(text, start)
        return [_read_call(name, {MALFORMED: written.strip()})], end

    def _behind(self, text: str, position: int) -> int:
        """Return the end of the closing text of a call that ends at `position`; `position` if that text is missing."""
        start = _skip_space(text, position)
        if self.closing and text.startswith(self.closing, start):
            return start + len(self.closing)
        return position

    def _up_to_end(self, text: str, start: int) -> tuple[str, int]:
        """Return (text of a call that cannot be parsed, its end).

        It ends at its closing text, or else at the next opening text.
        """
        escaped = [re.escape(mark) for mark in (self.closing, self.opening) if mark]
        marks = "|".join(escaped)
        mark = re.compile(marks).search(text, start)
        end = mark.start() if mark else len(text)
        return text[start:end], self._behind(text, end)

    def _read_full(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """Parse a response that consists only of calls, or is text. JSON without the name of a tool is text."""
        calls: list[dict[str, Any]] = []
        position = self._behind_markers(text, 0)
        while position < len(text):
            value, position = _json_at(text, position)
            written = calls_of(value)
            if not written:
                return text, []
            calls += written
            # models separate several calls by ";" or by nothing
            position = _skip_space(text, position)
            position = self._behind_markers(text, position + text.startswith(";", position))
        return ("", calls) if calls else (text, [])

    def _behind_markers(self, text: str, position: int) -> int:
        """Return the position after white space and any of the texts `markers`."""
        position = _skip_space(text, position)
        while text.startswith(self.markers, position):
            marker = next(marker for marker in self.markers if text.startswith(marker, position))
            position = _skip_space(text, position + len(marker))
        return position


FALLBACKS = (CallFormat("<tool_call>", None, "</tool_call>"), CallFormat("[TOOL_CALLS]", None, ""))
"""Forms that are tried in order if the probe cannot separate the template's call from the text before it."""


def find_format(render: Render, end_of_turn: str, markers: Sequence[str]) -> CallFormat | None:
    """Return a chat template's form of tool calls; None if it shows no tools or writes calls in an unknown form.

    Args:
        markers: texts of the tokenizer's added tokens.
    """
    parameters = {"type": "object", "properties": {KEY: {"type": "string"}}, "required": [KEY]}
    tools = [{"type": "function", "function": {"name": NAME, "description": "probes", "parameters": parameters}}]
    question = {"role": "user", "content": "hi"}
    calls = [function_call(NAME, {KEY: VALUE}, id=ID)]
    try:
        # with and without text next to the call, because some templates drop that text
        before = render([question], tools, True)
        speaking = render([question, {"role": "assistant", "content": SAID, "tool_calls": calls}], tools, False)
        silent = render([question, {"role": "assistant", "content": "", "tool_calls": calls}], tools, False)
    except DataError:
        return None
    if NAME not in before or NAME not in silent:
        return None
    if SAID in speaking:
        # the text between a message's text and its calls, because some templates write thoughts before both
        turn = speaking.partition(SAID)[2]
    elif silent.startswith(before):
        turn = silent[len(before) :]
    else:
        return next((form for form in FALLBACKS if form.opening in markers), None)
    return _read_format(turn, end_of_turn, tuple(markers))


def _read_format(turn: str, end_of_turn: str, markers: tuple[str, ...]) -> CallFormat | None:
    """Return the form of the probe's call in a turn of the assistant; None for an unknown form."""
    elements = ELEMENTS.search(turn)
    if elements:
        opening = turn[: elements.start() + 1].strip()
        closing = turn[elements.end() :].partition(end_of_turn)[0].strip()
        if not closing:  # nothing marks the end of a call
            return None
        return CallFormat(opening, ">", closing, markers, element=elements[1])
    for start, end in _json_values(turn):
        written = turn[start:end]
        behind = turn[end:].partition(end_of_turn)[0].strip()
        if NAME in written and KEY in written:
            return CallFormat(turn[:start].strip(), None, behind, markers)
        if KEY in written and NAME in turn[:start]:
            opening, _, between = (text.strip() for text in turn[:start].rpartition(NAME))
            id_mark, _, behind_id = between.rpartition(ID)
            is_id_marked = bool(id_mark.strip() and behind_id.strip())
            if not opening or ID in opening or (ID in between and not is_id_marked):
                return None  # text that differs in every call cannot be searched for
            return CallFormat(opening, behind_id.strip(), behind, markers, id_mark=id_mark.strip())
    return None


def _json_values(text: str) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of the JSON objects and lists in a text from the left; nested ones after the outer one."""
    for match in re.finditer(r"[\[{]", text):
        value, end = _json_at(text, match.start())
        if value is not NO_VALUE:
            yield match.start(), end


def _json_at(text: str, position: int) -> tuple[Any, int]:
    """Return (value, end) of the JSON object or list at a position; (NO_VALUE, position) if there is none."""
    start = _skip_space(text, position)
    if not text.startswith(("{", "["), start):
        return NO_VALUE, position
    # On an error, json counts the lines of the entire text it was given, so it is given short excerpts.
    length = FIRST_LENGTH
    while True:
        excerpt = text[start : start + length]
        try:
            _, end = DECODER.raw_decode(excerpt)
            return parse_json(excerpt[:end]), start + end
        except json.JSONDecodeError as error:
            may_be_cut = error.pos > length - LONGEST_TOKEN or error.msg.startswith("Unterminated string")
            if start + length >= len(text) or not may_be_cut:
                return NO_VALUE, position
        except (ValueError, RecursionError):
            return NO_VALUE, position
        length *= 4


def _skip_space(text: str, position: int) -> int:
    """Return the position of the first character at or after `position` that is not white space."""
    match = SPACE.match(text, position)
    assert match is not None, "every text matches"
    return match.end()


def calls_of(value: Any) -> list[dict[str, Any]]:
    """Return the calls in a JSON value; empty if it, or any item of a list, is not a call."""
    items = value if isinstance(value, list) else [value]
    calls = [call for item in items if (call := _call_of(item)) is not None]
    return calls if len(calls) == len(items) else []


def _call_of(value: Any) -> dict[str, Any] | None:
    """Return one call: {"name", "arguments" or "parameters"}, or the same within "function"; None for other values."""
    if not isinstance(value, dict):
        return None
    id = _usable_id(value.get("id"))
    if isinstance(value.get("function"), dict):
        value = value["function"]
    name = value.get("name", value.get("function"))
    key = next((key for key in ARGUMENT_KEYS if key in value), None)
    if not isinstance(name, str) or key is None:
        return None
    arguments = value[key]
    if isinstance(arguments, dict):
        return _read_call(name, arguments, id)
    # some formats write the arguments as a text that contains JSON
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return _read_call(name, read_arguments(written), id)


def _read_call(name: str, arguments: Mapping[str, Any], id: str = "") -> dict[str, Any]:
    """Return a call in the form of `function_call`, with its name escaped.

    The name could otherwise end the form in which a template writes it.
    """
    return function_call(written_name(name), arguments, id)


def _usable_id(id: Any) -> str:
    """Return a call's id; "" if it has none, or if a template could reject it."""
    return id if isinstance(id, str) and WRITTEN_ID.fullmatch(id) else ""
