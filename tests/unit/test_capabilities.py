"""Rules of `core/capabilities.py` for met needs: items of several flags, joined flags, and what data lack."""

from __future__ import annotations

import pytest

from rlhf_lab.core.capabilities import Capability, missing, reads

PAIRS, UNPAIRED, TEXT, NOTHING = Capability.PAIRS, Capability.UNPAIRED, Capability.TEXT, Capability(0)


@pytest.mark.parametrize(
    ("requires", "capability", "met"),
    [
        ((PAIRS,), PAIRS, True),
        ((TEXT,), PAIRS, False),
        ((TEXT, PAIRS), PAIRS, True),  # one item suffices
        ((PAIRS | UNPAIRED,), UNPAIRED, True),  # any flag of an item suffices
        ((PAIRS,), PAIRS | UNPAIRED, True),  # any of the flags that are offered
        ((PAIRS,), TEXT | UNPAIRED, False),
        ((), PAIRS, False),
        ((PAIRS,), NOTHING, False),
    ],
)
def test_an_item_that_reads_a_capability_is_one_that_it_meets(requires, capability, met):
    assert reads(requires, capability) is met
    assert (len(missing(requires, capability)) < len(requires)) is met


def test_every_item_has_to_be_met():
    assert missing((TEXT, PAIRS | UNPAIRED), TEXT | UNPAIRED) == []
    assert missing((TEXT, PAIRS | UNPAIRED), UNPAIRED) == [TEXT]
    assert missing((TEXT, PAIRS | UNPAIRED), NOTHING) == [TEXT, PAIRS | UNPAIRED]
