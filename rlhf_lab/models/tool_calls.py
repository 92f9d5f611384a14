r"""Calls of tools as a chat template writes them, found in what a model said.

How a template writes a call is learned from the template itself: a conversation with one call of a made-up tool is
rendered, and what stands around the name and the arguments is the format. So the text that a model is shown is the
text that is read. It covers the forms

    <tool_call>\n{"name": …, "arguments": {…}}\n</tool_call>     Hermes, Qwen: one such block for each call
    {"name": …, "parameters": {…}}                               Llama 3.1: the whole reply
    [TOOL_CALLS] [{"name": …, "arguments": {…}}, …]              Mistral: a list
    [TOOL_CALLS]NAME[ARGS]{…}  <function=NAME>{…}</function>      the name in front of the arguments

A form that has no JSON object of arguments, such as one XML element for each of them, is not read: such templates count
as having no calls. Arguments that a model wrote wrongly are a call with `core.tools.MALFORMED`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.tools import MALFORMED, function_call, read_arguments

Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None, bool], str]
"""(messages, tools, whether a reply is to follow) → text. Raises DataError for what the template refuses."""

NAME, KEY, VALUE, SAID, ID = "probe_tool", "probe_key", "probe_value", "probe said", "probeid00"
"""What the probe conversation is made of; no template has these words."""
ARGUMENT_KEYS = ("arguments", "parameters")
WRITTEN_NAME = re.compile(r'"name"\s*:\s*"([^"]*)"')
DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class CallFormat:
    """How calls are written.

    Attributes:
        opening: in front of a call, or of a list of calls; "" where a call is the whole reply.
        between: between the name and the arguments; None where one JSON object holds both.
        closing: behind it; may be "".
        markers: texts of added tokens, one of which a model may put in front of a call that is the whole reply.
    """

    opening: str
    between: str | None
    closing: str
    markers: tuple[str, ...] = ()

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
            end = _json_end(arguments)
            if separator is not None and end:
                return [function_call(name, read_arguments(arguments[:end]))], self._behind(arguments[end:])
            written, rest = self._up_to_end(arguments)
            return [function_call(name, {MALFORMED: written.strip()})], rest
        end = _json_end(text)
        calls = calls_of(json.loads(text[:end])) if end else []
        if calls:
            return calls, self._behind(text[end:])
        written, rest = self._up_to_end(text)
        named = WRITTEN_NAME.search(written)
        return [function_call(named[1] if named else "", {MALFORMED: written.strip()})], rest

    def _split_name(self, text: str) -> tuple[str, str | None, str]:
        """(name, what stands behind it or None, the rest)."""
        separator = self.between or "{"
        place = text.find(separator)
        if place < 0:
            return text.strip(), None, ""
        # without a text between them, the arguments begin with the brace
        begin = place + len(self.between or "")
        return text[:place].strip(), separator, text[begin:]

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
    for begin, end in _json_values(turn):
        written = turn[begin:end]
        behind = turn[end:].partition(end_of_turn)[0].strip()
        if NAME in written and KEY in written:
            return CallFormat(turn[:begin].strip(), None, behind, markers)
        if KEY in written and NAME in turn[:begin]:
            opening, _, between = (text.strip() for text in turn[:begin].rpartition(NAME))
            has_id = ID in opening + between  # a text of its own in every call cannot be looked for
            return CallFormat(opening, between, behind, markers) if opening and not has_id else None
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
    if isinstance(value.get("function"), dict):
        value = value["function"]
    name = value.get("name", value.get("function"))
    key = next((key for key in ARGUMENT_KEYS if key in value), None)
    if not isinstance(name, str) or key is None:
        return None
    arguments = value[key]
    if isinstance(arguments, dict):
        return function_call(name, arguments)
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return function_call(name, read_arguments(written))
