"""Shared by all tests: one thread per process, no network, deterministic property tests."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from left_behind import changes, shared_state

os.environ.update(
    OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1", NO_COLOR="1"
)
# Workers inherit a width of 80 columns, which readline sets in the process that starts them. Logs have no width.
os.environ.pop("COLUMNS", None)
os.environ.pop("LINES", None)

import rlhf_lab

# Hundreds of thousands of objects of imported modules and collected tests stay to the end. Walking them again and again
# takes a seventh of the tests' time: none are walked while tests are collected, and none of those afterwards.
gc.disable()
COLLECT_EVERY = (50_000, 20, 50)
"""Thresholds of Python's collector of cycles, which are 700, 10 and 10 otherwise."""

# A file is on disk before its name is: that costs 10 ms each time, and no test cuts the power. Killing a process loses
# nothing of what it has written. Processes that tests start flush for real.
os.fsync = lambda descriptor: None

ROOT = Path(rlhf_lab.__file__).resolve().parents[1]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

try:
    from hypothesis import settings

    settings.register_profile("lab", derandomize=True, deadline=None, database=None)
    settings.load_profile("lab")
except ImportError:  # property tests import it themselves and say what is missing
    pass


@pytest.fixture(scope="module", autouse=True)
def leaves_the_process_as_it_was() -> Iterator[None]:
    """Fail where a module leaves state behind that decides what later ones compute; see left_behind.py."""
    before = shared_state()
    yield
    left = changes(before, shared_state())
    assert not left, "this module left state of the process changed for all later tests: " + "; ".join(left)


@pytest.fixture(scope="session")
def package() -> Path:
    """The folder of the package's source."""
    return Path(rlhf_lab.__file__).resolve().parent


@pytest.fixture(scope="session")
def shared_tmp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of this test session share."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    (base / "shared").mkdir(exist_ok=True)
    return base / "shared"


@pytest.fixture(scope="session")
def python() -> str:
    return sys.executable


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_EVERY)
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Tests of one file go to one worker, which makes the file's fixtures once, unless they name another group."""
    for item in items:
        if not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.path.relative_to(ROOT).as_posix()))
