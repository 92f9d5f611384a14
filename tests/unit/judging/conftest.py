"""A judge service on this machine, and the SDKs that ask it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from judge_server import MODELS, JudgeServer


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    with JudgeServer() as running:
        yield running


@pytest.fixture(params=sorted(MODELS))
def kind(request: pytest.FixtureRequest) -> str:
    return request.param
