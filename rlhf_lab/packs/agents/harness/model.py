"""The language model of an agent, with its limits and its prompt style."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_lab.packs.agents.harness.prompts import PromptStyle
from rlhf_lab.packs.judging.judges.requests import Completer


@dataclass(frozen=True)
class AgentModel:
    """A language model and the limits of an agent that uses it.

    Attributes:
        completer: sends requests to the model.
        prompts: texts that instruct the parts of the agent.
        native_calls: True if tools are passed to the model natively; otherwise it writes calls as text.
        max_turns, max_calls: maximum number of model turns and of tool calls in an attempt, over all parts of the
            agent.
        max_tokens: maximum number of tokens of a turn.
    """

    completer: Completer
    prompts: PromptStyle
    native_calls: bool = False
    max_turns: int = 24
    max_calls: int = 24
    max_tokens: int = 1024

    @property
    def identity(self) -> Mapping[str, Any]:
        """Everything that determines the model's inputs and outputs, as JSON values."""
        return {
            "model": dict(self.completer.identity),
            "prompts": self.prompts.name,
            "calls": "native" if self.native_calls else "text",
            "max_turns": self.max_turns,
            "max_calls": self.max_calls,
            "max_tokens": self.max_tokens,
        }
