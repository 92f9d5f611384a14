"""Positions of the windows of frames."""

import numpy as np
import pytest

from rlhf_lab.packs.speech.sound.frame_grid import first_start, frame_count, frames, hop_samples


def test_windows_lie_around_the_centres_of_hops():
    """Windows of 6 samples, every 2: centres at 1, 3, 5, 7; zeros beyond the clip."""
    expected = [
        [0, 0, 1, 2, 3, 4],
        [1, 2, 3, 4, 5, 6],
        [3, 4, 5, 6, 7, 8],
        [5, 6, 7, 8, 0, 0],
    ]
    np.testing.assert_array_equal(frames(np.arange(1, 9), window=6, hop=2), expected)
    assert first_start(6, 2) == 2


@pytest.mark.parametrize("samples", range(30))
def test_there_is_a_frame_for_every_whole_hop(samples):
    found_TW = frames(np.ones(samples), window=9, hop=4)
    assert found_TW.shape == (samples // 4, 9) and frame_count(samples, 4) == samples // 4
    # each window has the samples of its own hop
    assert (found_TW[:, 2:6] == 1).all()


def test_hops_of_other_rates():
    assert (hop_samples(16000), hop_samples(22050), hop_samples(16000, 0.04)) == (160, 220, 640)
