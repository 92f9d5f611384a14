"""Answers of a service, independent of its SDK. The methods of a backend are in backends/sdk.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rlhf_lab.core.text import well_formed, well_formed_value
from rlhf_lab.packs.judging.judges.requests import Stop, Usage

Fate = Literal["unsent", "refused", "lost"]
"""Fate of an attempt without an answer: it never left (unsent), the service did no work (refused), or the fate is
unknown and the attempt may have been charged (lost)."""


@dataclass(frozen=True)
class ServiceAnswer:
    """Answer of a service, with the service's own counts. Its texts are made well-formed Unicode.

    Attributes:
        usage: token counts; None if the service does not report them.
        model: the service's name of the model that answered.
        repeated: True if the service returned the answer of an earlier attempt again, which it has charged already.
        tool_calls, blocks: see `Completion`.
        charged: False for a refusal that arrived as an error, before a model read anything.
    """

    text: str
    stop: Stop = "end"
    usage: Usage | None = None
    model: str = ""
    repeated: bool = False
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    blocks: tuple[Mapping[str, Any], ...] = ()
    charged: bool = True

    def __post_init__(self) -> None:
        # services may send lone surrogates, which no file or database accepts
        for name in ("text", "model", "tool_calls", "blocks"):
            object.__setattr__(self, name, well_formed_value(getattr(self, name)))


class ServiceError(Exception):
    """An attempt without an answer. Its message contains no key and is well-formed Unicode.

    Attributes:
        fate: whether the attempt may have been charged.
        status: HTTP status; 0 if there was none.
        code: the service's error code; "" if it gives none.
        passing: True if the same attempt may succeed later.
        overloaded: True if the service is too busy or unavailable for all requests.
        retry_after_s: pause in seconds requested by the service; None if it names none.
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
        # the message reaches files and the console
        message = well_formed(message)
        super().__init__(message)
        self.message = message
        self.fate = fate
        self.status = status
        self.code = well_formed(code)
        self.passing = passing
        self.overloaded = overloaded
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class BatchStatus:
    """Status of a batch.

    Attributes:
        finished: True if no item is being processed any more.
        done: number of processed items.
        failed: reason why the entire batch was rejected, or "".
    """

    finished: bool
    done: int = 0
    failed: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "failed", well_formed(self.failed))


CLOCK_SKEW_S = 900.0
"""Maximum difference in seconds between a service's clock and ours, including the duration of a POST."""
