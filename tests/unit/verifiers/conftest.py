from __future__ import annotations

import pytest

from rlhf_lab.rewards.verifiers.math import MathVerifier
from rlhf_lab.rewards.verifiers.settings import Math


@pytest.fixture(scope="session")
def verifier():
    """The mathematics verifier with its library."""
    pytest.importorskip("math_verify", reason="pip install 'rlhf_lab[math]'")
    generated = MathVerifier(Math(answer_timeout_s=20))
    yield generated
    generated._symbolic.close()
