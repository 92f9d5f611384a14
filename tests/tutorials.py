"""Run the notebooks of docs/tutorials and store their outputs in them: `python tests/tutorials.py [NAME …]`."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "tutorials"
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
"""Environment of the kernels. The debugger of the kernel warns about frozen modules without the second one."""


def notebooks() -> list[Path]:
    """Return the notebooks in alphabetical order."""
    return sorted(FOLDER.glob("*.ipynb"))


def execute(path: Path, directory: Path) -> nbformat.NotebookNode:
    """Return a notebook with the outputs of its code. Raise CellExecutionError for a cell that fails.

    Args:
        path: the notebook.
        directory: working directory of its kernel, in which its runs are stored.
    """
    notebook = nbformat.read(path, as_version=4)
    os.environ |= ENVIRONMENT
    NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(directory)}}).execute()
    for cell in notebook.cells:
        # times of execution would change with every run
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", ()):
            # The text of a result names its directory, which is a temporary one; the HTML has its content.
            if "text/html" in output.get("data", {}):
                output.data.pop("text/plain", None)
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def main(names: list[str]) -> None:
    for path in notebooks():
        if names and path.stem not in names:
            continue
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as directory:
            notebook = execute(path, Path(directory))
        nbformat.write(notebook, path)
        print(f"{path.stem}: {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
