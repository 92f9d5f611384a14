"""When attempts are admitted: limits per minute, pauses of an overloaded service, one probe after each."""

from __future__ import annotations

import threading
import time

import pytest

from rlhf_lab.core.http_retry import LONGEST_WAIT_S
from rlhf_lab.packs.judging.judges.pacing import Bucket, Pacer, RateLimits, Stopped, wait_s
from rlhf_lab.packs.judging.judges.service import ServiceError


def test_a_bucket_is_full_at_the_start_and_fills_in_a_minute():
    bucket = Bucket(60)
    now = bucket._filled
    assert bucket.delay(60, now) == 0
    bucket.take(60)
    assert bucket.delay(1, now) == pytest.approx(1.0, abs=1e-3)
    assert bucket.delay(30, now + 10) == pytest.approx(20.0, abs=1e-3)
    assert bucket.delay(1000, now + 60) == 0  # more than a minute's amount waits for a full bucket, not for ever
    assert Bucket(0).delay(10**9, 0.0) == 0  # no limit


@pytest.mark.parametrize(
    ("passing", "failures", "asked_s", "waited"),
    [
        (True, 1, 2.5, True),
        (True, 1, 0.0, True),
        (True, 1, LONGEST_WAIT_S + 1, False),  # batches once slept for as long as any service asked
        (True, 3, 2.5, False),
        (False, 1, 2.5, False),
    ],
)
def test_how_long_is_waited_before_another_attempt(passing, failures, asked_s, waited):
    error = ServiceError("busy", "refused", passing=passing, retry_after_s=asked_s)
    if waited:
        assert wait_s(error, failures, 2, pause_s=1.0) == asked_s
        return
    with pytest.raises(ServiceError) as caught:
        wait_s(error, failures, 2, pause_s=1.0)
    assert caught.value is error


def test_both_limits_hold():
    limits = RateLimits(requests_per_minute=60, tokens_per_minute=600)
    now = limits._requests._filled
    limits.take(600)
    assert limits.delay(10, now) == pytest.approx(1.0, abs=1e-2)
    assert limits.delay(300, now) == pytest.approx(30.0, abs=1e-2)


def test_after_a_pause_one_attempt_goes_ahead():
    pacer = Pacer(RateLimits(0, 0))
    early = pacer.admit(1)
    started = time.monotonic()
    pacer.hold(0.05)
    admitted: list[int] = []

    def work() -> None:
        admitted.append(pacer.admit(1))

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    while not admitted:
        time.sleep(0.005)
    assert time.monotonic() - started >= 0.04
    time.sleep(0.05)
    assert len(admitted) == 1
    pacer.passed(early)  # it was sent before the storm, and says nothing about it
    time.sleep(0.03)
    assert len(admitted) == 1
    pacer.release(admitted[0])  # neither does one that failed for a reason of its own: the next one goes ahead
    while len(admitted) < 2:
        time.sleep(0.005)
    pacer.passed(admitted[1])
    for thread in threads:
        thread.join(timeout=2)
    assert len(admitted) == 5


def test_a_stop_wakes_those_who_wait():
    pacer = Pacer(RateLimits(0, 0))
    pacer.hold(60)
    stopped: list[str] = []

    def wait(what) -> None:
        with pytest.raises(Stopped):
            what(30)
        stopped.append(what.__name__)

    threads = [threading.Thread(target=wait, args=(what,)) for what in (pacer.admit, pacer.sleep)]
    for thread in threads:
        thread.start()
    pacer.stop()
    for thread in threads:
        thread.join(timeout=2)
    assert sorted(stopped) == ["admit", "sleep"]
