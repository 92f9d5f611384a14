"""The tools of a question: search, open_page, read_file, calculator, python."""

from __future__ import annotations

import sys

import pytest

from rlhf_lab.core.tools import Call, Tool, ToolError, call_tool
from rlhf_lab.packs.agents.gaia import files
from rlhf_lab.packs.agents.gaia.search import PageIndex, WebPage
from rlhf_lab.packs.agents.gaia.tools import PART_CHARACTERS, question_tools

PAGES = [
    WebPage("https://a.example/heron", "Heron", "A grey bird that stands in shallow water."),
    WebPage("https://a.example/gull", "Gull", "A white bird. It follows ships and steals fish."),
    WebPage("https://a.example/ships", "Ships of the line", "Ships ships ships."),
    WebPage("https://a.example/long", "Long", "x" * (2 * PART_CHARACTERS + 10)),
]
CONTENT = {"log.csv": b"ship,day\nHeron,3\n", "photo.png": b"\x89PNG", "empty.txt": b""}


@pytest.fixture
def tools() -> dict[str, Tool]:
    generated = question_tools(
        provider=PageIndex(PAGES),
        files=list(CONTENT),
        read=CONTENT.__getitem__,
        run_code=lambda code: f"ran {len(code)}",
    )
    return {tool.name: tool for tool in generated}


def call(tools: dict[str, Tool], tool: str, **arguments: object) -> Call:
    return call_tool(tools, tool, arguments)


def test_search_ranks_by_the_rarer_word_and_shows_where(tools: dict[str, Tool]) -> None:
    result = call(tools, "search", query="white bird").result
    assert result.splitlines()[0] == "1. Gull" and result.index("/gull") < result.index("/heron")
    assert "steals fish" in result


def test_search_without_matches_is_no_error(tools: dict[str, Tool]) -> None:
    assert call(tools, "search", query="volcano") == Call("search", {"query": "volcano"}, "no results")
    assert call(tools, "search", query="of the").result == "no results"
    assert call(tools, "search", query="  ").failed


def test_search_is_deterministic_whatever_the_order_of_pages() -> None:
    paired_bases = [WebPage(f"https://a.example/{name}", "Twin", "the same text") for name in "cab"]
    for pages in (paired_bases, paired_bases[::-1]):
        assert [hit.url[-1] for hit in PageIndex(pages, results=2).search("same text")] == ["a", "b"]


def test_open_page_takes_addresses_as_models_write_them(tools: dict[str, Tool]) -> None:
    assert call(tools, "open_page", url=" https://a.example/gull/#top").result.startswith("Gull\n\nA white")
    missing = call(tools, "open_page", url="https://a.example/owl")
    assert missing.failed and "no page at https://a.example/owl" in missing.result


def test_long_pages_come_in_parts(tools: dict[str, Tool]) -> None:
    url = "https://a.example/long"
    assert call(tools, "open_page", url=url).result.endswith("\n[part 1 of 3]")
    assert call(tools, "open_page", url=url, part="3").result == "x" * 16 + "\n[part 3 of 3]"
    for part in ("0", "4", "-1", "x", "9" * 5000, None):
        assert call(tools, "open_page", url=url, part=part).failed


def test_files_are_read_by_their_exact_name_only(tools: dict[str, Tool]) -> None:
    assert call(tools, "read_file", name="log.csv").result == "ship,day\nHeron,3\n"
    assert call(tools, "read_file", name="empty.txt").result == ""
    for name in ("../log.csv", "/etc/passwd", "./log.csv", "log.csv\0", ""):
        refused = call(tools, "read_file", name=name)
        assert refused.failed and "there is no attachment" in refused.result


def test_what_cannot_be_read_is_said(tools: dict[str, Tool]) -> None:
    refused = call(tools, "read_file", name="photo.png")
    assert refused.failed and "photo.png cannot be read as text; readable are .txt" in refused.result


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("(12 + 3) * 4 / 5", "12"),
        ("1,600 * 2", "3200"),
        ("1 / 3", "0.3333333333"),
        ("-2 * -3", "6"),
        ("0.1 + 0.2", "0.3"),
        ("2 × 3 − 1", "5"),
        ("9" * 400 + " / 3", "3" * 400),
        ("100000000 / 3", "33333333.3333333333"),
    ],
)
def test_calculator(tools: dict[str, Tool], expression: str, value: str) -> None:
    assert call(tools, "calculator", expression=expression).result == value


@pytest.mark.parametrize("expression", ["", "1 / 0", "2 +", "two", "__import__('os')", "(" * 400, "9" * 501, None])
def test_calculator_refuses(tools: dict[str, Tool], expression: object) -> None:
    assert call(tools, "calculator", expression=expression).failed


def test_tools_that_cannot_work_are_not_offered() -> None:
    generated = question_tools(provider=None, files=[], read=CONTENT.__getitem__, run_code=None)
    assert [tool.name for tool in generated] == ["calculator"]


def test_bytes_of_older_encodings() -> None:
    assert files.file_text("a.txt", "café".encode("cp1252")) == "café"
    assert files.file_text("a.txt", "\ufeffcafé\r\n".encode()) == "café\n"
    assert files.file_text("a.txt", "café".encode("utf-16")) == "café"
    assert files.file_text("a.txt", b"\x81\x8d") == "\ufffd\ufffd"


@pytest.mark.parametrize(("name", "library"), [("a.xlsx", "openpyxl"), ("A.PDF", "pypdf")])
def test_a_missing_library_names_the_install_line(name: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ToolError, match=r"pip install 'rlhf_lab\[gaia\]'"):
        files.file_text(name, b"")


def test_a_real_pdf() -> None:
    pytest.importorskip("pypdf", reason="comes with rlhf_lab[gaia]")
    assert "Heron lands" in files.file_text("a.pdf", small_pdf("Heron lands"))
    with pytest.raises(ToolError, match=r"a\.pdf cannot be read"):
        files.file_text("a.pdf", b"no PDF")


def small_pdf(text: str) -> bytes:
    """A PDF of one page with one line. It lacks the table of its objects, which a reader then looks for."""
    drawing = f"BT /F1 12 Tf 20 20 Td ({text}) Tj ET".encode()
    resources = b"<< /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >>"
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 200 200] /Contents 4 0 R /Resources %s >>" % resources,
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(drawing), drawing),
    ]
    content = b"".join(b"%d 0 obj\n%s\nendobj\n" % numbered for numbered in enumerate(objects, start=1))
    return b"%PDF-1.4\n" + content + b"trailer << /Size 5 /Root 1 0 R >>\nstartxref\n0\n%%EOF\n"
