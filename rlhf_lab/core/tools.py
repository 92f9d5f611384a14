"""Tools that a language model may call, and the results of calls."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import parse_json
from rlhf_lab.core.text import well_formed, well_formed_value

BREAKS_OUT = re.compile(r"[\"'`<>\[\]{}\\\x00-\x1f]")
"""Characters that would end a tool's name inside a call, because chat templates use them as delimiters."""

MALFORMED = "_malformed"
"""Argument name used if a call's arguments are not a JSON object; its value is the text that the model
wrote."""


TYPES: Mapping[str, Any] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
}
"""Argument type in JSON schema → Python type."""


class ToolError(Exception):
    """Failure of a call: unknown arguments, no such entry, a busy tool. The model reads the message."""


@dataclass(frozen=True, slots=True)
class Tool:
    """Function that a model may call.

    Attributes:
        name: identifier used in calls.
        description: what the tool does and when it helps, written for the model.
        parameters: JSON schema of the arguments, an object. Its order is the order in a call written as text:
            `search[Oslo ; population]`.
        run: function called with the arguments by name; returns the text that the model reads. Raises ToolError.

    Raises ConfigError for a name that contains delimiters of calls.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    run: Callable[..., str]

    def __post_init__(self) -> None:
        if problem := name_problem(self.name):
            raise ConfigError(problem)

    @property
    def definition(self) -> dict[str, Any]:
        """Definition in the format of chat templates and services."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}

    @property
    def argument_names(self) -> tuple[str, ...]:
        """Names of the arguments in the order of the JSON schema."""
        return tuple(self.parameters.get("properties", {}))


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool. All its strings are well-formed, whatever the model and the tool produced.

    Attributes:
        name: name of the tool as the model wrote it.
        arguments: argument name → value as the model wrote it.
        result: text that the model read: the tool's result, or why there was none.
        failed: True if there was no result.
        id: id of the call, if a service or a chat template assigns one.
    """

    name: str
    arguments: Mapping[str, Any]
    result: str = ""
    failed: bool = False
    id: str = ""

    def __post_init__(self) -> None:
        for name in ("name", "arguments", "result", "id"):
            # `object.__setattr__`, because the dataclass is frozen
            object.__setattr__(self, name, well_formed_value(getattr(self, name)))


def name_problem(name: str) -> str | None:
    """Return what is wrong with the name of a declared tool, or None."""
    if name.strip() and not BREAKS_OUT.search(name):
        return None
    return (
        f"the tool's name {name!r} is empty or has quotes, brackets or control characters, which mark where a name "
        "ends in a call; rename it to letters, digits, _ and -"
    )


def declared_names(tools: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of the tools in definitions for chat templates; definitions in other formats are skipped."""
    functions = [tool.get("function", tool) for tool in tools]
    names = [function.get("name") for function in functions if isinstance(function, Mapping)]
    return [name for name in names if isinstance(name, str)]


def written_name(name: str) -> str:
    """Return a tool name as a model wrote it, with _ in place of characters that a template would read as its end."""
    return BREAKS_OUT.sub("_", name)


def text_tool(name: str, description: str, arguments: Mapping[str, str], run: Callable[..., str]) -> Tool:
    """Create a tool whose arguments are all required strings.

    Args:
        arguments: argument name → description.
    """
    properties = {argument: {"type": "string", "description": meaning} for argument, meaning in arguments.items()}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return Tool(name, description, parameters, run)


def function_call(name: str, arguments: Mapping[str, Any], id: str = "") -> dict[str, Any]:
    """Return a call in the format of `core.messages.Message.tool_calls`, with well-formed strings."""
    numbered = {"id": id} if id else {}
    function = {"name": name, "arguments": dict(arguments)}
    return well_formed_value({**numbered, "type": "function", "function": function})


def with_id(call: Mapping[str, Any], id: str) -> dict[str, Any]:
    """Return a call of an assistant message with `id` in place of its own id."""
    return {"id": id, **{key: value for key, value in call.items() if key != "id"}}


def call_id(number: int) -> str:
    """Return the id of call number `number` (from 0) of a conversation. Some chat templates require nine characters."""
    return f"call{number:05d}"


def read_arguments(text: str) -> dict[str, Any]:
    """Parse the arguments of a call from the model's JSON; return `{MALFORMED: text}` if it is not a JSON object."""
    if not text.strip():
        return {}  # some services write a call without arguments like this
    try:
        arguments = parse_json(text, parse_constant=_refuse_constant)
    except ValueError:
        return {MALFORMED: text}
    return arguments if isinstance(arguments, dict) else {MALFORMED: text}


def _refuse_constant(name: str) -> None:
    """Reject NaN and Infinity, which Python's parser accepts and JSON does not allow."""
    raise ValueError(name)


def call_tool(tools: Mapping[str, Tool], name: str, arguments: Mapping[str, Any], id: str = "") -> Call:
    """Call a tool by name. Any error in the call becomes its result: the model reads it and may try again."""
    name, arguments = well_formed(name), well_formed_value(arguments)
    tool = tools.get(name)
    if tool is None:
        # The model reads this message and may try again, so it names the tools that exist.
        known = ", ".join(tools) or "there are none"
        return Call(name, arguments, f"error: there is no tool {name!r}; tools: {known}", failed=True, id=id)
    problem = _argument_problem(tool, arguments)
    if problem:
        return Call(name, arguments, f"error: {problem}", failed=True, id=id)
    try:
        return Call(name, arguments, tool.run(**_typed(tool, arguments)), id=id)
    except ToolError as error:
        return Call(name, arguments, str(error), failed=True, id=id)


def _typed(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the arguments to the types that the tool declares. Raise ToolError for one that cannot be converted.

    A call written as text has only strings, and models write 3 for "3".
    """
    schemas = tool.parameters.get("properties", {})
    return {name: _as_type(tool, name, value, schemas[name].get("type")) for name, value in arguments.items()}


def _as_type(tool: Tool, name: str, value: Any, expected: Any) -> Any:
    if not isinstance(expected, str) or expected not in TYPES:  # a schema may have several types, or none
        return value
    # in Python True is an int, in JSON it is not
    is_boolean = isinstance(value, bool)
    if isinstance(value, TYPES[expected]) and is_boolean == (expected == "boolean"):
        return value
    if expected == "string" and isinstance(value, int | float):
        return json.dumps(value)
    if expected in ("integer", "number") and isinstance(value, str):
        with suppress(ValueError):
            return int(value) if expected == "integer" else float(value)
    if expected in ("boolean", "array", "object") and isinstance(value, str):
        with suppress(ValueError):
            # some templates write True and False as Python does
            read = parse_json(value.lower() if expected == "boolean" else value)
            if isinstance(read, TYPES[expected]):
                return read
    raise ToolError(f"error: {name} of {tool.name} is a JSON {expected}; got {json.dumps(value, default=str)[:80]}")


def _argument_problem(tool: Tool, arguments: Mapping[str, Any]) -> str:
    """Return what is wrong with the names of the arguments; "" if nothing is."""
    if MALFORMED in arguments:
        return f"the arguments of {tool.name} are no JSON object: {arguments[MALFORMED]}"
    expected = tool.argument_names
    unknown = [name for name in arguments if name not in expected]
    missing = [name for name in tool.parameters.get("required", ()) if name not in arguments]
    if not unknown and not missing:
        return ""
    return f"{tool.name} takes {', '.join(expected) or 'no arguments'}; got {', '.join(arguments) or 'none'}"
