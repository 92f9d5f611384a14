"""Script that reads one spreadsheet or PDF from standard input and writes its text; files.py runs it in a process.

Libraries that read such files cannot be interrupted, and a file of a few KB can unpack to gigabytes. This process
therefore limits its own memory and CPU time, and the parent process kills it at a deadline. It imports nothing of the
package, so that it starts quickly.
"""

from __future__ import annotations

import io
import resource
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, islice

MEMORY_BYTES = 2**30  # limits of the process that reads a file
CPU_S = 60
MAX_UNPACKED_BYTES = 128 * 2**20
"""Maximum total size of all members of an .xlsx file, which is a zip archive."""
MAX_CELLS = 2_000_000
"""Maximum number of cells, including empty ones before the last cell of a row; an empty row counts as one cell."""
MAX_CHARACTERS = 4_000_000
"""Maximum number of characters of the text; a longer text ends with a note."""
MAX_GAP = 20
"""Maximum number of consecutive empty rows, or empty cells in a row, that are written as such. A longer run is replaced
by a note with its length."""
CUT_OFF = "[the rest of the file is left out: it is too large]"


def spreadsheet(content: bytes) -> Iterator[str]:
    """Yield lines sheet by sheet: one line per row, tabs between cells, last computed values instead of formulas."""
    import openpyxl

    # The sizes in the zip directory are checked first, because unpacking may fill the memory.
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        unpacked_bytes = sum(member.file_size for member in archive.infolist())
    if unpacked_bytes > MAX_UNPACKED_BYTES:
        raise ValueError(f"it unpacks to {unpacked_bytes >> 20} MiB, and at most {MAX_UNPACKED_BYTES >> 20} are read")
    workbook = openpyxl.load_workbook(io.BytesIO(content), read_only=True, data_only=True)
    cells_left = MAX_CELLS
    for sheet in workbook.worksheets:
        yield f"Sheet: {sheet.title}"
        # Without this, each row would be padded to the width that the file claims, which may be enormous.
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
    return [""] * count if count <= MAX_GAP else [f"[{count} empty {noun}]"]


def pdf(content: bytes) -> Iterator[str]:
    """Yield the text of each page, after its page number."""
    import pypdf

    for number, page in enumerate(pypdf.PdfReader(io.BytesIO(content)).pages, start=1):
        separator = "\n" if number > 1 else ""
        yield f"{separator}Page {number}\n{page.extract_text()}"


READERS: Mapping[str, Callable[[bytes], Iterator[str]]] = {".xlsx": spreadsheet, ".pdf": pdf}


def shortened(lines: Iterator[str]) -> Iterator[str]:
    """Yield lines up to `MAX_CHARACTERS` characters, followed by a note if there are more."""
    characters_left = MAX_CHARACTERS
    for line in lines:
        yield line[:characters_left]
        characters_left -= len(line) + 1
        if characters_left < 0:
            yield CUT_OFF
            return


def main(suffix: str) -> None:
    """Read a file with this suffix. If it cannot be read, write only the reason and exit with status 1."""
    # Soft and hard limits are equal, so that a library cannot raise them again.
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    # no core dumps, which may be large
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        lines = READERS[suffix](sys.stdin.buffer.read())
        text = "\n".join(shortened(lines))
        status = 0
    except MemoryError:
        text, status = f"reading it needs more than {MEMORY_BYTES >> 20} MiB of memory", 1
    except Exception as error:  # for damaged files, the libraries raise many different types
        text, status = str(error) or type(error).__name__, 1
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    sys.stdout.flush()
    sys.exit(status)


if __name__ == "__main__":
    main(sys.argv[1])
