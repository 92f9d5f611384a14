"""Records of the judge store: requests, attempts, batches, their processes, and the spending of an account."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_lab.packs.judging.judges.requests import CompletionRequest, Usage


@dataclass(frozen=True)
class PendingRequest:
    """A request that may have to be sent, with its cost.

    Attributes:
        digest: hash of the request and of the backend's identity.
        identity: identity of the backend.
        bytes: number of bytes to send.
        reserve_usd: maximum cost of one attempt in USD.
        price: source of the price.
    """

    digest: str
    request: CompletionRequest
    identity: Mapping[str, Any]
    bytes: int = 0
    reserve_usd: float = 0.0
    price: str = ""


@dataclass(frozen=True)
class LedgerAttempt:
    """An attempt of the ledger that is in flight.

    Attributes:
        idempotency_key: key sent with the request. A repetition of a lost attempt has the same key, so a service that
            supports such keys answers twice and charges once.
    """

    id: int
    question: PendingRequest
    idempotency_key: str


@dataclass(frozen=True)
class OpenBatch:
    """A batch that has not finished.

    Attributes:
        name: name of the batch in this store.
        owner: process that created it.
        remote: the service's name of the batch; "" if its creation was interrupted.
        began: time of its creation (Unix seconds).
        digests: item name → digest of the request.
    """

    name: str
    owner: str
    remote: str
    began: float
    digests: Mapping[str, str]


@dataclass(frozen=True)
class Ledger:
    """Spending of an account.

    Attributes:
        requests: number of answered requests.
        spent_usd: cost of the answered requests.
        open_usd: amount reserved for attempts in flight.
        lost: number of attempts whose answer never arrived.
        lost_usd: maximum cost of the lost attempts.
        usage: tokens of the answered requests.
    """

    requests: int
    spent_usd: float
    open_usd: float
    lost: int
    lost_usd: float
    usage: Usage

    @property
    def counted_usd(self) -> float:
        """Amount that counts against the budget in USD."""
        return self.spent_usd + self.open_usd + self.lost_usd


class OverBudget(Exception):
    """Raised if the next attempt could cost more than the rest of the budget.

    Attributes:
        may_pass: True if attempts of the account are in flight. They may cost less than their reservations, so it can
            help to wait.
    """

    def __init__(self, may_pass: bool = False):
        super().__init__()
        self.may_pass = may_pass


class AlreadyRequested(Exception):
    """Raised if another process is sending the same request now, or if a batch contains it."""


def item_name(batch: str, attempt_id: int) -> str:
    """Return the name that a batch item has at the service."""
    return f"{batch}-{attempt_id}"


def this_process() -> str:
    """Return host, process id and start time of this process. The system reuses process ids, so one is not enough."""
    return f"{socket.gethostname()}/{os.getpid()}/{_start(os.getpid())}"


def is_gone(owner: str) -> bool:
    """Return True if a process has certainly ended. This is never certain for a process of another host."""
    host, pid, start = owner.rsplit("/", 2)
    if host != socket.gethostname():
        return False
    try:
        os.kill(int(pid), 0)  # signal 0 only checks that the process exists
    except ProcessLookupError:
        return True
    except PermissionError:  # the process exists and belongs to another user
        return False
    return _start(int(pid)) != start


def _start(pid: int) -> str:
    """Return boot id and start time of a process in ticks since boot; "" if the system does not provide them."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # field 2 is a name in brackets that may contain spaces, so split after it; the start time is field 22
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    if fields[0] == "Z":  # a zombie: killed, but not yet reaped by its parent
        return "ended"
    return f"{boot}:{fields[19]}"
