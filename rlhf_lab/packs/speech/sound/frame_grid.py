"""Grid of frames that all measurements on audio share.

The centre of frame t is at (t + ½) · hop, and N samples have N // hop frames. At 100 frames per second, four frames
are exactly one frame of a codec with 25 frames per second. Windows are zero-padded beyond the ends of a clip.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

HOP_SECONDS = 0.01


def without_offset(samples_N: NDArray[Any]) -> NDArray[np.float32]:
    """Return the samples minus their mean: a constant offset is inaudible, but has a level and repeats at any lag."""
    mean = samples_N.mean(dtype=np.float64) if len(samples_N) else 0.0
    return (samples_N - mean).astype(np.float32)


def hop_samples(rate: int, hop_seconds: float = HOP_SECONDS) -> int:
    return round(rate * hop_seconds)


def frames(samples_N: NDArray[Any], window: int, hop: int) -> NDArray[np.float32]:
    """Return a view of the samples in the window of each frame, (T, window), with zeros beyond the ends of the clip.

    `window` and `hop` are numbers of samples. A window must not be shorter than a hop.
    """
    count = len(samples_N) // hop
    if not count:
        return np.zeros((0, window), np.float32)
    # zeros before and after the clip, so that the first and the last frame have full windows
    before = first_start(window, hop)
    needed = (count - 1) * hop + window
    after = max(0, needed - before - len(samples_N))
    padded = np.pad(samples_N.astype(np.float32, copy=False), (before, after))
    # a strided view instead of a copy: windows overlap, so a copy would need several times the memory
    return np.lib.stride_tricks.sliding_window_view(padded, window)[::hop][:count]


def first_start(window: int, hop: int) -> int:
    """Return the number of samples by which the window of frame 0 starts before the clip."""
    return window // 2 - hop // 2
