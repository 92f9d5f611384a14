"""`--help` by itself: the text that Hydra would print, without importing it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support import command_inside

from rlhf_lab.config import inventory


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_by_itself_imports_neither_hydra_nor_numpy(word):
    code = (
        f"import sys; sys.argv = ['rlhf_lab', {word!r}]\n"
        "from rlhf_lab.__main__ import main\n"
        "main()\n"
        "heavy = {'torch', 'numpy', 'hydra', 'omegaconf', 'antlr4', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "best_of_n, " in done.stdout and "recipe/study: " in done.stdout and "buffers, " in done.stdout


def test_it_is_what_hydra_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    status, _ = command_inside(tmp_path, "--help")  # through main.py, which leaves --help to Hydra
    printed = capsys.readouterr().out
    assert status == 0
    assert printed.rstrip("\n") == inventory.overview().rstrip("\n")
