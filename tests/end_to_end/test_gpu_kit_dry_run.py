"""A dry run of the GPU kit: each block at tiny size on the CPU, and the shorter ones on a simulated GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

KIT = Path(__file__).parents[1] / "gpu" / "run.py"
BLOCKS = ("numeric", "memory", "speed", "recipes", "resume", "transfer")
# Blocks are shared between the test processes: together they take several minutes.
GROUPED = [pytest.param(name, marks=[pytest.mark.xdist_group(f"gpu kit {name}"), pytest.mark.long]) for name in BLOCKS]
pytestmark = pytest.mark.slow


def run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, str(KIT), *arguments], capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("block", GROUPED)
def test_every_case_of_a_block_runs_on_the_cpu(tmp_path, block):
    out = run(block, "--device", "cpu", "--tiny", "--results", str(tmp_path / "results"), "--scratch", str(tmp_path))
    assert f"{block}: " in out
    page = (tmp_path / "results" / f"{block}.md").read_text()
    assert "written, not run" not in page


@pytest.mark.long
@pytest.mark.xdist_group("gpu kit simulated")
@pytest.mark.parametrize("block", ["numeric", "memory", "speed"])
def test_every_case_of_a_block_runs_on_the_simulated_gpu(tmp_path, block):
    run(block, "--device", "cudasim", "--tiny", "--results", str(tmp_path / "results"), "--scratch", str(tmp_path))


def test_the_page_of_what_has_run_is_up_to_date():
    run("page", "--check")
