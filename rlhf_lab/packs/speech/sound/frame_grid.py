"""The one grid of frames of everything that is measured on audio.

Frame t has its centre at (t + ½) · hop, and there are N // hop of them for N samples: at 100 frames a second, four
frames are exactly one frame of a codec with 25. Where a window reaches beyond the clip, it is cut off there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

HOP_SECONDS = 0.01


def hop_samples(rate: int, hop_seconds: float = HOP_SECONDS) -> int:
    return round(rate * hop_seconds)


def frame_count(samples: int, hop: int) -> int:
    return samples // hop


def frames(samples_N: NDArray[Any], window: int, hop: int) -> NDArray[np.float32]:
    """The samples under the window of each frame, (T, window), a view; zeros beyond the clip's ends.

    `window` and `hop` are numbers of samples; a window is at least as long as a hop.
    """
    count = frame_count(len(samples_N), hop)
    if not count:
        return np.zeros((0, window), np.float32)
    before = first_start(window, hop)
    needed = (count - 1) * hop + window
    after = max(0, needed - before - len(samples_N))
    padded = np.pad(samples_N.astype(np.float32, copy=False), (before, after))
    return np.lib.stride_tricks.sliding_window_view(padded, window)[::hop][:count]


def first_start(window: int, hop: int) -> int:
    """How many samples the window of frame 0 begins before the clip."""
    return window // 2 - hop // 2
