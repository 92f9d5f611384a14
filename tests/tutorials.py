"""Run the notebooks of docs and store their outputs in them: `python tests/tutorials.py [NAME …]`."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

DOCS = Path(__file__).resolve().parent.parent / "docs"
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
"""Environment of the kernels. The debugger of the kernel warns about frozen modules without the second one."""


def notebooks() -> list[Path]:
    """Return the notebooks of the core and of the packs, in alphabetical order of their files."""
    return sorted([*DOCS.glob("tutorials/*.ipynb"), *DOCS.glob("*/tutorials/*.ipynb")])


def execute(path: Path, directory: Path) -> nbformat.NotebookNode:
    """Return a notebook with the outputs of its code. Raise CellExecutionError for a cell that fails.

    Args:
        path: the notebook.
        directory: working directory of its kernel, in which its runs are stored.
    """
    notebook = nbformat.read(path, as_version=4)
    os.environ |= ENVIRONMENT
    # `python` in a cell of shell commands is the one that runs this.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(directory)}}).execute()
    for cell in notebook.cells:
        # times of execution would change with every run
        cell.metadata.pop("execution", None)
        if "outputs" in cell:
            cell.outputs = joined_streams(cell.outputs)
        for output in cell.get("outputs", ()):
            # The text of a result names its directory, which is a temporary one; the HTML has its content.
            if "text/html" in output.get("data", {}):
                output.data.pop("text/plain", None)
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def joined_streams(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Return outputs with the pieces of printed text joined, and without the colours of a terminal.

    The pieces depend on timing, and neither the documentation site nor a diff shows colours.
    """
    joined: list[nbformat.NotebookNode] = []
    for output in outputs:
        if output.output_type != "stream":
            joined.append(output)
        elif joined and joined[-1].output_type == "stream" and joined[-1].name == output.name:
            joined[-1].text += output.text
        else:
            joined.append(output)
    for output in joined:
        if output.output_type == "stream":
            lines = re.sub(r"\x1b\[[0-9;]*m", "", output.text).splitlines()
            output.text = "\n".join(line.rstrip() for line in lines) + "\n"
    return joined


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
