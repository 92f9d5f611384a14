"""What several numeric tests start from."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import ONE_LAYER, SMALL_WORLD, planned

from rlhf_lab.execute import execute


@pytest.fixture(scope="session")
def policy(tmp_path_factory) -> Path:
    """An SFT policy to start from."""
    out = tmp_path_factory.mktemp("policy")
    stage = planned("sft", *SMALL_WORLD, *ONE_LAYER, "algorithm.epochs=1", f"outputs={out}", "checkpoint.every_steps=0")
    execute(stage)
    return Path(stage.model)
