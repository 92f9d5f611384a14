"""`label` in a real browser: by keyboard, through a kill -9, with replies that try to run, and without the token."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import INSTALLED, Browser
from served_labels import PATIENCE, Served

from rlhf_lab.packs.judging.labels.items import FIRST, SECOND, TIE, LabelItem
from rlhf_lab.packs.judging.labels.store import LabelStore

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not INSTALLED, reason="chromium is not installed: pages are not rendered"),
]
ITEMS = 20
GUARD = 0.35
"""Seconds for which a new comparison takes no answer (templates/label.js), and a little more."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    rows = [
        {
            "id": f"j{number}",
            "prompt_id": number,
            "prompt": f"\n\nHuman: Question {number}?\n\nAssistant:",
            "first": "<script>document.title = 'run'</script><img src=x onerror=\"document.title='run'\">first",
            "second": f"answer {number}, which is the second",
            "names": ["A", "B"],
            "winner": FIRST,
            "score": 1.0,
        }
        for number in range(ITEMS)
    ]
    path = tmp_path / "judgements.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def serve(source: Path) -> Iterator[Callable[[], Served]]:
    """Starts the server."""
    begun = []

    def start() -> Served:
        begun.append(Served(str(source), "annotator=ana"))
        return begun[-1]

    yield start
    for served in begun:
        served.close()


@pytest.fixture
def open_browser(tmp_path: Path) -> Iterator[Callable[[str], Browser]]:
    """Starts a browser with a profile of its own."""
    opened = []

    def start(name: str) -> Browser:
        opened.append(Browser(tmp_path / name, offline=False))
        return opened[-1]

    yield start
    for browser in opened:
        browser.close()


def wait_for(browser: Browser, script: str, wanted: Any) -> None:
    end = time.monotonic() + PATIENCE
    while (value := browser.run(script)) != wanted:
        assert time.monotonic() < end, (
            f"{script} is {value!r}, not {wanted!r}: {browser.run('document.body.innerText')}"
        )
        time.sleep(0.02)


ANSWERED = "document.querySelector('#main').dataset.answered"
ITEM = "document.querySelector('#main').dataset.item"
STATUS = "document.querySelector('#status').textContent"
REPLIES = "[...document.querySelectorAll('.reply > div')].map((node) => node.textContent)"


def answer(browser: Browser, key: str, number: int) -> tuple[str, str]:
    """Press a key as the answer to the comparison on the page, and wait until it is saved: its id and the winner."""
    item, responses = browser.run(ITEM), browser.run(REPLIES)
    time.sleep(GUARD)
    browser.press(key, ord(key[0]))
    wait_for(browser, ANSWERED, str(number))
    chosen = {"1": 0, "ArrowLeft": 0, "2": 1, "ArrowRight": 1}.get(key)
    if chosen is None:
        return item, TIE
    return item, FIRST if responses[chosen].endswith("first") else SECOND


def test_twenty_labels_by_keyboard_with_a_kill_in_between(source, serve, open_browser):
    served = serve()
    browser = open_browser("profile")
    browser.open(served.url)
    wait_for(browser, ANSWERED, "0")
    keys = ["1", "2", "=", "ArrowLeft", "ArrowRight", "0"]
    given = [answer(browser, keys[number % 6], number + 1) for number in range(7)]

    assert served.end(signal.SIGKILL) == -signal.SIGKILL
    time.sleep(GUARD)
    browser.press("1", 49)  # of this one the page says that it is not saved
    wait_for(browser, f"{STATUS}.startsWith('Not saved')", True)
    assert browser.run(ANSWERED) == "7" and browser.run("document.querySelector('#retry') !== null")
    unsaved = browser.run(ITEM)

    url = serve().url
    browser.open(url)
    wait_for(browser, ANSWERED, "7")
    assert browser.run(ITEM) == unsaved
    given += [answer(browser, keys[number % 6], number + 1) for number in range(7, ITEMS)]
    assert browser.run("document.querySelector('#done').checkVisibility()")

    store = LabelStore(source.with_name("judgements.labels.sqlite"))
    assert [(label.item.id, label.winner) for label in store.labels()] == given
    assert len({item for item, _ in given}) == ITEMS
    assert {winner for _, winner in given} == {FIRST, SECOND, TIE}
    store.close()


