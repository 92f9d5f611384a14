"""What the agents of a run share: the model they speak through, and what runs their code. Opened when first used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Protocol

from rlhf_lab.packs.agents.harness.model import AgentModel


class Ran(Protocol):
    """What came of a program; see `sandbox.outcome.Outcome`."""

    @property
    def status(self) -> str:
        """`ok`, or why it failed."""
        ...

    @property
    def stdout(self) -> str: ...

    @property
    def stderr(self) -> str: ...

    @property
    def files(self) -> Mapping[str, bytes]:
        """In its folder at the end: path → content."""
        ...


class CodeRunner(Protocol):
    """Runs Python in a folder with files."""

    def __call__(self, code: str, files: Mapping[str, bytes]) -> Ran: ...


class Surroundings:
    """Args:
    open_model: loads the model, or connects to the service.
    open_sandbox: makes what runs code.
    limits: of the programs that it runs, see `Sandboxing.limits`.
    """

    def __init__(
        self,
        open_model: Callable[[], AgentModel],
        open_sandbox: Callable[[], CodeRunner],
        limits: Mapping[str, float],
    ):
        self._open_model, self._open_sandbox, self.limits = open_model, open_sandbox, limits

    @cached_property
    def model(self) -> AgentModel:
        return self._open_model()

    @cached_property
    def run_code(self) -> CodeRunner:
        return self._open_sandbox()
