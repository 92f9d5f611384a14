"""The peak of a stage is that of the stage, not of what ran before it in the same process."""

from __future__ import annotations

import sys

import pytest
import torch

from rlhf_lab.training.run import peak_gib, reset_peak


@pytest.mark.skipif(sys.platform != "linux", reason="the resident set's peak is read from /proc")
def test_the_peak_starts_anew():
    block = torch.ones(64 * 2**20)  # 0.25 GiB
    high = peak_gib()
    del block
    reset_peak()
    low = peak_gib()
    assert high is not None and low is not None
    assert low < high - 0.15
