"""Pairs on disk read as a list in memory does."""

from __future__ import annotations

import pytest

from rlhf_lab.core.types import Pair
from rlhf_lab.data.pair_file import PairFile

PAIRS = [Pair(f"p{i} \u2028 ü", f"chosen\n{i}", "", {"n": i}) for i in range(5)]


def test_it_is_a_sequence():
    file = PairFile()
    for pair in PAIRS[:3]:
        file.append(pair)
    assert list(file) == PAIRS[:3]
    for pair in PAIRS[3:]:  # what is appended after the first look-up is there too
        file.append(pair)
    assert len(file) == 5 and file[-1] == PAIRS[-1] and file[1:4:2] == PAIRS[1:4:2]
    with pytest.raises(IndexError, match="pair 5 of 5"):
        file[5]
