"""The documentation site builds without a warning, its links resolve, and its pages fit a desktop and a phone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest
from browser import INSTALLED, Browser
from support import check_each, once

ROOT = Path(__file__).resolve().parents[2]
pytest.importorskip("mkdocs", reason="mkdocs builds the site; it comes with .[docs]")
pytest.importorskip("material", reason="the theme of the site; it comes with .[docs]")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("site")]

WIDTHS = (1280, 390)
LOOKED_AT = (
    "index",
    "running",
    "algorithms/ppo",
    "results/papers",
    "results/overoptimization",
    "reference/settings/model",
)
"""Pages that a browser opens."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built HTML."""

    def build(directory: Path) -> None:
        environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
        mkdocs = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(directory / "mkdocs.yml")]
        for command in ([sys.executable, str(ROOT / "tests" / "build_site.py"), str(directory)], mkdocs):
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)
            assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]

    return once(tmp_path_factory.getbasetemp() / "site", build) / "site"


def targets(html: str) -> set[str]:
    """Return the links and resources of a page that are no addresses of other servers."""
    found = re.findall(r'\b(?:href|src)="([^"]+)"', html)
    return {unescape(target) for target in found if not re.match(r"\w+:|//", target)}


def anchors(html: str) -> set[str]:
    return {unescape(name) for name in re.findall(r'\bid="?([^"\s>]+)', html)} | {"", "__skip", "top"}


def test_every_link_resolves(site: Path) -> None:
    pages = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    assert len(pages) >= 150

    def check(page: Path) -> None:
        for target in targets(pages[page]):
            name, _, anchor = unquote(target).partition("#")
            file = (page.parent / name).resolve() if name else page
            file = file / "index.html" if file.is_dir() else file
            assert file.is_file(), f"links to {target}"
            if anchor and file in pages:
                assert anchor in anchors(pages[file]), f"links to {target}"

    check_each([page for page in pages if page.name != "404.html"], check)


def test_pages_load_nothing_from_other_servers(site: Path) -> None:
    html = (site / "index.html").read_text(encoding="utf-8")
    loaded = re.findall(
        r'<(?:script|img|iframe)[^>]*\bsrc="([^"]+)"|<link[^>]*rel="stylesheet"[^>]*href="([^"]+)"', html
    )
    assert loaded
    assert not [name for pair in loaded for name in pair if re.match(r"https?:|//", name)]


def test_markdown_is_rendered(site: Path) -> None:
    """A list or a table in a paragraph is Markdown that Python-Markdown reads in another way than GitHub."""

    def check(page: Path) -> None:
        article = page.read_text(encoding="utf-8").partition("<article")[2].partition("</article>")[0]
        wrong = re.search(r"<p>(?:(?!</p>).)*?\n(- |\d+\. |\| |#+ )", article, re.S)
        assert not wrong, wrong[0][-200:]

    check_each(site.rglob("*.html"), check)


@pytest.mark.skipif(not INSTALLED, reason="chromium is not installed")
def test_pages_fit_a_desktop_and_a_phone(site: Path, tmp_path: Path) -> None:
    browser = Browser(tmp_path)
    try:
        for name in LOOKED_AT:
            for width in WIDTHS:
                browser.open(site / f"{name}.html", width=width)
                overflow = browser.run("document.documentElement.scrollWidth - document.documentElement.clientWidth")
                assert overflow == 0, f"{name} is {overflow} pixels wider than {width}"
                assert browser.run("document.querySelector('article h1') !== null"), name
                hidden = browser.run("[...document.images].filter(i => !i.naturalWidth).map(i => i.src)")
                assert not hidden, f"{name} does not show {hidden}"
    finally:
        browser.close()
