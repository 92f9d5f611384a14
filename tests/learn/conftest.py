"""Fixtures of several learning tests, trained once for all test processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from support import ONE_LAYER, once, planned, toy_rows, write_pairs

from rlhf_lab.stages.execute import execute


@pytest.fixture(scope="session")
def toy(shared_tmp: Path) -> tuple[Path, Path]:
    """(pairs whose chosen reply is the longer one, a policy that imitates both sides a little)."""

    def stage_in(directory: Path):
        fixed = ("algorithm.optimizer=adamw", "algorithm.batch_size=16", "checkpoint.every_steps=0", *ONE_LAYER)
        data = f"data.path={directory / 'longer.jsonl'}"
        return planned("sft", "data=pairs", data, *fixed, f"outputs={directory}")

    def train(directory: Path) -> None:
        directory.mkdir()
        write_pairs(directory / "longer.jsonl", toy_rows(200))
        execute(stage_in(directory))

    directory = once(shared_tmp / "toy", train)
    return directory / "longer.jsonl", Path(stage_in(directory).model)


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if "/learn/" in item.path.as_posix():
            item.add_marker(pytest.mark.learn)
