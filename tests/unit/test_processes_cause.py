"""The process that is named as the cause when processes that train together end."""

import signal

import pytest

from rlhf_lab.launch.processes import _cause


@pytest.mark.parametrize(
    ("failed", "cause"),
    [
        ({}, None),
        ({1: 1, 0: 1}, 1),  # the first that was seen
        ({0: 1, 1: -signal.SIGKILL}, 1),  # 0 reported a lost connection before the end of 1 was seen
        ({0: 1, 1: -signal.SIGABRT}, 0),  # 1 aborted because its peer was gone
        ({0: -signal.SIGABRT}, 0),
    ],
)
def test_the_cause_is_the_first_to_fail_unless_a_signal_ended_another(failed, cause):
    assert _cause(failed) == cause
