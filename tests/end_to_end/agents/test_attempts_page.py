"""The page of attempts, also in a real browser, offline and from disk; what tools say is inert."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from browser import INSTALLED, Browser
from scripted_agents import Capitals, Scripted, guesses, looks_up, questions, run_in, simple_score

from rlhf_lab.packs.agents.benchmarks.benchmark import Benchmark
from rlhf_lab.packs.agents.report.attempts import MAX_TEXT, attempts_page
from rlhf_lab.reports.report import write_report
from rlhf_lab.results.rundir import read_run

HOSTILE = "<script>document.title = 'taken over'</script><img src=x onerror=\"document.title='taken over'\">"
in_browser = pytest.mark.skipif(not INSTALLED, reason="chromium is not installed: pages are not rendered")


def hostile(task, tools, draw):
    """Everything that an agent or a tool can write is markup."""

    def call(made):
        return replace(made, name=HOSTILE, arguments={HOSTILE: HOSTILE}, result=HOSTILE)

    def turn(taken):
        calls = tuple(map(call, taken.calls))
        return replace(taken, text=HOSTILE, agent=HOSTILE, prompt=taken.prompt + HOSTILE, calls=calls)

    trajectory = looks_up(task, tools, draw)
    return replace(trajectory, turns=tuple(map(turn, trajectory.turns)), answer=HOSTILE, error=HOSTILE)


def write_agent_run(
    directory: Path, agents: dict[str, Scripted], tasks: Capitals | None = None, draws: int = 1
) -> Path:
    run = run_in(directory)
    result = Benchmark(run, agents, questions(tasks), draws, simple_score).finish()
    content = {"status": "completed", "policies": result.policies, "metrics": result.metrics}
    (directory / "result.json").write_text(json.dumps(content))
    (directory / "manifest.json").write_text(json.dumps({"recipe": "agent_bench"}))
    (directory / "config.yaml").write_text("algorithm: {kind: agent_bench}\n")
    return directory


def three() -> dict[str, Scripted]:
    plays = {"searcher": looks_up, "guesser": guesses, "hostile": hostile}
    return {name: Scripted(name, play) for name, play in plays.items()}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_agent_run(tmp_path_factory.mktemp("runs") / "run", three())
    write_report(directory)
    return directory / "attempts.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.mark.slow
def test_the_page_has_numbers_pairs_and_every_attempt(page):
    text = page.read_text()
    assert text.count('<details class="attempt"') == 18
    assert "18 of 18 attempts are on this page" in text
    for words in ("right by a wrong process", "Agents against each other", "guesser − searcher", "exact McNemar"):
        assert words in text
    assert "attempts.html" in (page.parent / "report.html").read_text()


def test_markup_of_agents_and_tools_is_text(page):
    for name in ("attempts.html", "report.html"):
        text = (page.parent / name).read_text()
        assert HOSTILE not in text and "<script>document" not in text and "<img" not in text


def test_a_large_run_stays_a_page(tmp_path):
    tasks = Capitals({f"City{number}": f"Land{number} " + "x" * 3000 for number in range(300)})
    directory = write_agent_run(tmp_path / "run", three(), tasks)
    written = attempts_page(read_run(directory), budget=500_000)
    assert written is not None
    view = written.sections["attempts"].values
    assert view["total"] == 900
    assert 20 < len(view["attempts"]) < 900
    write_report(directory)
    page = directory / "attempts.html"
    assert page.stat().st_size < 8_000_000
    left_out = 900 - page.read_text().count('<details class="attempt"')
    assert f"{left_out} are left out" in page.read_text() or left_out == 0


def test_the_report_counts_attempts_by_verdict(tmp_path):
    def silent(task, tools, draw):
        return replace(looks_up(task, tools, draw), answer=None)

    agents = {"searcher": Scripted("searcher", looks_up), "silent": Scripted("silent", silent)}
    directory = write_agent_run(tmp_path / "run", agents)
    write_report(directory)
    report = (directory / "report.html").read_text()
    assert "(12 attempts): 6 right, 6 failed: no answer." in report


def test_long_texts_are_cut_and_that_is_said(tmp_path):
    def rambles(task, tools, draw):
        trajectory = looks_up(task, tools, draw)
        return replace(trajectory, turns=(replace(trajectory.turns[0], text="y" * (MAX_TEXT + 7)),))

    written = attempts_page(read_run(write_agent_run(tmp_path / "run", {"rambler": Scripted("rambler", rambles)})))
    assert written is not None
    view = written.sections["attempts"].values
    assert "(7 more characters; see trajectories.jsonl)" in view["attempts"][0]["turns"][0]["text"]


@pytest.mark.slow
@in_browser
def test_steps_open_and_nothing_in_them_runs(browser, page):
    browser.open(page)
    browser.run("document.querySelectorAll('details').forEach((node) => { node.open = true; })")
    words = browser.run("document.querySelector('.attempt').innerText")
    numbers = "10 tokens in, 3 out, $0.0100"
    for part in ("Thought: 0", 'search(entity="Oslo")', "Norway", numbers, "attempt", "expected"):
        assert part in words
    browser.run("window.scrollTo(0, document.body.scrollHeight)")
    assert browser.run("document.title") == "agent_bench · attempts"
    assert browser.run("document.querySelectorAll('.attempt img, .attempt script').length") == 0
    assert browser.requests == [page.as_uri()]


@pytest.mark.slow
@in_browser
@pytest.mark.parametrize("width", [390, 1400])
def test_nothing_is_wider_than_the_window(browser, page, width):
    browser.open(page, width=width)
    browser.run("document.querySelectorAll('details').forEach((node) => { node.open = true; })")
    assert browser.run("document.documentElement.scrollWidth") == width
