"""Random streams of the worlds: equal in every process, and independent for each purpose and split."""

from __future__ import annotations

from zlib import crc32

import numpy as np

from rlhf_lab.environments.streams import random_stream


def test_a_stream_depends_on_its_seeds_purpose_and_split():
    first = random_stream([3, 5], "pairs", "train").integers(2**62, size=4)
    # the documented seed, so that corpora stay the same when this module changes
    expected = np.random.default_rng([3, 5, crc32(b"pairs/train")]).integers(2**62, size=4)
    assert first.tolist() == expected.tolist()
    others = [([3, 6], "pairs", "train"), ([3, 5], "labels", "train"), ([3, 5], "pairs", "test")]
    for seeds, purpose, split in others:
        assert (random_stream(seeds, purpose, split).integers(2**62, size=4) != first).all()
