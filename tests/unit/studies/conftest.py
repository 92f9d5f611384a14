"""Synthetic run and study directories below the test's own folder."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from synthetic_runs import write_run, write_study


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    return partial(write_run, tmp_path)


@pytest.fixture
def make_study(tmp_path: Path) -> Callable[..., Path]:
    return partial(write_study, tmp_path)
