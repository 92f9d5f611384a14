"""The HTML reports in a real browser, offline and from disk: drawn, described, readable in both themes, by keyboard."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from browser import INSTALLED, Browser, decode_png
from synthetic_runs import write_run, write_study

from rlhf_lab.reports.comparison.report import compare
from rlhf_lab.reports.report import write_report

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not INSTALLED, reason="chromium is not installed: pages are not rendered"),
]
PAGES = ("run", "study", "comparison", "comparison of studies")
TAB, RIGHT = 9, 39

INTERACTIVE = "a[href], button, select, input, summary, [tabindex='0']"
REACHABLE = f"""[...document.querySelectorAll("{INTERACTIVE}")].filter((node) => node.checkVisibility())"""
# Ratio of WCAG 2.2 between the colour of every piece of text and the first opaque background behind it.
CONTRAST = """(() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const colour = parse(getComputedStyle(node).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const node = text.parentElement;
    if (!text.data.trim() || !node.checkVisibility() || node.closest("script, style, title, desc, option")) continue;
    const style = getComputedStyle(node), ink = node.closest("svg") ? style.fill : style.color;
    const [a, b] = [light(parse(ink)), light(ground(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    found.push([Math.round(ratio * 100) / 100, text.data.trim().slice(0, 40)]);
  }
  return found;
})()"""
# Text of figures that is cut off by its frame or drawn over other text of the same figure.
MISPLACED = """[...document.querySelectorAll("svg.plot")].flatMap((figure) => {
  const frame = figure.getBoundingClientRect(), found = [];
  const boxes = [...figure.querySelectorAll("text")].map((node) => [node.textContent, node.getBoundingClientRect()]);
  boxes.forEach(([words, box], place) => {
    const inside = box.left >= frame.left - 1 && box.right <= frame.right + 1;
    if (!inside || box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
      found.push("cut: " + words);
    for (const [others, other] of boxes.slice(place + 1)) {
      const wide = Math.min(box.right, other.right) - Math.max(box.left, other.left);
      const high = Math.min(box.bottom, other.bottom) - Math.max(box.top, other.top);
      if (wide > 2 && high > 4) found.push(words + " over " + others);
    }
  });
  return found.map((fault) => figure.querySelector("title").textContent + ": " + fault);
})"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every kind of page, by name, from synthetic runs."""
    root = tmp_path_factory.mktemp("pages")
    first, second = write_run(root, "first"), write_run(root, "second", seed=1, lift=0.8)
    study = write_study(root, seeds=3, failed=(2,))
    later = write_study(root / "later", seeds=2, lift=2.0)
    return {
        "run": write_report(first),
        "study": write_report(study),
        "comparison": compare(first, second, to=root / "comparison").page,
        "comparison of studies": compare(study, later, to=root / "studies").page,
    }


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_loads_nothing_but_itself(browser, pages, name):
    browser.open(pages[name])
    assert browser.requests == [pages[name].as_uri()]  # the browser is offline, too
    loading = "[...document.querySelectorAll('[src], link[href], image')].map((node) => node.outerHTML)"
    assert browser.run(loading) == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_figures_are_drawn(browser, pages, name, dark):
    browser.open(pages[name], dark=dark)
    boxes = browser.run(
        "[...document.querySelectorAll('svg.plot')].filter((node) => node.checkVisibility()).map((node) => {"
        "const box = node.getBoundingClientRect();"
        "return {x: box.x, y: box.y + scrollY, width: box.width, height: box.height}; })"
    )
    assert len(boxes) >= (6 if name == "run" else 4)
    whole = browser.picture()
    paper = whole[2, 2].astype(int)
    assert (paper.mean() < 60) == dark, "the page follows the theme"
    for box in boxes:
        left, top = round(box["x"]), round(box["y"])
        figure = whole[top : top + round(box["height"]), left : left + round(box["width"])].reshape(-1, 3).astype(int)
        saturation = figure.max(axis=1) - figure.min(axis=1)
        assert figure.std(axis=0).max() > 4, "blank"
        assert (saturation > 40).mean() > 0.0005, "no coloured line or mark"


@pytest.mark.parametrize("name", PAGES)
def test_figures_have_axes_a_legend_and_a_description(browser, pages, name):
    browser.open(pages[name])
    for figure in browser.run(
        "[...document.querySelectorAll('svg.plot')].map((node) => ({role: node.getAttribute('role'), "
        "title: node.querySelector('title').textContent, said: node.querySelector('desc').textContent, "
        "ticks: node.querySelectorAll('text.soft').length, "
        "words: [...node.querySelectorAll('text:not(.soft):not(.halo)')].map((text) => text.textContent), "
        "tones: [...new Set([...node.querySelectorAll('path[stroke^=var]')].map((p) => p.getAttribute('stroke')))]}))"
    ):
        assert figure["role"] == "img" and figure["title"] and figure["said"], figure
        assert figure["ticks"] >= 2 and figure["words"], figure  # numbers on an axis, and what they are
        if len(figure["tones"]) > 1:
            assert len(figure["words"]) >= 1 + len(figure["tones"]), f"{figure['title']}: no legend"


@pytest.mark.parametrize("name", PAGES)
def test_words_in_figures_are_neither_cut_nor_covered(browser, pages, name):
    browser.open(pages[name])
    assert browser.run(MISPLACED) == []


def test_many_levels_with_long_names_still_fit(browser, tmp_path):
    study = write_study(tmp_path, seeds=2)
    plan = json.loads((study / "study.json").read_text())
    jobs = [{"algorithm.buffer": f"level {number // 2} of very many", "seed": number % 2} for number in range(18)]
    for number in range(len(jobs)):
        (study / "jobs" / str(number)).mkdir(exist_ok=True)
        job = {"status": "completed", "run": f"jobs/{number % 6}/run", "error": None}
        (study / "jobs" / str(number) / "job.json").write_text(json.dumps(job))
    plan |= {"baseline": None, "jobs": [{"index": n, "overrides": overrides} for n, overrides in enumerate(jobs)]}
    (study / "study.json").write_text(json.dumps(plan))
    browser.open(write_report(study))
    assert browser.run(MISPLACED) == []
    browser.run("document.querySelector('svg.plot text:not(.soft)').setAttribute('x', 400)")
    assert len(browser.run(MISPLACED)) >= 1  # the search does find what is out of place


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_all_text_is_readable(browser, pages, name, dark):
    browser.open(pages[name], dark=dark)
    found = browser.run(CONTRAST)
    assert len(found) > 50
    assert [words for ratio, words in found if ratio < 4.5] == []


@pytest.mark.parametrize("name", PAGES)
def test_every_control_is_reached_by_tab_in_order(browser, pages, name):
    browser.open(pages[name])
    expected = browser.run(f"{REACHABLE}.length")
    assert expected >= 3
    order, outlines = [], []
    for _ in range(expected):
        browser.press("Tab", TAB)
        order.append(browser.run(f"{REACHABLE}.indexOf(document.activeElement)"))
        outlines.append(browser.run("getComputedStyle(document.activeElement).outlineStyle"))
    assert order == list(range(expected))
    assert set(outlines) == {"solid"}, "focus is not visible"
    unnamed = f"""{REACHABLE}.filter((node) => !(node.getAttribute("aria-label") || node.textContent.trim()
      || node.closest("label"))).map((node) => node.outerHTML)"""
    assert browser.run(unnamed) == []


@pytest.mark.parametrize("name", ["run", "study", "comparison"])
def test_keys_change_the_prompt_unless_something_else_has_the_focus(browser, pages, name):
    browser.open(pages[name])
    prompt = "document.querySelector('#samples .prompt').textContent"
    before = browser.run(prompt)
    browser.press("ArrowRight", RIGHT)
    assert browser.run(prompt) != before
    after = browser.run(prompt)
    browser.run("document.querySelector('.wide').focus()")  # scrolls sideways instead
    browser.press("ArrowRight", RIGHT)
    assert browser.run(prompt) == after


def test_any_two_jobs_of_a_study_can_be_chosen(browser, pages):
    browser.open(pages["study"])
    rows = "[...document.querySelectorAll('#pairs tbody tr')].map((row) => row.innerText.split('\\t'))"
    choose = "(([a, b]) => { const s = document.querySelectorAll('#pairs select'); s[0].value = a; s[1].value = b;"
    choose += " s[1].dispatchEvent(new Event('change')); })"
    browser.run(f"{choose}([0, 4])")
    there = browser.run(rows)
    browser.run(f"{choose}([4, 0])")
    back = browser.run(rows)
    assert there[0][:3] == ["algorithm.buffer", "current", "mixed"]
    gold, dlog = ({row[0]: row for row in found}["gold reward"] for found in (there, back))
    assert (gold[1], gold[2]) == (dlog[2], dlog[1]) and gold[4] == dlog[4]
    assert gold[3].startswith("+") and dlog[3] == "−" + gold[3][1:]
    assert "jobs/5 " in browser.run("document.querySelector('#pairs code').textContent")  # job 2 failed


def test_the_picture_decoder_knows_every_filter():
    # rows of two RGB pixels: none, left, above, average, Paeth; all decode to 10, 20, 30 and 20, 30, 40
    first, second = [10, 20, 30], [20, 30, 40]
    rows = [[0, *first, *second], [1, *first, 10, 10, 10], [2] + [0] * 6]
    rows += [[3, 5, 10, 15, 5, 5, 5], [4] + [0] * 6]
    packed = zlib.compress(b"".join(map(bytes, rows)))
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", 2, 5, 8, 2, 0, 0, 0)), (b"IDAT", packed), (b"IEND", b"")]
    raw = b"\x89PNG\r\n\x1a\n" + b"".join(struct.pack(">I", len(c)) + kind + c + b"\0\0\0\0" for kind, c in chunks)
    picture = decode_png(raw)
    assert picture.shape == (5, 2, 3) and np.array_equal(picture, [[first, second]] * 5)
