"""A slice of the fault campaign (`make faults`): every kind of fault, in a stage that trains and one that does not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

CAMPAIGN = Path(__file__).resolve().parents[1] / "campaign" / "faults.py"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the campaign reads /proc and mounts tmpfs")
def test_every_kind_of_fault_ends_equal_or_is_refused_with_an_explanation(tmp_path):
    page = tmp_path / "faults.md"
    options = ["--faults", "14", "--seed", "5", "--stages", "dpo", "best_of_n", "--workers", "2", "--out", str(page)]
    done = subprocess.run([sys.executable, str(CAMPAIGN), *options], capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    text = page.read_text()
    total = re.search(r"\*\*14 faults: (\d+) equal, (\d+) refused, 0 wrong, 0 lost, 0 unexplained, 0 left behind", text)
    assert total, text
    assert int(total[1]) >= 5  # a campaign in which nothing happens, or everything is refused, shows nothing
    assert int(total[2]) >= 2
    for kind in ("SIGKILL", "SIGTERM", "checkpoint damaged", "file of a finished stage damaged"):
        assert re.search(rf"^\| {kind} \| [1-9]", text, re.MULTILINE), kind
