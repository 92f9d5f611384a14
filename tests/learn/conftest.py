"""What several learning tests start from, trained once for all test processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from support import ONE_LAYER, once, planned, toy_rows, write_pairs

from rlhf_lab.stages.execute import execute


@pytest.fixture(scope="session")
def toy(shared_tmp: Path) -> tuple[Path, Path]:
    """(pairs whose chosen reply is the longer one, a policy that imitates both sides a little)."""

    def stage_in(folder: Path):
        fixed = ("algorithm.optimizer=adamw", "algorithm.batch_size=16", "checkpoint.every_steps=0", *ONE_LAYER)
        data = f"data.path={folder / 'longer.jsonl'}"
        return planned("sft", "data=pairs", data, *fixed, f"outputs={folder}")

    def train(folder: Path) -> None:
        folder.mkdir()
        write_pairs(folder / "longer.jsonl", toy_rows(200))
        execute(stage_in(folder))

    folder = once(shared_tmp / "toy", train)
    return folder / "longer.jsonl", Path(stage_in(folder).model)


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if "/learn/" in item.path.as_posix():
            item.add_marker(pytest.mark.learn)
