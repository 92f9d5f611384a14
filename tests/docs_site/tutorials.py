"""Pages of the notebooks in docs/tutorials and docs/PACK/tutorials: their text, code and stored outputs as Markdown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from docs_site import links
from docs_site.page import ROOT, Page

DOCS = ROOT / "docs"


def pages() -> list[Page]:
    """Return a page for every notebook."""
    return [
        notebook_page(path) for path in sorted([*DOCS.glob("tutorials/*.ipynb"), *DOCS.glob("*/tutorials/*.ipynb")])
    ]


def notebook_page(path: Path) -> Page:
    """Return the page of a notebook, with a link to the notebook itself."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    blocks = [block for cell in cells for block in _blocks(cell)]
    file = path.relative_to(ROOT).as_posix()
    title = blocks[0].partition("\n")[0].lstrip("# ")
    origin = f"This page is the notebook `{file}`, as it was last run."
    text = "\n\n".join([blocks[0], origin, *blocks[1:]]) + "\n"
    return Page(links.home(file), title, text, base=path.parent.relative_to(ROOT).as_posix())


def _blocks(cell: Mapping[str, Any]) -> Iterator[str]:
    """Yield the source of a cell and its outputs as Markdown."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        yield from _output(output)


def _output(output: Mapping[str, Any]) -> Iterator[str]:
    """Yield an output: HTML and SVG as they are, text as a block of code."""
    if output["output_type"] == "stream":
        yield _as_text("".join(output["text"]))
        return
    data = output["data"]
    if "text/html" in data:
        html = "".join(data["text/html"])
        # Tables of pandas come with a style of their own; the site has one.
        html = re.sub(r"<style scoped>.*?</style>", "", html, flags=re.S)
        lines = [line for line in html.split("\n") if line.strip()] if "<pre" not in html else [html]
        yield '<div class="output">\n' + "\n".join(lines) + "\n</div>"
    elif "image/svg+xml" in data:
        # Markdown ends a block of HTML at an empty line.
        lines = [line for line in "".join(data["image/svg+xml"]).split("\n") if line.strip()]
        yield '<div class="output">\n' + "\n".join(lines) + "\n</div>"
    else:
        yield _as_text("".join(data["text/plain"]))


def _as_text(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```"
