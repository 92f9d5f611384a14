"""A sweep's handling of squeue's answers, and of the signals that stop its jobs. The real thing: end_to_end/slurm."""

from __future__ import annotations

import signal

import pytest

pytest.importorskip("submitit", reason="the extra `slurm` is not installed")

from submitit.core.utils import UncompletedJobError

from rlhf_lab.sweeps import submitted
from rlhf_lab.sweeps.submitted import SlurmQueue, followed, queue_again


@pytest.fixture
def queue(monkeypatch):
    """A queue of the array elements 7_0 and 7_1 whose answers a test gives with `read_info`."""
    generated = SlurmQueue()
    monkeypatch.setattr(generated, "update_if_long_enough", lambda mode: None)
    for job in ("7_0", "7_1"):
        generated.register_job(job)
    return generated


def test_an_ended_job_is_believed_at_second_sight(queue):
    queue.read_info(b"7_0 RUNNING\n7_1 FAILED\n8 RUNNING\n")
    assert not queue.is_done("7_1")
    queue.read_info(b"7_0 RUNNING\n7_1 PENDING\n")  # it was queued again
    queue.read_info(b"7_0 COMPLETING\n7_1 NODE_FAIL\n")
    assert not queue.is_done("7_1")
    queue.read_info(b"7_0 COMPLETING\n7_1 NODE_FAIL\n")
    assert queue.is_done("7_1")
    assert not queue.is_done("7_0")


def test_a_job_that_squeue_forgot_has_ended(queue):
    states = queue.read_info(b"7_0 RUNNING\n")
    assert states == {"7_0": {"State": "RUNNING"}, "7_1": {"State": "GONE"}}
    queue.read_info(b"7_0 RUNNING\n")
    assert queue.is_done("7_1")


def test_an_answer_that_does_not_come_ends_no_job(queue, monkeypatch):
    monkeypatch.setattr(submitted, "QUEUE", ("false",))
    queue.update()
    queue.update()
    assert not queue.is_done("7_0")


class Fleeting:
    """A job that was killed."""

    job_id = "7_1"
    state = "FAILED"

    class paths:
        stderr = "7_1.err"


def test_a_killed_job_does_not_hide_the_results_of_others(monkeypatch):
    def results(job):
        raise UncompletedJobError

    monkeypatch.setattr(submitted.SlurmJob, "results", results)
    with followed("submitit_slurm") as ends:
        (empty,) = submitted.SlurmJob.results(Fleeting())
        assert empty.return_value is None  # Hydra's sweeper reads it
    assert ends == ["job 7_1 left no result (state FAILED); its output: 7_1.err"]
    assert submitted.SlurmJob.results is results
    with pytest.raises(UncompletedJobError):
        submitted.SlurmJob.results(Fleeting())


@pytest.mark.parametrize(
    ("signals", "running", "again"),
    [
        ([signal.SIGUSR2], False, True),  # time limit, or preemption with a signal
        ([signal.SIGTERM], True, True),  # preemption with TERM: Slurm still means the job to run
        ([signal.SIGTERM], False, False),  # scancel
        ([signal.SIGINT], True, False),
    ],
)
def test_which_signals_queue_a_job_again(monkeypatch, signals, running, again):
    requested = []
    monkeypatch.setattr(submitted, "_is_preempted", lambda: running)
    before = signal.signal(signal.SIGUSR2, lambda number, frame: requested.append(number))
    try:
        assert queue_again(signals) is None
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert bool(requested) == again


def test_too_many_time_limits_are_the_reason_to_stop(monkeypatch):
    def refuse(number, frame):
        raise UncompletedJobError("Job not requeued because: timed-out too many times.")

    before = signal.signal(signal.SIGUSR2, refuse)
    try:
        assert queue_again([signal.SIGUSR2]) == "Job not requeued because: timed-out too many times."
    finally:
        signal.signal(signal.SIGUSR2, before)
