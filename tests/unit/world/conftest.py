from __future__ import annotations

import pytest

from rlhf_lab.environments.annotator import Annotator
from rlhf_lab.environments.dialogue.world import DialogueWorld

ANNOTATOR = Annotator(length_bias=0.6, affirmation_bias=0.5, closing_bias=0.3, temperature=0.7)


@pytest.fixture(scope="session")
def world() -> DialogueWorld:
    """The full world: 6 × 4 × 5 = 120 facts."""
    return DialogueWorld(domains=6, topics=4, attributes=5, seed=0, annotator=ANNOTATOR)


@pytest.fixture(scope="session")
def small() -> DialogueWorld:
    return DialogueWorld(domains=3, topics=3, attributes=4, seed=0, annotator=ANNOTATOR)
