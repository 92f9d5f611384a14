"""Output of the laboratory in the kernel of a notebook."""

from __future__ import annotations

import nbformat
import pytest
from tutorials import execute

pytestmark = pytest.mark.slow
QUIET = """
import os
from pathlib import Path
from rlhf_lab.core.console import console
from rlhf_lab.notebook import _as_html, _silence

with _silence(), console.logged(Path()):
    console.print("not shown")
with console.logged(Path()):
    console.print("shown")
assert "of a result" in _as_html(["of a result"])
if not os.fork():
    console.print("printed by a forked process")
    os._exit(0)
_ = os.wait()
"""


def test_output_is_text_that_can_be_silenced(tmp_path) -> None:
    path = tmp_path / "cell.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(QUIET)]), path)
    (cell,) = execute(path, tmp_path).cells
    assert {output.output_type for output in cell.outputs} == {"stream"}
    text = "".join(output.text for output in cell.outputs)
    assert "shown\n" in text and "not shown" not in text and "of a result" not in text
    assert "not shown" in (tmp_path / "log.txt").read_text()
