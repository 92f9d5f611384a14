"""Attachments as text: plain files as they are, spreadsheets as rows, PDF by page."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import PurePosixPath
from typing import Any

from rlhf_lab.core.errors import OPTIONAL, MissingDependency
from rlhf_lab.core.tools import ToolError

PLAIN = (".txt", ".md", ".csv", ".tsv", ".json", ".jsonl", ".py", ".xml", ".html", ".yaml", ".yml")


def file_text(name: str, content: bytes) -> str:
    """The text of an attachment.

    Raises ToolError where its form is not read, it is damaged, or a library is missing.
    """
    suffix = PurePosixPath(name).suffix.lower()
    reader = READERS.get(suffix)
    if reader is None:
        raise ToolError(f"error: {name} cannot be read as text; readable are {', '.join(READERS)}")
    try:
        return reader(content)
    except MissingDependency as error:
        raise ToolError(f"error: {name}: {error}") from error
    except Exception as error:  # the libraries raise a dozen types for damaged files
        raise ToolError(f"error: {name} is damaged: {str(error) or type(error).__name__}") from error


def is_readable(name: str) -> bool:
    """Whether files of this form are read, given the libraries."""
    return PurePosixPath(name).suffix.lower() in READERS


def _plain(content: bytes) -> str:
    for encoding in ("utf-8-sig", "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "cp1252"):
        try:
            return content.decode(encoding).replace("\r\n", "\n")
        except UnicodeDecodeError:
            continue
    return content.decode("utf-8", "replace")


def _spreadsheet(content: bytes) -> str:
    """Sheet by sheet, a row a line, cells apart by tabs: values as they were last computed, not formulas."""
    openpyxl = _library("openpyxl")
    workbook = openpyxl.load_workbook(io.BytesIO(content), read_only=True, data_only=True)
    lines = []
    for sheet in workbook.worksheets:
        lines.append(f"Sheet: {sheet.title}")
        for row in sheet.iter_rows(values_only=True):
            lines.append("\t".join("" if cell is None else str(cell) for cell in row).rstrip("\t"))
    return "\n".join(lines)


def _pdf(content: bytes) -> str:
    pypdf = _library("pypdf")
    pages = pypdf.PdfReader(io.BytesIO(content)).pages
    return "\n\n".join(f"Page {number}\n{page.extract_text()}" for number, page in enumerate(pages, start=1))


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise MissingDependency(*OPTIONAL[name]) from None


READERS: Mapping[str, Callable[[bytes], str]] = {
    **dict.fromkeys(PLAIN, _plain),
    ".xlsx": _spreadsheet,
    ".pdf": _pdf,
}
