"""Reads one spreadsheet or PDF from standard input and writes its text: files.py runs this as a process of its own.

Libraries that read such files cannot be interrupted, and a file of a few KB can unpack to gigabytes. So this process
limits its own memory and CPU time, and whoever started it ends it at a deadline. It imports nothing of the package, so
that it starts quickly.
"""

from __future__ import annotations

import io
import resource
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, islice

MEMORY_BYTES = 2**30
CPU_S = 60
MAX_UNPACKED_BYTES = 128 * 2**20
"""Of all members of an .xlsx file, which is a zip archive."""
MAX_CELLS = 2_000_000
"""Empty ones between the first and the last of a row included; an empty row counts as one."""
MAX_CHARACTERS = 4_000_000
"""Of the text, which then ends with a note."""
MAX_GAP = 20
"""Longer runs of empty rows, or of empty cells in a row, are a note that says how many they are."""
CUT_OFF = "[the rest of the file is left out: it is too large]"


def spreadsheet(content: bytes) -> Iterator[str]:
    """Lines, sheet by sheet, a row a line, cells apart by tabs: values as they were last computed, not formulas."""
    import openpyxl

    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        unpacked_bytes = sum(member.file_size for member in archive.infolist())
    if unpacked_bytes > MAX_UNPACKED_BYTES:
        raise ValueError(f"it unpacks to {unpacked_bytes >> 20} MiB, and at most {MAX_UNPACKED_BYTES >> 20} are read")
    workbook = openpyxl.load_workbook(io.BytesIO(content), read_only=True, data_only=True)
    cells_left = MAX_CELLS
    for sheet in workbook.worksheets:
        yield f"Sheet: {sheet.title}"
        # rows then end at their last cell, and not at the width that the file claims
        sheet.reset_dimensions()
        empty_rows = 0
        for row in islice(sheet.iter_rows(values_only=True), cells_left):
            cells_left -= max(len(row), 1)
            if cells_left < 0:
                yield CUT_OFF
                return
            line = _row_text(row)
            if not line:
                empty_rows += 1
                continue
            yield from _empty(empty_rows, "rows")
            empty_rows = 0
            yield line
        if cells_left <= 0:
            yield CUT_OFF
            return


def _row_text(row: Sequence[object]) -> str:
    texts: list[str] = []
    for is_empty, cells in groupby(row, key=lambda cell: cell is None):
        values = list(cells)
        texts += _empty(len(values), "cells") if is_empty else [str(value) for value in values]
    return "\t".join(texts).rstrip("\t")


def _empty(count: int, noun: str) -> list[str]:
    """Texts that stand for so many empty rows or cells."""
    return [""] * count if count <= MAX_GAP else [f"[{count} empty {noun}]"]


def pdf(content: bytes) -> Iterator[str]:
    """The text of each page behind its number."""
    import pypdf

    for number, page in enumerate(pypdf.PdfReader(io.BytesIO(content)).pages, start=1):
        separator = "\n" if number > 1 else ""
        yield f"{separator}Page {number}\n{page.extract_text()}"


READERS: Mapping[str, Callable[[bytes], Iterator[str]]] = {".xlsx": spreadsheet, ".pdf": pdf}


def shortened(lines: Iterator[str]) -> Iterator[str]:
    """The lines up to `MAX_CHARACTERS`, and a note where they go on."""
    characters_left = MAX_CHARACTERS
    for line in lines:
        yield line[:characters_left]
        characters_left -= len(line) + 1
        if characters_left < 0:
            yield CUT_OFF
            return


def main(suffix: str) -> None:
    """Read a file of this suffix. Ends with status 1, and the reason as the only text, where it cannot be read."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        text = "\n".join(shortened(READERS[suffix](sys.stdin.buffer.read())))
        status = 0
    except MemoryError:
        text, status = f"reading it needs more than {MEMORY_BYTES >> 20} MiB of memory", 1
    except Exception as error:  # the libraries raise a dozen types for damaged files
        text, status = str(error) or type(error).__name__, 1
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    sys.stdout.flush()
    sys.exit(status)


if __name__ == "__main__":
    main(sys.argv[1])
