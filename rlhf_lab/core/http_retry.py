"""The retry policy of every HTTP client: which failures are repeated, and how long to wait before the next attempt."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

Result = TypeVar("Result")
PASSING = (408, 409, 425, 429)
"""Client errors after which the same request may succeed: time-out, conflict, too early, too many requests."""
LONGEST_BACKOFF_S = 60.0
"""Maximum pause in seconds if the service names none."""
LONGEST_WAIT_S = 600.0
"""Maximum number of seconds to wait at a service's request. A service that asks for more is not called again."""


class PassingFailure(Exception):
    """Failure of an attempt that may succeed if it is repeated.

    Attributes:
        retry_after_s: pause in seconds that the service asks for; None if it names none.
        attempts: number of attempts that failed, including this one.
    """

    attempts = 1

    def __init__(self, message: str, retry_after_s: float | None = None):
        super().__init__(message)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class RetryPolicy:
    """Number of attempts, and the pauses between them.

    Attributes:
        retries: maximum number of attempts after the first.
        pause_s: pause in seconds before the second attempt if the service names none; doubled for each further one.
    """

    retries: int
    pause_s: float

    def wait_s(self, failures: int, retry_after_s: float | None = None) -> float | None:
        """Return the seconds to wait before the next attempt, or None if there is no next attempt.

        Args:
            failures: number of failed attempts so far.
            retry_after_s: pause that the service asks for; None if it names none.
        """
        wait = backoff_s(failures, self.pause_s) if retry_after_s is None else retry_after_s
        return None if failures > self.retries or wait > LONGEST_WAIT_S else wait

    def run(self, attempt: Callable[[], Result]) -> Result:
        """Return the result of the first attempt that succeeds. Raises the last PassingFailure, and other errors."""
        failures = 0
        while True:
            try:
                return attempt()
            except PassingFailure as failure:
                failures += 1
                failure.attempts = failures
                wait = self.wait_s(failures, failure.retry_after_s)
                if wait is None:
                    raise
            time.sleep(wait)


def is_passing(status: int) -> bool:
    """Return True if a request that was answered with this HTTP status may succeed if it is repeated."""
    return status in PASSING or status >= 500


def backoff_s(failures: int, pause_s: float) -> float:
    """Return the pause after this many failures: doubled each time, with jitter to spread clients out."""
    max_length = min(pause_s * 2.0 ** min(failures - 1, 10), max(LONGEST_BACKOFF_S, pause_s))
    return max_length * (0.75 + 0.25 * random.random())
