"""Columns of a row that contain messages or tools, checked and converted to one form.

    messages   a list of {role, content} with the roles system, user, assistant and tool, or its JSON; the content is
               text, or a list of text parts; an assistant's message may have tool_calls, a tool's result name and
               tool_call_id
    tools      a list of definitions as chat templates take them, or its JSON

Null values are removed: tables (Parquet, the hub) fill in the keys that other rows have. Arguments of calls that are
JSON text, as in the OpenAI format, become objects. Contents keep their spaces. Images and other parts are errors. Other
keys of a message, such as weight, are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from rlhf_lab.core.files import parse_json
from rlhf_lab.core.messages import Message
from rlhf_lab.core.text import well_formed_value
from rlhf_lab.core.tools import MALFORMED, declared_names, name_problem, read_arguments
from rlhf_lab.data.rows import RowProblem, column, decoded_messages, describe
from rlhf_lab.data.transcript import ROLES

FORM = "text or a list of {role, content} messages"


def decoded_column(values: Mapping[str, Any], name: str) -> Any:
    """Return a column; if it is text that encodes a list of messages, that list."""
    value = column(values, name)
    return well_formed_value(decoded_messages(value)) if isinstance(value, str) else value


def text_or_messages(values: Mapping[str, Any], name: str) -> str | list[Message]:
    """Return a column as text or as a non-empty list of messages. Raise RowProblem for anything else."""
    value = decoded_column(values, name)
    return value if isinstance(value, str) else read_messages(value, name, FORM)


def messages_column(values: Mapping[str, Any], name: str) -> list[Message]:
    """Return a column as a non-empty list of messages. Raise RowProblem for anything else."""
    return read_messages(decoded_column(values, name), name, "a list of {role, content} messages")


def read_messages(value: object, name: str, form: str) -> list[Message]:
    """Return the messages of a column's value. Raise RowProblem that names the column, the message and the field."""
    if not isinstance(value, list) or not value:
        raise RowProblem(f"column {name!r} is {describe(value)}; expected {form}")
    return [_message(item, f"column {name!r}, message {number}") for number, item in enumerate(value, start=1)]


def _message(item: object, where: str) -> Message:
    if not isinstance(item, Mapping):
        raise RowProblem(f"{where} is {describe(item)}; expected an object {{role, content}}")
    role = item.get("role")
    if role not in ROLES:
        raise RowProblem(f"{where}: role is {describe(role)}; expected one of {', '.join(ROLES)}")
    # tables fill the key with null or an empty list
    calls = item.get("tool_calls") or None
    message: Message = {"role": role, "content": _content(item, where, optional=bool(calls))}
    if calls is not None:
        if role != "assistant":
            raise RowProblem(
                f"{where}: a {role} message has tool_calls, but only an assistant calls tools; remove them"
            )
        message["tool_calls"] = [_call(call) for call in _objects(calls, f"{where}: tool_calls", "a list of calls")]
    if role == "tool":
        for key in ("name", "tool_call_id"):
            known = item.get(key)
            if known is not None and not isinstance(known, str):
                raise RowProblem(f"{where}: {key} is {describe(known)}; expected text")
            if known is not None:
                message[key] = known
    return message


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """Return a tool call with its arguments parsed into an object, if they are JSON text as in the OpenAI format.

    Chat templates would write such a text as a JSON string, so a model would learn to quote its arguments.
    """
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    arguments = read_arguments(function["arguments"])
    # text that is no JSON object stays as the model wrote it
    return call if MALFORMED in arguments else {**call, "function": {**function, "arguments": arguments}}


def _content(item: Mapping[str, Any], where: str, *, optional: bool) -> str:
    content = item.get("content")
    if content is None and optional:
        return ""  # a message with tool calls may have no text
    if isinstance(content, list):
        # {"type": "text", "text": …} of the OpenAI format, or strings
        parts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
        if all(isinstance(part, str) for part in parts):
            return "".join(cast("list[str]", parts))
        raise RowProblem(f"{where}: content has parts that are not text; remove rows with images or audio")
    if not isinstance(content, str):
        raise RowProblem(f"{where}: content is {describe(content)}; expected text")
    return content


def read_tools(values: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the tools of a row, [] if the column is missing or empty. Raise RowProblem for another form or name."""
    value = values.get(name) if name else None
    if isinstance(value, str):
        # tables often store the JSON of the list, because its objects have different keys
        try:
            value = parse_json(value) if value.strip() else None
        except ValueError:
            raise RowProblem(f"column {name!r} is {describe(value)}; expected a JSON list of tools") from None
    tools = _objects(value, f"column {name!r}", "a list of tools") if value else []
    # an invalid name would only fail when a service or template uses it
    for problem in filter(None, map(name_problem, declared_names(tools))):
        raise RowProblem(f"column {name!r}: {problem}")
    return tools


def _objects(value: object, where: str, form: str) -> list[dict[str, Any]]:
    if isinstance(value, list) and all(isinstance(item, Mapping) for item in value):
        return [_without_nulls(item) for item in value]
    raise RowProblem(f"{where} is {describe(value)}; expected {form}, each an object")


def _without_nulls(value: Any) -> Any:
    """Return a JSON value without the keys that a table filled in with null."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_without_nulls(item) for item in value]
    return value


def completion_text(text: str) -> str:
    """Return the response of a completion column: without the one space after the prompt and without trailing space."""
    return text.removeprefix(" ").rstrip()
