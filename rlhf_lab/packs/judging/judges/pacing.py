"""When the next attempt may be sent: the limits per minute, and the pauses that a busy service asks for.

Both are shared by all threads. While a service is overloaded nobody sends; after the pause one attempt goes ahead, and
only when that one has got through do the others follow. So a storm meets one attempt at a time, and not one per thread.
"""

from __future__ import annotations

import random
import threading
import time

MINUTE_S = 60.0
LONGEST_BACKOFF_S = 60.0


class Stopped(Exception):
    """No more attempts are sent."""


class Pacer:
    """Admits the attempts of one call.

    Args:
        limits: of requests and of tokens; they outlive the call.
    """

    def __init__(self, limits: Limits):
        self._changed = threading.Condition()
        self._limits = limits
        self._resume_at = 0.0
        self._storm = 0  # number of the pause that the latest attempt has not yet got through; 0 is calm
        self._pauses = 0
        self._probing = False
        self._stopped = False

    def admit(self, tokens: int) -> int:
        """Wait until an attempt of so many tokens may be sent; returns a ticket to give back. Raises Stopped."""
        with self._changed:
            while True:
                if self._stopped:
                    raise Stopped
                now = time.monotonic()
                delay = max(self._resume_at - now, self._limits.delay(tokens, now))
                if delay <= 0 and not self._probing:
                    self._limits.take(tokens)
                    self._probing = bool(self._storm)
                    return self._pauses
                self._changed.wait(delay if delay > 0 else None)

    def passed(self, ticket: int) -> None:
        """The service worked on an attempt: a storm that began before it was sent is over."""
        with self._changed:
            if ticket == self._pauses:
                self._storm = 0
                self._probing = False
            self._changed.notify_all()

    def release(self, ticket: int) -> None:
        """An attempt says nothing about the storm: another one goes ahead."""
        with self._changed:
            if ticket == self._pauses:
                self._probing = False
            self._changed.notify_all()

    def hold(self, seconds: float) -> None:
        """Nobody sends for so long."""
        with self._changed:
            self._pauses += 1
            self._storm = self._pauses
            self._probing = False
            self._resume_at = max(self._resume_at, time.monotonic() + seconds)
            self._changed.notify_all()

    def sleep(self, seconds: float) -> None:
        """Sleep, unless attempts are stopped. Raises Stopped."""
        end = time.monotonic() + seconds
        with self._changed:
            while not self._stopped and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            if self._stopped:
                raise Stopped

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


class Limits:
    """Requests and tokens per minute; 0 is no limit."""

    def __init__(self, requests_per_minute: int, tokens_per_minute: int):
        self._requests, self._tokens = Bucket(requests_per_minute), Bucket(tokens_per_minute)

    def delay(self, tokens: int, now: float) -> float:
        """Seconds until a request of so many tokens may be sent."""
        return max(self._requests.delay(1, now), self._tokens.delay(tokens, now))

    def take(self, tokens: int) -> None:
        self._requests.take(1)
        self._tokens.take(tokens)


class Bucket:
    """A token bucket: holds up to a minute's amount, and is full at the start. 0 holds everything."""

    def __init__(self, per_minute: int):
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._filled = time.monotonic()

    def delay(self, amount: float, now: float) -> float:
        """Seconds until so much is there; an amount above a minute's waits for a full bucket."""
        if not self.per_minute:
            return 0.0
        rate = self.per_minute / MINUTE_S
        self._level = min(self.per_minute, self._level + (now - self._filled) * rate)
        self._filled = now
        # what rounding takes from a level must not make anyone wait once more
        return max(0.0, (min(amount, self.per_minute) - self._level - 1e-6) / rate)

    def take(self, amount: float) -> None:
        if self.per_minute:
            self._level -= amount


def backoff_s(failures: int, pause_s: float) -> float:
    """Seconds to wait after so many failures: doubled each time, with jitter, so that clients do not return at once."""
    longest = min(pause_s * 2.0 ** min(failures - 1, 10), max(LONGEST_BACKOFF_S, pause_s))
    return longest * (0.75 + 0.25 * random.random())
