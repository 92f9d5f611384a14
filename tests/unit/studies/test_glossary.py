"""Words of the field are explained where they stand: on hover, by keyboard, and escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from rlhf_lab.reports.comparison.report import compare
from rlhf_lab.reports.report import write_report
from rlhf_lab.results.glossary import FORMS, GLOSSARY, meaning, term


def test_forms_lead_to_words_that_are_there():
    assert set(FORMS.values()) <= set(GLOSSARY)
    assert meaning("Gold reward") == GLOSSARY["gold"] and meaning("KL,\u00a0nats") == GLOSSARY["kl"]
    assert meaning("policy") == ""


def test_a_term_is_escaped_and_can_have_the_focus():
    assert term("lead") == f'<abbr tabindex="0" title="{GLOSSARY["lead"]}">lead</abbr>'
    assert term("<b>") == "&lt;b&gt;" and term("x", '"><i>') == '<abbr tabindex="0" title="&#34;&gt;&lt;i&gt;">x</abbr>'


def explained(page: str) -> set[str]:
    return set(re.findall(r'<abbr tabindex="0" title="[^"]+">([^<]+)</abbr>', page))


@pytest.mark.slow
def test_every_page_explains_the_words_that_head_its_tables(make_run, make_study, tmp_path):
    first, second = make_run("first"), make_run("second", seed=1)
    run = write_report(first).read_text()
    assert {"gold reward", "proxy reward", "KL, nats", "garbled", "detectable", "padding"} <= explained(run)
    study = write_report(make_study(seeds=2)).read_text()
    assert {"gold reward", "over-optimisation", "padding"} <= explained(study)
    compared = compare(first, second, to=tmp_path / "compared").page.read_text()
    assert {"gold reward", "proxy reward"} <= explained(compared)
    for page in (run, study, compared):
        assert "abbr:focus::after{content:attr(title)" in page  # hover alone is not for keyboards and fingers


class Scrollers(HTMLParser):
    """Counts tables, and those that stand in a scroller of their own."""

    def __init__(self, page: str):
        super().__init__()
        self.open: list[bool] = []
        self.tables = self.inside = 0
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag == "div":
            self.open.append("wide" in (dict(attrs).get("class") or "").split())
        if tag == "table":
            self.tables += 1
            self.inside += any(self.open)

    def handle_endtag(self, tag):
        if tag == "div":
            self.open.pop()


@pytest.mark.slow
def test_every_table_scrolls_by_itself(make_run, make_study, tmp_path):
    """A narrow window moves the table under its scroller, and neither cuts it nor widens the page."""
    first, second = make_run("first"), make_run("second", seed=1)
    pages = [write_report(first), write_report(make_study(seeds=2)), compare(first, second, to=tmp_path / "both").page]
    for page in pages:
        found = Scrollers(page.read_text())
        assert found.tables > 1 and found.inside == found.tables
        assert ".wide{overflow-x:auto" in page.read_text()
