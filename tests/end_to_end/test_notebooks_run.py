"""Every notebook of docs/tutorials runs from its first to its last cell."""

from __future__ import annotations

from pathlib import Path

import pytest
from tutorials import execute, notebooks

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    notebook = execute(path, tmp_path)
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")
