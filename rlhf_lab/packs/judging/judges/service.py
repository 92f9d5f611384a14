"""What the transport needs of a service, whichever SDK speaks to it: the backends implement it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from rlhf_lab.packs.judging.judges.requests import Request, Stop, Usage

Fate = Literal["unsent", "refused", "lost"]
"""What became of an attempt without an answer: it never left (unsent), the service took no work on (refused), or nobody
knows, and it may have been charged (lost)."""


@dataclass(frozen=True)
class Answer:
    """What a service answered, as it counts it.

    Attributes:
        model: the model that answered, in the service's words.
        usage: None where the service counts nothing.
        repeated: whether the service gave the answer of an earlier attempt once more, which it charged then.
        tool_calls, blocks: as of `Reply`.
    """

    text: str
    stop: Stop = "end"
    usage: Usage | None = None
    model: str = ""
    repeated: bool = False
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    blocks: tuple[Mapping[str, Any], ...] = ()


class ServiceError(Exception):
    """An attempt without an answer. Its message holds no key.

    Attributes:
        fate: what is known of its cost.
        status: of HTTP; 0 where there was none.
        code: the service's own name of the error; "" where it gives none.
        passing: whether the same attempt may succeed later.
        overloaded: whether the service is too busy or away, for every request alike.
        retry_after_s: how long the service asks to wait; None where it says nothing.
    """

    def __init__(
        self,
        message: str,
        fate: Fate,
        *,
        status: int = 0,
        code: str = "",
        passing: bool = False,
        overloaded: bool = False,
        retry_after_s: float | None = None,
    ):
        super().__init__(message)
        self.message, self.fate, self.status, self.code = message, fate, status, code
        self.passing, self.overloaded, self.retry_after_s = passing, overloaded, retry_after_s


@dataclass(frozen=True)
class BatchItem:
    """One request of a batch.

    Attributes:
        name: unique in the service's account, up to 64 of letters, digits, - and _.
    """

    name: str
    request: Request


@dataclass(frozen=True)
class BatchStatus:
    """Attributes:
    ended: no item is worked on any more.
    done: items that are.
    failed: why the whole batch was refused; "" where it was not.
    """

    ended: bool
    done: int = 0
    failed: str = ""


CLOCK_SKEW_S = 900.0
"""How far a service's clock, with the time that a POST takes, may be from ours."""


@dataclass(frozen=True)
class Candidate:
    """A batch at the service that may be one whose creation was interrupted.

    Attributes:
        certain: the service keeps our name of it; else only the names of its items tell.
    """

    remote: str
    certain: bool


class Backend(Protocol):
    """One service and one model there, through one SDK."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """Everything that decides the answers but the requests; JSON values."""
        ...

    @property
    def key(self) -> str: ...

    def body(self, request: Request) -> Mapping[str, Any]:
        """What is sent, as JSON values."""
        ...

    def send(self, request: Request, idempotency_key: str) -> Answer:
        """One attempt. Raises ServiceError."""
        ...

    def create_batch(self, name: str, items: Sequence[BatchItem]) -> str:
        """Send a batch; returns the service's name of it. Raises ServiceError."""
        ...

    def find_batches(self, name: str, created: float, items: int) -> list[Candidate]:
        """Batches that may be the one of this name, created about then. Raises ServiceError."""
        ...

    def batch_status(self, remote: str) -> BatchStatus: ...

    def batch_results(self, remote: str) -> Iterator[tuple[str, Answer | ServiceError]]:
        """(name, result) of each item of a batch that has ended, in any order. Raises ServiceError."""
        ...
