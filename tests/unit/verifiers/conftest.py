"""The verifier of mathematics with its library, for the tests of answers and units."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rlhf_lab.rewards.verifiers.math import MathVerifier
from rlhf_lab.rewards.verifiers.settings import Math


@pytest.fixture(scope="package")
def verifier() -> Iterator[MathVerifier]:
    pytest.importorskip("math_verify", reason="pip install 'rlhf_lab[math]'")
    generated = MathVerifier(Math(answer_timeout_s=20))
    yield generated
    generated._symbolic.close()
