"""Shared by all tests: one thread per process, no network, an environment and folders of their own."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from left_behind import changes, shared_state

# Variables that a test process keeps. All others are removed, so that a key, a Slurm job or a rank in the developer's
# shell decides nothing. RLHF_LAB_ are the settings of the tests themselves.
KEPT = {
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TMPDIR", "TZ", "CI", "VIRTUAL_ENV", "LD_LIBRARY_PATH"),
    *("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"),
}
KEPT_PREFIXES = ("LANG", "LC_", "PYTEST_", "RLHF_LAB_", "PIP_", "SSL_CERT_")
for name in list(os.environ):
    if name not in KEPT and not name.startswith(KEPT_PREFIXES):
        del os.environ[name]

os.environ.update(
    OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1", NO_COLOR="1"
)
import rlhf_lab  # noqa: E402  (after the environment is set)

# Modules that tests of several kinds import. pytest puts `tests/` and a test file's directory on the path, not these.
sys.path += map(str, sorted((Path(__file__).parent / "helpers").glob("[a-z]*")))

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
    """The directory of the package's source."""
    return Path(rlhf_lab.__file__).resolve().parent


@pytest.fixture(scope="session")
def shared_tmp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that is common to all workers of this test session."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    (base / "shared").mkdir(exist_ok=True)
    return base / "shared"


@pytest.fixture(scope="session", autouse=True)
def workplace(shared_tmp: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty working directory per worker and an empty home for all of them.

    Without it a test that plans a stage with the default `outputs` would see what `make demo` left there, and one that
    draws a figure would see what the developer's cache holds.
    """
    directory, home = tmp_path_factory.mktemp("workplace"), shared_tmp / "home"
    home.mkdir(exist_ok=True)
    before = Path.cwd()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        os.chdir(directory)
        yield directory
        os.chdir(before)


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
