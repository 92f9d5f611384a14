"""The HTML reports in a real browser, offline and from disk: rendered, described, readable in both themes and on a
telephone, with tooltips, by pointer and by keyboard."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import INSTALLED, Browser
from synthetic_runs import add_clips, write_run, write_study

from rlhf_lab.reports.comparison.report import compare
from rlhf_lab.reports.report import write_report

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not INSTALLED, reason="chromium is not installed: pages are not rendered"),
]
PAGES = ("run", "study", "comparison")
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
    if (node.closest("svg") && node.getAttribute("stroke")) continue; // the halo behind a label
    const style = getComputedStyle(node), ink = node.closest("svg") ? style.fill : style.color;
    const [a, b] = [light(parse(ink)), light(ground(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    found.push([Math.round(ratio * 100) / 100, text.data.trim().slice(0, 40)]);
  }
  return found;
})()"""
# Text of figures that is cut off by its frame or overlaps other text of the same figure.
MISPLACED = """[...document.querySelectorAll("svg.plot")].flatMap((figure) => {
  const frame = figure.getBoundingClientRect(), found = [];
  const shown = (node) => !node.getAttribute("stroke") && node.getAttribute("opacity") !== "0";  // not a halo
  const texts = [...figure.querySelectorAll("text")].filter(shown);
  const boxes = texts.map((node) => [node.textContent, node.getBoundingClientRect()]);
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
    return {
        "run": write_report(first),
        "study": write_report(study),
        "comparison": compare(first, second, to=root / "comparison").page,
    }


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_figures_are_drawn_and_all_text_is_readable(browser, pages, name, dark):
    browser.open(pages[name], dark=dark)
    found = browser.run(CONTRAST)
    assert len(found) > 50
    assert [words for ratio, words in found if ratio < 4.5] == []
    boxes = browser.run(
        "[...document.querySelectorAll('svg.plot')].filter((node) => node.checkVisibility()).map((node) => {"
        "const box = node.getBoundingClientRect();"
        "return {x: box.x, y: box.y + scrollY, width: box.width, height: box.height}; })"
    )
    assert len(boxes) >= (6 if name == "run" else 4)
    full = browser.picture()
    paper = full[2, 2].astype(int)
    assert (paper.mean() < 60) == dark, "the page follows the theme"
    for box in boxes:
        left, top = round(box["x"]), round(box["y"])
        figure = full[top : top + round(box["height"]), left : left + round(box["width"])].reshape(-1, 3).astype(int)
        saturation = figure.max(axis=1) - figure.min(axis=1)
        assert figure.std(axis=0).max() > 4, "blank"
        assert (saturation > 40).mean() > 0.0005, "no coloured line or mark"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_loads_nothing_and_its_figures_are_described(browser, pages, name):
    browser.open(pages[name])
    assert browser.requests == [pages[name].as_uri()]  # the browser is offline, too
    loading = "[...document.querySelectorAll('[src], link[href], image')].map((node) => node.outerHTML)"
    assert browser.run(loading) == []
    figures = browser.run(
        "[...document.querySelectorAll('svg.plot')].map((node) => ({role: node.getAttribute('role'), "
        "title: node.querySelector('title').textContent, said: node.querySelector('desc').textContent, "
        "ticks: node.querySelectorAll('.role-axis-label text').length, "
        "axes: node.querySelectorAll('.role-axis-title text').length, "
        "legend: node.querySelectorAll('.role-legend-label text').length, "
        "lines: new Set([...node.querySelectorAll('.mark-line path')].map((p) => p.getAttribute('stroke'))).size}))"
    )
    assert figures
    for figure in figures:
        assert figure["role"] == "img" and figure["title"] and figure["said"], figure
        assert figure["ticks"] >= 2 and figure["axes"], figure  # numbers on an axis, and what they are
        if figure["lines"] > 1:
            assert figure["legend"] >= figure["lines"], f"{figure['title']}: no legend"


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_the_window(browser, pages, name, width):
    """Words in figures are neither cut nor covered, and nothing is wider than the window: figures fit; a table either
    fits or scrolls in a frame of its own, which the keyboard reaches."""
    browser.open(pages[name], width=width)
    assert browser.run(MISPLACED) == []
    assert browser.run("document.documentElement.scrollWidth") == width
    cut = "[...document.querySelectorAll('.chart')].filter((node) => node.scrollWidth > node.clientWidth + 1).length"
    assert browser.run(cut) == 0
    unframed = """[...document.querySelectorAll("table")].filter((table) => {
      const frame = table.closest(".wide[tabindex='0']");
      return !frame || getComputedStyle(frame).overflowX !== "auto";
    }).length"""
    assert browser.run(unframed) == 0
    small = """[...document.querySelectorAll("svg.plot text")].filter((node) => {
      const turned = node.getScreenCTM();
      return parseFloat(getComputedStyle(node).fontSize) * Math.hypot(turned.a, turned.b) < 9;
    }).length"""
    assert browser.run(small) == 0


@pytest.mark.parametrize("name", PAGES)
def test_figures_are_there_without_scripts(browser, pages, name):
    browser.open(pages[name], scripts=False)
    full = browser.picture({"x": 0, "y": 0, "width": 1200, "height": 2400}).astype(int)
    saturation = full.max(axis=2) - full.min(axis=2)
    assert (saturation > 60).mean() > 0.0005, "no coloured line or mark"
    browser.open(pages[name])


TIP = "document.querySelector('.tip').hidden ? null : document.querySelector('.tip').innerText"


def test_a_point_says_its_value_interval_and_counts(browser, pages):
    browser.open(pages["run"])
    browser.run("document.querySelector('.chart').scrollIntoView({block: 'center'})")
    spot = """(() => {
      const mark = [...document.querySelector(".chart").querySelectorAll(".mark-symbol.role-mark path")].at(-1);
      const box = mark.getBoundingClientRect();
      return [box.x + box.width / 2, box.y + box.height / 2];
    })()"""
    x, y = browser.run(spot)
    browser.move(x, y)
    words = browser.run(TIP)
    for part in ("policy", "gain", "95 % interval", "n", "prompts"):
        assert part in words.split("\n"), words
    browser.move(2, 2)
    assert browser.run(TIP) is None


def test_a_seed_has_a_tooltip_of_its_own(browser, pages):
    browser.open(pages["study"])
    browser.run("document.querySelector('.chart').focus()")
    seen = []
    for _ in range(12):
        browser.press("ArrowRight", RIGHT)
        seen.append(browser.run(TIP))
    assert any("seed 1" in words for words in seen)
    assert any("95 % interval" in words and "seeds" in words for words in seen)
    assert browser.run("document.querySelector('.tip').getAttribute('aria-live')") == "polite"


def test_a_name_in_the_legend_switches_series_by_pointer_and_by_keyboard(browser, pages):
    browser.open(pages["run"])
    browser.run("document.querySelector('.chart').scrollIntoView({block: 'center'})")
    label = "document.querySelector('.chart .role-legend-label text')"
    faint = "document.querySelectorAll('.chart .mark-line path[opacity=\"0.06\"]').length"
    assert browser.run(faint) == 0
    x, y, wide, high = browser.run(
        f"(({{x, y, width, height}}) => [x, y, width, height])({label}.getBoundingClientRect())"
    )
    browser.click(x + wide / 2, y + high / 2)
    assert _soon(browser, f"{faint} === 1")
    browser.run(f"{label}.focus()")
    browser.press("Enter", 13)
    assert _soon(browser, f"{faint} === 0")


def test_figures_zoom_by_keyboard(browser, pages):
    browser.open(pages["run"])
    # Vega keeps no order among the numbers of an axis that it draws anew.
    labels = "document.querySelector('.chart .role-axis-label').querySelectorAll('text')"
    ticks = f"[...{labels}].map((node) => node.textContent).sort().join()"
    browser.run("document.querySelector('.chart').focus()")
    before = browser.run(ticks)
    browser.press("+", 187)
    assert _soon(browser, f"{ticks} !== {json.dumps(before)}")
    browser.press("0", 48)
    assert _soon(browser, f"{ticks} === {json.dumps(before)}")


def _soon(browser: Browser, condition: str) -> bool:
    """Return True if a condition becomes true within two seconds: figures are rendered again in a later event."""
    for _ in range(40):
        if browser.run(condition):
            return True
        time.sleep(0.05)
    return False


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
    browser.run("document.querySelector('svg.plot .role-axis-label text').setAttribute('x', 1400)")
    assert len(browser.run(MISPLACED)) >= 1  # the search does find misplaced text


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


def test_clips_of_speech_can_be_played(browser, tmp_path):
    """Decoded by the browser, as long as they were written, from the page alone; another prompt has another clip."""
    directory = write_run(tmp_path, prompts=4)
    add_clips(directory, seconds=0.5)
    browser.open(write_report(directory))
    shown = "document.querySelectorAll('#samples audio')"
    assert browser.run(f"{shown}.length") >= 2
    browser.run(f"{shown}.forEach((player) => player.load())")
    deadline = time.monotonic() + 20
    while browser.run(f"[...{shown}].some((player) => player.readyState < 1)"):
        assert time.monotonic() < deadline, "a clip was not read"
        time.sleep(0.05)
    assert browser.run(f"[...{shown}].map((player) => player.duration)") == pytest.approx([0.5, 0.5], abs=0.01)
    assert browser.run(f"[...{shown}].every((player) => player.controls && player.error === null)")
