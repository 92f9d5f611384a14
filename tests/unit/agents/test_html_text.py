"""`rlhf_lab.packs.agents.benchmarks.html_text`: the text of pages, however broken and however large."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rlhf_lab.packs.agents.benchmarks.html_text import MAX_LINK, MAX_LINKS, _VisibleTextReader, html_text

CPU_S = 60.0
"""Linear reading of these pages takes some tenths of a second; quadratic reading takes hours."""


@contextmanager
def cpu_limit() -> Iterator[None]:
    """Fails the test that uses more CPU time than `CPU_S`."""

    def fail(*_: Any) -> None:
        raise AssertionError(f"more than {CPU_S:g} s of CPU time")

    earlier = signal.signal(signal.SIGVTALRM, fail)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, earlier)


def test_html_becomes_text() -> None:
    html = """<!DOCTYPE html><html><head><title>The  Gull</title><style>p {}</style></head><body><h1>Gull</h1>
    <script>if (a<b) alert("</p>")</script><p class='x'>A <b>white</b> bird &amp; a <a id=1 HREF="/thief">thief</a>.</p>
    <a href="#top">top</a><a href="javascript:x()">x</a><!-- <p>not this</p> -->
    <table><tr><td>wing</td><td>2 &lt; 3 < 4</td></tr></table>line<br>break<svg/> <?php x ?>end</body></html>"""
    assert html_text(html, "https://a.example/gull").splitlines() == [
        "The Gull",
        "",
        "Gull",
        "A white bird & a thief (https://a.example/thief).",
        "topx",
        "wing 2 < 3 < 4",
        "line",
        "break end",
    ]


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("", ""),
        ("</p></a></script>text", "text"),
        ("seen<!-- never closed <p>", "seen"),
        ("seen<a href='x", "seen"),
        ("<!-->seen", "seen"),
        ("<a href='http://['>x</a>", "x"),
        ("<p title=don't>seen<p title='>'>too", "seen\ntoo"),
        ("<a title='>' href=/y?a=1&amp;b=2>x</a>", "x (https://a.example/y?a=1&b=2)"),
        ("<head><p>hidden<body>seen", "seen"),
        ("<svg><svg>hidden</svg>seen", "seen"),
    ],
)
def test_broken_html_is_read(html: str, text: str) -> None:
    assert html_text(html, "https://a.example") == text


BROKEN = (
    *("<a ", "<!--", "<a b='>'", '<a b="', "<a b='\"' ", "</script", "<script>"),
    *("<![CDATA[", "<?", "&#", "&a", "= "),
)


@pytest.mark.parametrize(
    "html",
    [
        *(piece * (2**20 // len(piece)) for piece in BROKEN),
        "<svg>" * 100_000 + "</p>" * 100_000,
        "<a " + "b " * 2**19 + ">x</a>",
    ],
    ids=(*BROKEN, "deep", "long"),
)
def test_a_megabyte_of_broken_html_takes_linear_time(html: str) -> None:
    with cpu_limit():
        assert isinstance(html_text(html, "https://a.example"), str)


def test_a_number_of_no_character_is_one_replacement() -> None:
    """Python reads no numbers of more than 4,300 digits; such a reference once ended the run."""
    assert html_text(f"a&#{'9' * 5000};b&#x{'f' * 5000};c&#65;", "https://a.example") == "a\ufffdb\ufffdcA"


def test_relative_links_do_not_multiply_the_page() -> None:
    """A page of 8 MiB became 1.19 GB: each link of 15 characters was written with an address of 2,000."""
    base = "https://a.example/" + "x" * (MAX_LINK - 100) + "/"
    page = "<a href=y>z</a>" * 20_000
    text = html_text(page, base)
    assert len(text) <= len(page) + MAX_LINKS + MAX_LINK
    assert text.startswith(f"z ({base}y)z (") and text.endswith("zzz")
    assert len(html_text(page, "https://a.example/" + "x" * MAX_LINK)) < len(page)


def test_less_than_signs_are_text_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them was a piece of its own: 8 MiB took 25 s."""
    pieces: list[str] = []
    monkeypatch.setattr(_VisibleTextReader, "add_text", lambda self, text: pieces.append(text))
    html_text("<" * 100_000 + "<b>1 < 2", "https://a.example")
    assert pieces == ["<" * 100_000, "1 < 2"]
