"""Environments in the form of TRL's `environment_factory`: an object whose public methods are the tools.

`reset(**row)` begins an episode and may return text that the prompt ends with; `get_reward()`, where there is one, is
asked once, at the end of an episode. A turn without a call ends it.

Left out: asynchronous tools and rewards, images, several environments in one run (`data=mix` mixes corpora, not these).
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
from rlhf_lab.data.transcript import reply_message

NOT_TOOLS = ("reset", "get_reward")


def tools_of(instance: object) -> dict[str, Tool]:
    """The public methods of an object as tools. Raises ConfigError for one without types or a documented argument."""
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
    """A tool of the user's; whatever it raises is what the model reads, as with TRL."""

    def run(**arguments: Any) -> str:
        try:
            result = method(**arguments)
        except Exception as error:
            raise ToolError(f"error: {error}") from error
        return result if isinstance(result, str) else json.dumps(result, default=str, ensure_ascii=False)

    return run


class ToolMethodsSession:
    """One episode with an object of its own.

    Args:
        row: what `reset` is called with, by name.
    """

    def __init__(self, instance: Any, row: Mapping[str, Any]):
        self.instance, self.row = instance, row
        self.tools = tools_of(instance)

    def start(self) -> str:
        opening = self.instance.reset(**self.row)
        if opening is not None and not isinstance(opening, str):
            raise LabError(f"{type(self.instance).__name__}.reset returned {type(opening).__name__}; text or None")
        return opening or ""

    def close(self) -> None:
        """These environments have nothing to close."""

    def finish(self) -> float:
        """What the object says that the episode is worth; 0 where it says nothing."""
        return float(self.instance.get_reward()) if hasattr(self.instance, "get_reward") else 0.0

    def step(self, reply: str, *, is_last: bool) -> Step:
        calls = calls_of(reply, self.tools)
        if is_last or not calls:
            return Step(reward=self.finish(), done=True)
        return Step(messages=[result_message(call) for call in calls], done=False)


def calls_of(reply: str, tools: Mapping[str, Tool]) -> list[Call]:
    """The calls of a reply, made: those that its chat template wrote, else the one it writes as text."""
    made = []
    for call in reply_message(reply).get("tool_calls", []):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not {"name", "arguments"} <= function.keys():
            continue  # a policy without a chat template may type any JSON
        given = function["arguments"]
        # some templates write the arguments as JSON text
        text = given if isinstance(given, str) else json.dumps(given)
        arguments = given if isinstance(given, Mapping) else read_arguments(text)
        made.append(call_tool(tools, str(function["name"]), arguments, str(call.get("id", ""))))
    if made:
        return made
    move = read_move(reply, tools)
    return [call_tool(tools, move.name, move.arguments or {})] if move.name else []


def result_message(call: Call) -> Message:
    message: Message = {"role": "tool", "content": call.result, "name": call.name}
    if call.id:
        message["tool_call_id"] = call.id
    return message


def opener(factory: Callable[..., Any], arguments: Mapping[str, Any]) -> Callable[[Task, int], ToolMethodsSession]:
    """What makes a session of a task. The seed is not used: these environments know none."""

    def open_session(task: Task, seed: int) -> ToolMethodsSession:
        del seed
        row = {name: value for name, value in task.facts.items() if name != OPENING}
        return ToolMethodsSession(factory(**arguments), row)

    return open_session
