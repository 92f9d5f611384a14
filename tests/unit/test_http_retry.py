"""The retry policy: what is repeated, how often, and after which pause."""

from __future__ import annotations

import pytest

from rlhf_lab.core import http_retry
from rlhf_lab.core.http_retry import LONGEST_WAIT_S, PassingFailure, RetryPolicy, backoff_s, is_passing


@pytest.fixture
def pauses(monkeypatch):
    waited: list[float] = []
    monkeypatch.setattr(http_retry.time, "sleep", waited.append)
    monkeypatch.setattr(http_retry.random, "random", lambda: 1.0)
    return waited


def attempts(*outcomes):
    """A function that raises or returns these in turn."""
    left = list(outcomes)

    def attempt():
        outcome = left.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return attempt


def test_the_pauses_of_attempts_and_the_failure_that_ends_them(pauses):
    """1 s, then 2 s; the third is the one that the service names."""
    busy = PassingFailure("busy")
    run = RetryPolicy(3, 1.0).run
    assert run(attempts(busy, busy, PassingFailure("busy", 0.5), "answer")) == "answer"
    assert pauses == [1.0, 2.0, 0.5]
    for failures, largest in ((1, 1.0), (2, 2.0), (3, 4.0), (7, 60.0), (50, 60.0)):
        assert 0.75 * largest <= backoff_s(failures, 1.0) <= largest


def test_the_last_failure_is_raised_with_the_number_of_attempts(pauses):
    with pytest.raises(PassingFailure, match="third") as caught:
        RetryPolicy(2, 1.0).run(attempts(*(PassingFailure(text) for text in ("first", "second", "third")), "answer"))
    assert caught.value.attempts == 3 and len(pauses) == 2


def test_what_ends_the_attempts_at_once(pauses):
    with pytest.raises(PassingFailure) as caught:
        RetryPolicy(2, 1.0).run(attempts(PassingFailure("busy", LONGEST_WAIT_S + 1), "answer"))
    assert caught.value.attempts == 1 and not pauses
    assert RetryPolicy(1, 1.0).wait_s(1, LONGEST_WAIT_S) == LONGEST_WAIT_S
    with pytest.raises(ValueError, match="wrong"):
        RetryPolicy(2, 1.0).run(attempts(ValueError("wrong"), "answer"))
    assert not pauses


def test_which_statuses_pass():
    passing = [status for status in range(300, 600) if is_passing(status)]
    assert passing == [408, 409, 425, 429, *range(500, 600)]