def test_the_page_of_a_run_shows_comparisons_that_training_adds(tmp_path, open_browser):
    """The page waits without a reload while training has nothing to compare."""
    path = tmp_path / "ppo-1.audit.labels.sqlite"
    store = LabelStore(path, create=True)
    prompt = "\n\nHuman: Question?\n\nAssistant:"
    store.add([LabelItem("one", "p", prompt, "first", "second")])
    served = Served(str(path), "annotator=ana")
    try:
        browser = open_browser("profile")
        browser.open(served.url)
        wait_for(browser, ITEM, "one")
        given = [answer(browser, "1", 1)]
        wait_for(browser, "document.querySelector('#waiting').checkVisibility()", True)
        assert not browser.run("document.querySelector('#done').checkVisibility()")
        store.add([LabelItem("two", "p", prompt, "another first", "another second")])
        wait_for(browser, ITEM, "two")
        given.append(answer(browser, "2", 2))
    finally:
        served.close()
    assert [(label.item.id, label.winner) for label in store.labels()] == given
    store.close()


def test_nothing_without_the_token(serve, open_browser):
    url = serve().url
    first, second = open_browser("one"), open_browser("two")
    first.open(url)
    wait_for(first, ANSWERED, "0")
    for browser in (second, first):  # the first has visited the page, which leaves nothing behind
        browser.open(url.partition("?")[0] + "?token=guessed")
        text = browser.run("document.body.innerText")  # the browser's own, of an answer that is empty
        assert "HTTP ERROR 404" in text and "Which response" not in text and "Label" not in text


def test_undo_double_presses_and_replies_that_try_to_run(source, serve, open_browser):
    url = serve().url
    browser = open_browser("profile")
    browser.open(url)
    wait_for(browser, ANSWERED, "0")
    first = browser.run(ITEM)
    time.sleep(GUARD)
    browser.press("1", 49)
    browser.press("1", 49)  # a double press is one answer
    wait_for(browser, ANSWERED, "1")
    time.sleep(GUARD)
    assert browser.run(ANSWERED) == "1" and browser.run(ITEM) != first
    browser.press("u", 85)
    wait_for(browser, ANSWERED, "0")
    assert browser.run(ITEM) == first and browser.run("document.querySelector('[data-undo]').disabled")
    time.sleep(GUARD)
    network = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    browser.call("Network.emulateNetworkConditions", offline=True, **network)
    browser.press("s", 83)
    wait_for(browser, f"{STATUS}.startsWith('Not saved')", True)
    browser.press("1", 49)  # the answer that is not saved comes first
    browser.call("Network.emulateNetworkConditions", offline=False, **network)
    browser.press("r", 82)
    wait_for(browser, ANSWERED, "1")
    browser.press("?", 191)
    assert browser.run("document.querySelector('#help').open")
    browser.press("2", 50)  # the dialogue takes no answers
    browser.run("document.querySelector('#help').close()")

    assert any("<script>" in text for text in browser.run(REPLIES))
    assert browser.run("document.title") == "Label responses"
    assert browser.run("document.querySelectorAll('#item script, #item img').length") == 0
    origin = url.partition("/?")[0]
    assert all(requested.startswith(origin) for requested in browser.requests)

    store = LabelStore(source.with_name("judgements.labels.sqlite"))
    kinds = [kind for (kind,) in store._connection.execute("SELECT kind FROM events ORDER BY number")]
    assert kinds == ["label", "undo", "skip"]
    store.close()


def test_the_page_fits_and_says_its_keys(serve, open_browser):
    url = serve().url
    browser = open_browser("profile")
    for width in (1280, 390):
        browser.open(url, width=width, dark=width == 390)
        wait_for(browser, ANSWERED, "0")
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
        tops = browser.run("[...document.querySelectorAll('.reply')].map((node) => node.getBoundingClientRect().top)")
        assert (tops[0] == tops[1]) == (width == 1280)
    buttons = browser.run("[...document.querySelectorAll('.keys button')].map((node) => node.textContent.trim())")
    assert buttons == ["1 Response 1", "= Tie", "2 Response 2", "s Skip", "u Undo", "? Help"]
    assert browser.run(f"{STATUS}.includes('lists all keys')")
    assert not browser.run("document.querySelector('#figures').checkVisibility()")
