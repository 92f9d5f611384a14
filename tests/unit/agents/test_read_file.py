"""`rlhf_lab.packs.agents.gaia.read_file`: small files that unpack to much, and what a process may take to read one."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest

from rlhf_lab.core.tools import ToolError
from rlhf_lab.packs.agents.gaia import files, read_file

openpyxl = pytest.importorskip("openpyxl", reason="comes with rlhf_lab[gaia]")


def workbook(cells: dict[str, Any]) -> bytes:
    book, stream = openpyxl.Workbook(), io.BytesIO()
    book.active.title = "May"
    for position, value in cells.items():
        book.active[position] = value
    book.save(stream)
    return stream.getvalue()


def with_sheet(sheet: bytes) -> bytes:
    """A workbook whose first sheet has other XML."""
    source, stream = zipfile.ZipFile(io.BytesIO(workbook({"A1": 1}))), io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            target.writestr(name, sheet if name == "xl/worksheets/sheet1.xml" else source.read(name))
    return stream.getvalue()


def text_of(content: bytes) -> list[str]:
    return files.file_text("a.xlsx", content).split("\n")


def test_only_cells_that_are_there_are_written() -> None:
    """The last cell that a sheet can have: 1,048,576 rows of 16,384 columns lie before it."""
    sheet, *lines = text_of(workbook({"A1": "ship", "C1": 2, "A4": "Heron", "XFD1048576": "end"}))
    assert sheet == "Sheet: May"
    assert lines == ["ship\t\t2", "", "", "Heron", "[1048571 empty rows]", "[16383 empty cells]\tend"]


def test_short_gaps_stay_as_they_are() -> None:
    gap = "\t" * (read_file.MAX_GAP + 1)
    content = workbook({"A1": 1, "V1": 2, "A22": 3})
    assert text_of(content) == ["Sheet: May", f"1{gap}2", *[""] * 20, "3"]
    with pytest.raises(ToolError, match=r"a\.xlsx cannot be read"):
        text_of(content[:50])


@pytest.mark.slow
@pytest.mark.parametrize("row", [10**9, 10**15])
def test_a_row_beyond_every_sheet_ends(row: int) -> None:
    space = b'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
    sheet = b'<worksheet %s><sheetData><row r="%d"><c r="A%d"><v>1</v></c></row></sheetData></worksheet>'
    assert text_of(with_sheet(sheet % (space, row, row))) == ["Sheet: May", read_file.CUT_OFF]


def test_cells_have_a_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_file, "MAX_CELLS", 5)
    content = workbook({f"A{row}": row for row in range(1, 9)})
    assert list(read_file.spreadsheet(content)) == ["Sheet: May", "1", "2", "3", "4", "5", read_file.CUT_OFF]


def test_a_file_that_unpacks_to_much_is_not_unpacked() -> None:
    bomb = with_sheet(b" " * (read_file.MAX_UNPACKED_BYTES + 1))
    assert len(bomb) < 2**20
    with pytest.raises(ToolError, match=r"a\.xlsx cannot be read: it unpacks to 128 MiB, and at most 128 are read"):
        text_of(bomb)


def test_text_has_a_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_file, "MAX_CHARACTERS", 10)
    assert list(read_file.shortened(iter(["12345", "678901", "never"]))) == ["12345", "6789", read_file.CUT_OFF]


SUBSTITUTE = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("read_file", {path!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
def reader(content):
    {body}
    yield "text"
module.READERS = {{".xlsx": reader}}
module.main(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("import time; time.sleep(60)", r"reading it takes more than 1 s"),
        ("bytearray(3 * 2**30)", r"reading it needs more than 1024 MiB of memory"),
        ("import os; os.kill(os.getpid(), 9)", r"the process that read it ended with status -9"),
        ("raise KeyError('stream')", r"cannot be read: 'stream'"),
    ],
)
def test_the_reading_process_has_limits(
    body: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The production process with another reader, in place of a library that goes wrong."""
    script = tmp_path / "script.py"
    script.write_text(SUBSTITUTE.format(path=read_file.__file__, body=body))
    monkeypatch.setattr(files, "SCRIPT", script)
    if "sleep" in body:
        monkeypatch.setattr(files, "DEADLINE_S", 1.0)
    with pytest.raises(ToolError, match=message):
        files.file_text("a.xlsx", b"")
