"""What an agent has to know of the model that it speaks through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_lab.packs.agents.harness.prompts import Prompts
from rlhf_lab.packs.judging.judges.requests import Completer


@dataclass(frozen=True)
class AgentModel:
    """A model, and how it is spoken to.

    Attributes:
        prompts: the words in which a part of an agent is told what it is there for.
        native_calls: whether tools are offered to the model in its own form; if not, it writes calls as text.
        max_turns, max_calls: most turns of the model and calls of tools in an attempt, over all parts of the agent.
        max_tokens: of a turn.
    """

    completer: Completer
    prompts: Prompts
    native_calls: bool = False
    max_turns: int = 24
    max_calls: int = 24
    max_tokens: int = 1024

    @property
    def identity(self) -> Mapping[str, Any]:
        """Everything that decides what is said to the model and by it; JSON values."""
        return {
            "model": dict(self.completer.identity),
            "prompts": self.prompts.name,
            "calls": "native" if self.native_calls else "text",
            "max_turns": self.max_turns,
            "max_calls": self.max_calls,
            "max_tokens": self.max_tokens,
        }
