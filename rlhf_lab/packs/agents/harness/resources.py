"""Resources of the agents of a run: the language model and the code runner. Both are opened on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rlhf_lab.packs.agents.harness.prompts import Instructions
from rlhf_lab.packs.code.sandbox.outcome import ProgramOutcome
from rlhf_lab.packs.judging.judges.requests import Completer

CodeRunner = Callable[[str, Mapping[str, bytes]], ProgramOutcome]
"""Function that runs Python code in a directory with files: (code, path → content) → outcome."""


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
    prompts: Instructions
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


class AgentResources:
    """Resources that the agents of a run use together.

    Args:
        open_model: loads the model, or connects to the service.
        open_sandbox: creates the code runner.
        limits: limits of the programs that it runs; see `Sandboxing.limits`.
    """

    def __init__(
        self, open_model: Callable[[], AgentModel], open_sandbox: Callable[[], CodeRunner], limits: Mapping[str, float]
    ):
        # Functions instead of objects: a run whose agents need no model must not load one.
        self._open_model, self._open_sandbox, self.limits = open_model, open_sandbox, limits

    @cached_property
    def model(self) -> AgentModel:
        return self._open_model()

    @cached_property
    def run_code(self) -> CodeRunner:
        return self._open_sandbox()
