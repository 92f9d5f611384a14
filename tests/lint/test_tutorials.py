"""The notebooks of docs/tutorials: what they run, and that their stored outputs are those of their code."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from tutorials import joined_streams, notebooks

from rlhf_lab import run

NOTEBOOKS = pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
MAX_BYTES = 200_000


def code_cells(path: Path) -> list[Any]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


@NOTEBOOKS
def test_every_cell_was_run_in_order_and_none_failed(path: Path) -> None:
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "run `make tutorials`"
    outputs = [output for cell in cells for output in cell.outputs]
    assert outputs and not [output for output in outputs if output.output_type == "error"]


@NOTEBOOKS
def test_a_notebook_is_small_and_names_no_directory_of_the_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text) <= MAX_BYTES
    assert not re.search(r"/tmp/|/home/|/root/|/work/", text)


def test_printed_text_is_stored_in_one_piece_without_colours() -> None:
    pieces = [nbformat.v4.new_output("stream", text=text) for text in ("\x1b[1mbo", "ld\x1b[0m   \n", "end")]
    errors = nbformat.v4.new_output("stream", name="stderr", text="careful")
    joined = joined_streams([*pieces, errors])
    assert [(output.name, output.text) for output in joined] == [("stdout", "bold\nend\n"), ("stderr", "careful\n")]


@NOTEBOOKS
def test_links_lead_to_files(path: Path) -> None:
    cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"]
    for link in re.findall(r"\]\(([^)#]+)", "\n".join(cells)):
        assert link.startswith("https://") or (path.parent / link).is_file(), link


@NOTEBOOKS
def test_code_is_python_and_calls_run(path: Path) -> None:
    sources = [cell.source for cell in code_cells(path) if not cell.source.startswith("%%")]
    calls = [
        node.func.id
        for source in sources
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    assert run.__name__ in calls
