r"""Calls of tools as a chat template writes them, found in what a model said.

How a template writes a call is learned from the template itself: a conversation with one call of a made-up tool is
rendered, and what stands around the name and the arguments is the format. So the text that a model is shown is the
text that is read. It covers the forms

    <tool_call>\n{"name": …, "arguments": {…}}\n</tool_call>     Hermes, Qwen: one such block for each call
    {"name": …, "parameters": {…}}                               Llama 3.1: the whole reply
    [TOOL_CALLS] [{"name": …, "arguments": {…}}, …]              Mistral: a list
    [TOOL_CALLS]NAME[ARGS]{…}  <function=NAME>{…}</function>      the name in front of the arguments
    [TOOL_CALLS]NAME[CALL_ID]ID[ARGS]{…}                         newer models of Mistral: an id behind the name
    <tool_call>\n<function=NAME>\n<parameter=KEY>\n…\n</parameter>\n</function>\n</tool_call>
                                                                 Qwen3-Coder: an element for each argument, all of them
                                                                 text (`core.tools.call_tool` makes numbers of them)

Templates that write calls in any other form count as having none. Arguments that a model wrote wrongly are a call with
`core.tools.MALFORMED`. An id that a model wrote is kept where it is one that every template takes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.tools import MALFORMED, function_call, read_arguments, written_name

Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None, bool], str]
"""(messages, tools, whether a reply is to follow) → text. Raises DataError for what the template refuses."""

NAME, KEY, VALUE, SAID, ID = "probe_tool", "probe_key", "probe_value", "probe said", "probeid00"
"""What the probe conversation is made of; no template has these words."""
ARGUMENT_KEYS = ("arguments", "parameters")
WRITTEN_NAME = re.compile(r'"name"\s*:\s*"([^"]*)"')
WRITTEN_ID = re.compile(r"[A-Za-z0-9]{9}")
"""An id that a template may write behind the call's result: those of Mistral refuse any other."""
ELEMENTS = re.compile(rf"=\s*{NAME}\s*>\s*<(\w+)=\s*{KEY}\s*>\s*{VALUE}\s*</\1>")
"""What stands around name and argument of the probe where arguments are elements; the word of these is the group."""
DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class CallFormat:
    """How calls are written.

    Attributes:
        opening: in front of a call, or of a list of calls; "" where a call is the whole reply.
        between: between the name and the arguments; None where one JSON object holds both.
        closing: behind it; may be "".
        markers: texts of added tokens, one of which a model may put in front of a call that is the whole reply.
        id_mark: between the name and the call's id, which stands in front of `between`; "" where it has none there.
        element: the word of the elements that hold the arguments (<word=KEY>VALUE</word>); "" where they are JSON.
    """

    opening: str
    between: str | None
    closing: str
    markers: tuple[str, ...] = ()
    id_mark: str = ""
    element: str = ""

    def read(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """(what is said beside the calls, the calls) of a reply; its special tokens are part of the text."""
        if not self.opening:
            return self._read_whole(text)
        said: list[str] = []
        calls: list[dict[str, Any]] = []
        before, mark, rest = text.partition(self.opening)
        said.append(before)
        while mark:
            written, rest = self._read_one(rest)
            calls += written
            before, mark, rest = rest.partition(self.opening)
            said.append(before)
        return "".join(said).strip() if calls else text, calls

    def _read_one(self, text: str) -> tuple[list[dict[str, Any]], str]:
        """(the calls that the text behind an opening begins with, the text behind them)."""
        if self.between is not None:
            name, separator, arguments = self._split_name(text)
            name, id = self._split_id(name)
            if self.element:
                return self._read_elements(name, arguments)
            end = _json_end(arguments)
            if separator is not None and end:
                return [_read_call(name, read_arguments(arguments[:end]), id)], self._behind(arguments[end:])
            written, rest = self._up_to_end(arguments)
            return [_read_call(name, {MALFORMED: written.strip()}, id)], rest
        end = _json_end(text)
        calls = calls_of(json.loads(text[:end])) if end else []
        if calls:
            return calls, self._behind(text[end:])
        written, rest = self._up_to_end(text)
        named = WRITTEN_NAME.search(written)
        return [_read_call(named[1] if named else "", {MALFORMED: written.strip()})], rest

    def _split_name(self, text: str) -> tuple[str, str | None, str]:
        """(name, what stands behind it or None, the rest)."""
        separator = self.between or "{"
        place = text.find(separator)
        if place < 0:
            return text.strip(), None, ""
        # without a text between them, the arguments begin with the brace
        begin = place + len(self.between or "")
        return text[:place].strip(), separator, text[begin:]

    def _split_id(self, name: str) -> tuple[str, str]:
        """(name, id or "") of what stands in front of the arguments."""
        if not self.id_mark:
            return name, ""
        name, _, id = name.partition(self.id_mark)
        return name.strip(), _usable_id(id.strip())

    def _read_elements(self, name: str, text: str) -> tuple[list[dict[str, Any]], str]:
        """(the call whose arguments are elements, the text behind it)."""
        # a value may hold what looks like the end of its element: the end has another element or the closing behind it
        element = re.compile(
            rf"\s*<{self.element}=([^>\n]*)>(.*?)</{self.element}>(?=\s*(?:<{self.element}=|{re.escape(self.closing)}))",
            re.DOTALL,
        )
        arguments: dict[str, Any] = {}
        place = 0
        before_next_call = text.find(self.opening) if self.opening in text else len(text)
        while match := element.match(text, place, before_next_call):
            # the template puts each value on lines of its own
            arguments[match[1].strip()] = match[2].removeprefix("\n").removesuffix("\n")
            place = match.end()
        if text[place:].lstrip().startswith(self.closing):
            return [_read_call(name, arguments)], self._behind(text[place:])
        written, rest = self._up_to_end(text)
        return [_read_call(name, {MALFORMED: written.strip()})], rest

    def _behind(self, text: str) -> str:
        """The text behind a call, without its closing."""
        stripped = text.lstrip()
        return stripped[len(self.closing) :] if self.closing and stripped.startswith(self.closing) else text

    def _up_to_end(self, text: str) -> tuple[str, str]:
        """(a call that cannot be read, the text behind it): up to its closing, or else to the next opening."""
        ends = [place for end in (self.closing, self.opening) if end and (place := text.find(end)) >= 0]
        place = min(ends, default=len(text))
        return text[:place], self._behind(text[place:])

    def _read_whole(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """A reply that is nothing but calls, or is text. JSON that names no tool is an answer like any other."""
        rest = self._behind_markers(text.strip())
        calls: list[dict[str, Any]] = []
        while rest:
            end = _json_end(rest)
            read = calls_of(json.loads(rest[:end])) if end else []
            if not read:
                return text, []
            calls += read
            # several calls, as models write them
            rest = self._behind_markers(rest[end:].lstrip().removeprefix(";").lstrip())
        return ("", calls) if calls else (text, [])

    def _behind_markers(self, text: str) -> str:
        while marker := next((marker for marker in self.markers if text.startswith(marker)), ""):
            text = text[len(marker) :].lstrip()
        return text


FALLBACKS = (CallFormat("<tool_call>", None, "</tool_call>"), CallFormat("[TOOL_CALLS]", None, ""))
"""Tried in order for a template that writes calls where the probe cannot tell them from what stands before."""


def find_format(render: Render, end_of_turn: str, markers: Sequence[str]) -> CallFormat | None:
    """How a chat template writes calls; None where it shows no tools, or writes calls in a form that is not read.

    Args:
        end_of_turn: text of the token that ends a turn.
        markers: texts of the tokenizer's added tokens.
    """
    parameters = {"type": "object", "properties": {KEY: {"type": "string"}}, "required": [KEY]}
    tools = [{"type": "function", "function": {"name": NAME, "description": "probes", "parameters": parameters}}]
    question = {"role": "user", "content": "hi"}
    calls = [function_call(NAME, {KEY: VALUE}, id=ID)]
    try:
        before = render([question], tools, True)
        speaking = render([question, {"role": "assistant", "content": SAID, "tool_calls": calls}], tools, False)
        silent = render([question, {"role": "assistant", "content": "", "tool_calls": calls}], tools, False)
    except DataError:
        return None
    if NAME not in before or NAME not in silent:
        return None
    if SAID in speaking:
        # what stands between a message's text and its calls: some templates put thoughts in front of both
        turn = speaking.partition(SAID)[2]
    elif silent.startswith(before):
        turn = silent[len(before) :]
    else:
        return next((form for form in FALLBACKS if form.opening in markers), None)
    return _read_format(turn, end_of_turn, tuple(markers))


def _read_format(turn: str, end_of_turn: str, markers: tuple[str, ...]) -> CallFormat | None:
    """The format of one call of the probe, which a turn holds beside its end."""
    elements = ELEMENTS.search(turn)
    if elements:
        opening = turn[: elements.start() + 1].strip()
        closing = turn[elements.end() :].partition(end_of_turn)[0].strip()
        return CallFormat(opening, ">", closing, markers, element=elements[1]) if closing else None
    for begin, end in _json_values(turn):
        written = turn[begin:end]
        behind = turn[end:].partition(end_of_turn)[0].strip()
        if NAME in written and KEY in written:
            return CallFormat(turn[:begin].strip(), None, behind, markers)
        if KEY in written and NAME in turn[:begin]:
            opening, _, between = (text.strip() for text in turn[:begin].rpartition(NAME))
            id_mark, _, behind_id = between.rpartition(ID)
            if not opening or ID in opening or (ID in between and not (id_mark.strip() and behind_id.strip())):
                return None  # a text of its own in every call cannot be looked for
            return CallFormat(opening, behind_id.strip(), behind, markers, id_mark=id_mark.strip())
    return None


def _json_values(text: str) -> Iterator[tuple[int, int]]:
    """(begin, end) of the JSON objects and lists in a text, from the left; of nested ones the outer one first."""
    for match in re.finditer(r"[\[{]", text):
        if end := _json_end(text[match.start() :]):
            yield match.start(), match.start() + end


def _json_end(text: str) -> int:
    """Where the JSON object or list that a text begins with ends; 0 where there is none."""
    stripped = text.lstrip()
    if not stripped.startswith(("{", "[")):
        return 0
    try:
        _, end = DECODER.raw_decode(stripped)
    except (ValueError, RecursionError):
        return 0
    return end + len(text) - len(stripped)


def calls_of(value: Any) -> list[dict[str, Any]]:
    """The calls that a JSON value is; none where it, or one of a list, is no call."""
    calls: list[dict[str, Any]] = []
    for item in value if isinstance(value, list) else [value]:
        call = _call_of(item)
        if call is None:
            return []
        calls.append(call)
    return calls


def _call_of(value: Any) -> dict[str, Any] | None:
    """One call: {"name", "arguments" or "parameters"}, or the same within "function"."""
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
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return _read_call(name, read_arguments(written), id)


def _read_call(name: str, arguments: Mapping[str, Any], id: str = "") -> dict[str, Any]:
    """A call as a model wrote it; its name cannot end the form that a template writes it in again."""
    return function_call(written_name(name), arguments, id)


def _usable_id(id: Any) -> str:
    """An id that a model wrote; "" for none, and for one that a template could refuse."""
    return id if isinstance(id, str) and WRITTEN_ID.fullmatch(id) else ""
