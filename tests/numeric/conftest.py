"""Fixtures of several numeric tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import doctor_models
import pytest
from support import ONE_LAYER, SMALL_WORLD, planned

from rlhf_lab.doctor.subject import ExaminedModel
from rlhf_lab.stages.execute import execute


@pytest.fixture(scope="session")
def policy(tmp_path_factory) -> Path:
    """An SFT policy to start from."""
    out = tmp_path_factory.mktemp("policy")
    stage = planned("sft", *SMALL_WORLD, *ONE_LAYER, "algorithm.epochs=1", f"outputs={out}", "checkpoint.every_steps=0")
    execute(stage)
    return Path(stage.model)


@pytest.fixture(scope="session")
def reward_model(policy, tmp_path_factory) -> Path:
    """A reward model that starts from that policy."""
    out = tmp_path_factory.mktemp("reward")
    small = ("algorithm.epochs=1", "algorithm.on_policy_fraction=0", "checkpoint.every_steps=0")
    stage = planned("reward_model", *SMALL_WORLD, *ONE_LAYER, *small, f"needs.policy={policy}", f"outputs={out}")
    execute(stage)
    return Path(stage.model)


@pytest.fixture(scope="session")
def folders(tmp_path_factory) -> dict[str, Path]:
    """Checkpoints for the doctor; see `doctor_models.save_all`."""
    return doctor_models.save_all(tmp_path_factory.mktemp("models"))


@pytest.fixture
def make(folders, tmp_path_factory) -> Callable[..., ExaminedModel]:
    """A subject of the doctor: family, then overrides of the command."""
    return lambda family, *overrides: doctor_models.load(folders, tmp_path_factory.mktemp("work"), family, *overrides)
