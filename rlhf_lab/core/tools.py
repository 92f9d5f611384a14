"""Tools that a language model may call, and what becomes of a call."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rlhf_lab.core.errors import ConfigError

BREAKS_OUT = re.compile(r"[\"'`<>\[\]{}\\\x00-\x1f]")
"""Characters that would end a tool's name where a call is written: chat templates write it between such marks."""

MALFORMED = "_malformed"
"""The one argument of a call whose arguments could not be read: what the model wrote in their place."""


TYPES: Mapping[str, Any] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
}
"""Type of an argument in JSON schema → in Python."""


class ToolError(Exception):
    """A call that gave nothing: unknown arguments, no such entry, a tool that is busy. The model reads the message."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call.

    Attributes:
        name: an identifier, as it is written in a call.
        description: what it does and when it helps, for the model.
        parameters: JSON schema of its arguments, an object. Their order is that of a call written as text:
            `search[Oslo ; population]`.
        run: called with the arguments by name; returns what the model reads. Raises ToolError.

    Raises ConfigError for a name that could not be told from what is written around it.
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
        """As chat templates and services take it."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}

    @property
    def argument_names(self) -> tuple[str, ...]:
        return tuple(self.parameters.get("properties", {}))


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool.

    Attributes:
        name: of the tool, as the model wrote it.
        arguments: by name, as the model gave them.
        result: what the model read: the tool's result, or why there was none.
        failed: whether there was none.
        id: of the call, where a service or a chat template numbers them.
    """

    name: str
    arguments: Mapping[str, Any]
    result: str = ""
    failed: bool = False
    id: str = ""


def name_problem(name: str) -> str | None:
    """What is wrong with the name of a declared tool."""
    if name.strip() and not BREAKS_OUT.search(name):
        return None
    return (
        f"the tool's name {name!r} is empty or has quotes, brackets or control characters, which mark where a name "
        "ends in a call; rename it to letters, digits, _ and -"
    )


def declared_names(tools: Iterable[Mapping[str, Any]]) -> list[str]:
    """Names of the tools that definitions declare, as chat templates take them; none of those in other forms."""
    functions = [tool.get("function", tool) for tool in tools]
    names = [function.get("name") for function in functions if isinstance(function, Mapping)]
    return [name for name in names if isinstance(name, str)]


def written_name(name: str) -> str:
    """A tool's name as a model wrote it, with _ for each character that a template would take for its end."""
    return BREAKS_OUT.sub("_", name)


def text_tool(name: str, description: str, arguments: Mapping[str, str], run: Callable[..., str]) -> Tool:
    """A tool whose arguments are all texts, and all required.

    Args:
        arguments: name → what it means.
    """
    properties = {argument: {"type": "string", "description": meaning} for argument, meaning in arguments.items()}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return Tool(name, description, parameters, run)


def function_call(name: str, arguments: Mapping[str, Any], id: str = "") -> dict[str, Any]:
    """A call as an assistant's message has it (`core.messages.Message.tool_calls`)."""
    numbered = {"id": id} if id else {}
    return {**numbered, "type": "function", "function": {"name": name, "arguments": dict(arguments)}}


def with_id(call: Mapping[str, Any], id: str) -> dict[str, Any]:
    """A call as an assistant's message has it, with this id in place of what it has."""
    return {"id": id, **{key: value for key, value in call.items() if key != "id"}}


def call_id(number: int) -> str:
    """Of a conversation's call of that number, from 0. Nine letters and digits, as some chat templates ask for."""
    return f"call{number:05d}"


def read_arguments(text: str) -> dict[str, Any]:
    """Arguments of a call, from the JSON that a model wrote; `{MALFORMED: text}` where that is no JSON object."""
    if not text.strip():
        return {}  # how some services write a call without arguments
    try:
        arguments = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return {MALFORMED: text}
    return arguments if isinstance(arguments, dict) else {MALFORMED: text}


def _refuse_constant(name: str) -> None:
    """NaN and Infinity, which Python reads and JSON does not have."""
    raise ValueError(name)


def call_tool(tools: Mapping[str, Tool], name: str, arguments: Mapping[str, Any], id: str = "") -> Call:
    """Call a tool by name. Whatever is wrong with the call is its result: the model reads it and may try again."""
    tool = tools.get(name)
    if tool is None:
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
    """The arguments in the types that the tool declares. Raises ToolError for one that cannot be.

    A call that is written as text has texts alone, and models write 3 for "3".
    """
    schemas = tool.parameters.get("properties", {})
    return {name: _as_type(tool, name, value, schemas[name].get("type")) for name, value in arguments.items()}


def _as_type(tool: Tool, name: str, value: Any, wanted: Any) -> Any:
    if not isinstance(wanted, str) or wanted not in TYPES:  # a schema may have several types, or none
        return value
    # True is an int to Python, and none to JSON
    if isinstance(value, TYPES[wanted]) and isinstance(value, bool) == (wanted == "boolean"):
        return value
    if wanted == "string" and isinstance(value, int | float):
        return json.dumps(value)
    if wanted in ("integer", "number") and isinstance(value, str):
        with suppress(ValueError):
            return int(value) if wanted == "integer" else float(value)
    if wanted in ("boolean", "array", "object") and isinstance(value, str):
        with suppress(ValueError, RecursionError):
            # True and False as Python writes them stand in the calls of some templates
            read = json.loads(value.lower() if wanted == "boolean" else value)
            if isinstance(read, TYPES[wanted]):
                return read
    raise ToolError(f"error: {name} of {tool.name} is a JSON {wanted}; got {json.dumps(value, default=str)[:80]}")


def _argument_problem(tool: Tool, arguments: Mapping[str, Any]) -> str:
    """What is wrong with the names of the arguments; "" where nothing is."""
    if MALFORMED in arguments:
        return f"the arguments of {tool.name} are no JSON object: {arguments[MALFORMED]}"
    expected = tool.argument_names
    unknown = [name for name in arguments if name not in expected]
    missing = [name for name in tool.parameters.get("required", ()) if name not in arguments]
    if not unknown and not missing:
        return ""
    return f"{tool.name} takes {', '.join(expected) or 'no arguments'}; got {', '.join(arguments) or 'none'}"
