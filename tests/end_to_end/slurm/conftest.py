"""One Slurm for all tests of this folder, on one worker of the test session."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import Cluster, cluster, missing

from rlhf_lab.core.files import read_json

HERE = Path(__file__).resolve().parent
LAUNCHERS = HERE.parents[2] / "launchers"


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    reason = missing()
    if reason:
        pytest.skip(f"no Slurm: {reason}")
    with cluster() as generated:
        yield generated


@dataclass
class Site:
    """A working directory on the cluster, whose disk is slow until `hurry`.

    Attributes:
        directory: where jobs are submitted; outputs/ is below it.
        arguments: of `python -m rlhf_lab`: an SFT of some forty steps that saves after each.
    """

    slurm: Cluster
    directory: Path
    arguments: list[str]

    @property
    def env(self) -> dict[str, str]:
        return {
            "PYTHONPATH": os.pathsep.join([str(HERE / "slow_disk"), os.environ["PYTHONPATH"]]),
            "SLOW_DISK": str(self.directory / "slow"),
            "RLHF_LAB_SETUP": str(self.directory / "setup.sh"),
            "RLHF_LAB_PROCESSES_PER_NODE": "2",
        }

    def hurry(self) -> None:
        (self.directory / "slow").unlink(missing_ok=True)

    def submit(self, script: str, *options: str) -> str:
        """Submit a script of launchers/ with our arguments; the job's id."""
        options = ("--time=10", "--mem=1G", *options)
        return self.slurm.submit(*options, LAUNCHERS / script, *self.arguments, cwd=self.directory, env=self.env)

    def runs(self) -> list[Path]:
        return sorted((self.directory / "outputs" / "runs").glob("sft-*"))

    def results(self) -> list[dict[str, Any]]:
        return [read_json(run / "result.json") or {} for run in self.runs()]

    def training(self, count: int = 1) -> bool:
        """Return True if `count` runs have taken two steps or more."""
        logs = [run / "metrics.jsonl" for run in self.runs()]
        return sum(log.exists() and log.read_bytes().count(b"\n") >= 2 for log in logs) >= count

    def printed(self, job: str) -> str:
        return (self.directory / f"slurm-{job}.out").read_text()

    def parts(self) -> list[Path]:
        """Files that were being written when something ended."""
        return list(self.directory.rglob("*.part"))


@pytest.fixture
def site(slurm: Cluster, tmp_path: Path, sized: Callable[[str], list[str]]) -> Site:
    (tmp_path / "slow").touch()
    (tmp_path / "setup.sh").write_text(f"RLHF_LAB_PYTHON={sys.executable}${{NOT_SET}}\n")
    return Site(slurm, tmp_path, ["+recipe=sft", *sized("sft"), "algorithm.epochs=4"])


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if "/end_to_end/slurm/" in item.path.as_posix():
            item.add_marker(pytest.mark.slurm)
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.xdist_group("slurm"))
