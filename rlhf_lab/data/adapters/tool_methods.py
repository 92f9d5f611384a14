"""Environments in the form of TRL's `environment_factory`: an object whose public methods are the tools.

`reset(**row)` starts an episode and may return text that is appended to the prompt. The optional method `get_reward()`
is called once, at the end of an episode. A turn without a tool call ends the episode.

Not supported: asynchronous tools and rewards, images, several environments in one run (`data=mix` mixes corpora, not
environments).
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from rlhf_lab.core.episodes import Step, Task
from rlhf_lab.core.errors import ConfigError, LabError
from rlhf_lab.core.messages import Message
from rlhf_lab.core.tools import Call, Tool, ToolError, call_tool, read_arguments
from rlhf_lab.data.adapters.sessions import OPENING
from rlhf_lab.data.text_calls import read_move
from rlhf_lab.data.transcript import response_message

NOT_TOOLS = ("reset", "get_reward")


def tools_of(instance: object) -> dict[str, Tool]:
    """Return the public methods of an object as tools. Raise ConfigError if an argument lacks a type or description."""
    from transformers.utils import get_json_schema  # it reads Google-style docstrings, as TRL does

    tools = {}
    for name, _ in inspect.getmembers(type(instance), inspect.isfunction):
        if name.startswith("_") or name in NOT_TOOLS:
            continue
        method = getattr(instance, name)
        try:
            function = get_json_schema(method)["function"]
        except Exception as error:  # the library's own errors name the argument
            raise ConfigError(
                f"data.environment: the tool {name} of {type(instance).__name__} cannot be described ({error}); give "
                "its arguments types, and an Args section in its docstring"
            ) from error
        tools[name] = Tool(name, function["description"], function["parameters"], _returning_text(method))
    return tools


def _returning_text(method: Callable[..., Any]) -> Callable[..., str]:
    """Wrap a user's tool so that it returns text. An exception becomes text that the model reads, as in TRL."""

    def run(**arguments: Any) -> str:
        try:
            result = method(**arguments)
        except Exception as error:
            raise ToolError(f"error: {error}") from error
        return result if isinstance(result, str) else json.dumps(result, default=str, ensure_ascii=False)

    return run


class ToolMethodsSession:
    """One episode, with its own object.

    Args:
        row: keyword arguments of `reset`.
    """

    def __init__(self, instance: Any, row: Mapping[str, Any]):
        self.instance, self.row = instance, row
        self.tools = tools_of(instance)

    def start(self) -> str:
        opening = self.instance.reset(**self.row)
        if opening is not None and not isinstance(opening, str):
            raise LabError(
                f"{type(self.instance).__name__}.reset returned a value of type {type(opening).__name__}; "
                "return text or None"
            )
        return opening or ""

    def close(self) -> None:
        """Do nothing: these environments have nothing to close."""

    def finish(self) -> float:
        """Return the reward that the object reports for the episode, or 0 if it has no `get_reward`."""
        return float(self.instance.get_reward()) if hasattr(self.instance, "get_reward") else 0.0

    def step(self, response: str, *, is_last: bool) -> Step:
        calls = calls_of(response, self.tools)
        # without a call there is no result to continue with
        if is_last or not calls:
            return Step(reward=self.finish(), done=True)
        return Step(messages=[result_message(call) for call in calls], done=False)


def calls_of(response: str, tools: Mapping[str, Tool]) -> list[Call]:
    """Execute the tool calls of a response: those in the format of its chat template, else one written as text."""
    generated = []
    for call in response_message(response).get("tool_calls", []):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not {"name", "arguments"} <= function.keys():
            continue  # a policy without a chat template may type any JSON
        provided = function["arguments"]
        # some templates write the arguments as JSON text
        text = provided if isinstance(provided, str) else json.dumps(provided)
        arguments = provided if isinstance(provided, Mapping) else read_arguments(text)
        name = str(function["name"])
        generated.append(call_tool(tools, name, arguments, str(call.get("id", ""))))
    if generated:
        return generated
    move = read_move(response, tools)
    return [call_tool(tools, move.name, move.arguments or {})] if move.name else []


def result_message(call: Call) -> Message:
    message: Message = {"role": "tool", "content": call.result, "name": call.name}
    # `calls` of a chat template have ids, and the template needs them to match results with calls
    if call.id:
        message["tool_call_id"] = call.id
    return message


def opener(factory: Callable[..., Any], arguments: Mapping[str, Any]) -> Callable[[Task, int], ToolMethodsSession]:
    """Return a function that opens a session of a task. The seed is unused: these environments do not accept one."""

    def open_session(task: Task, seed: int) -> ToolMethodsSession:
        del seed
        # `opening` was added by rlhf_lab and is no argument of `reset`
        row = {name: value for name, value in task.metadata.items() if name != OPENING}
        return ToolMethodsSession(factory(**arguments), row)

    return open_session
