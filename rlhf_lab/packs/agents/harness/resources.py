"""Resources of the agents of a run: the language model and the code runner. Both are opened on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Protocol

from rlhf_lab.packs.agents.harness.model import AgentModel


class CodeResult(Protocol):
    """Result of running a program; `ProgramOutcome` has this interface."""

    @property
    def status(self) -> str:
        """`ok`, or the kind of failure."""
        ...

    @property
    def stdout(self) -> str: ...

    @property
    def stderr(self) -> str: ...

    def next_files(self, files: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return path → content of the files for the next program. `files` existed before this program."""
        ...


class CodeRunner(Protocol):
    """Runs Python code in a directory with files."""

    def __call__(self, code: str, files: Mapping[str, bytes]) -> CodeResult: ...


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
