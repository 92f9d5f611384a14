"""Pacing of attempts: rate limits per minute, and the pauses requested by a busy service.

All threads share both. While a service is overloaded, no thread sends. After the pause one attempt probes the service,
and the others resume only once it has succeeded. An overloaded service thus gets one request per pause, not one per
thread.
"""

from __future__ import annotations

import threading
import time

from rlhf_lab.core.http_retry import RetryPolicy
from rlhf_lab.packs.judging.judges.service import ServiceError

MINUTE_S = 60.0  # window of the rate limits, in seconds


class Stopped(Exception):
    """Raised in waiting threads once no more attempts may be sent."""


class Pacer:
    """Decides when each attempt of one `complete_many` call may be sent. The rate limits outlive the call."""

    def __init__(self, limits: RateLimits):
        self._changed = threading.Condition()
        self._limits = limits
        self._resume_at = 0.0
        self._storm = 0  # index of the pause since which no attempt has succeeded; 0 if the service is not overloaded
        self._pauses = 0
        self._probing = False
        self._stopped = False

    def admit(self, tokens: int) -> int:
        """Wait until an attempt with this many tokens may be sent. Return a ticket to release. Raises Stopped."""
        with self._changed:
            while True:
                if self._stopped:
                    raise Stopped
                now = time.monotonic()
                delay = max(self._resume_at - now, self._limits.delay(tokens, now))
                if delay <= 0 and not self._probing:
                    self._limits.take(tokens)
                    # while the service is overloaded, only this attempt may be in flight
                    self._probing = bool(self._storm)
                    return self._pauses  # the ticket: a later pause makes the attempt's success meaningless
                self._changed.wait(delay if delay > 0 else None)

    def passed(self, ticket: int) -> None:
        """Record a successful attempt. It ends an overload that began before the attempt was sent."""
        with self._changed:
            if ticket == self._pauses:
                self._storm = 0
                self._probing = False
            self._changed.notify_all()

    def release(self, ticket: int) -> None:
        """Record an attempt that says nothing about the overload, so that another one may probe."""
        with self._changed:
            if ticket == self._pauses:
                self._probing = False
            self._changed.notify_all()

    def hold(self, seconds: float) -> None:
        """Stop all sending for a number of seconds."""
        with self._changed:
            # attempts sent before this pause have an older ticket, so their success does not end it
            self._pauses += 1
            self._storm = self._pauses
            self._probing = False
            self._resume_at = max(self._resume_at, time.monotonic() + seconds)
            self._changed.notify_all()

    def sleep(self, seconds: float) -> None:
        """Sleep, or raise Stopped as soon as attempts are stopped."""
        end = time.monotonic() + seconds
        with self._changed:
            while not self._stopped and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            if self._stopped:
                raise Stopped

    def stop(self) -> None:
        """Stop all waiting threads; they raise Stopped."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


class RateLimits:
    """Rate limits of requests and tokens per minute; 0 is no limit."""

    def __init__(self, requests_per_minute: int, tokens_per_minute: int):
        self._requests = Bucket(requests_per_minute)
        self._tokens = Bucket(tokens_per_minute)

    def delay(self, tokens: int, now: float) -> float:
        """Return the seconds until a request with this many tokens may be sent."""
        return max(self._requests.delay(1, now), self._tokens.delay(tokens, now))

    def take(self, tokens: int) -> None:
        self._requests.take(1)
        self._tokens.take(tokens)


class Bucket:
    """Token bucket with the capacity of one minute, full at the start. A rate of 0 is no limit."""

    def __init__(self, per_minute: int):
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._filled = time.monotonic()

    def delay(self, amount: float, now: float) -> float:
        """Return the seconds until the amount is available. An amount above the capacity waits for a full bucket."""
        if not self.per_minute:
            return 0.0
        rate = self.per_minute / MINUTE_S
        self._level = min(self.per_minute, self._level + (now - self._filled) * rate)
        self._filled = now
        # the tolerance of 1e-6 keeps a rounding error from causing another short wait
        return max(0.0, (min(amount, self.per_minute) - self._level - 1e-6) / rate)

    def take(self, amount: float) -> None:
        if self.per_minute:
            self._level -= amount


def wait_s(error: ServiceError, failures: int, retries: int, pause_s: float) -> float:
    """Return the seconds to wait after some failures (see `RetryPolicy`). Raises the error if no attempt follows."""
    wait = RetryPolicy(retries, pause_s).wait_s(failures, error.retry_after_s)
    if not error.passing or wait is None:
        raise error
    return wait
