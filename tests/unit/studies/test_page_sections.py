"""A page is a list of sections: the lab's own in their order, and those of packs in the places that they name."""

from __future__ import annotations

import pytest

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.reports import sections
from rlhf_lab.reports.attempts.attempts import attempts
from rlhf_lab.reports.monitor.lights import lights
from rlhf_lab.reports.report import write_report
from rlhf_lab.reports.run.origin import data_reports, origin
from rlhf_lab.reports.sections import PageSection, givers, page_sections, section_id
from rlhf_lab.reports.study.fronts import fronts
from rlhf_lab.reports.study.header import jobs
from rlhf_lab.reports.study.paths import paths
from rlhf_lab.reports.study.policies import pairs
from rlhf_lab.reports.study.results import StudyResults
from rlhf_lab.results.rundir import read_run
from rlhf_lab.studies.frame import read_study


def weather(run):
    """A section of another package."""
    return PageSection("Weather", f"It rained on {run.recipe}.")


def contribute(monkeypatch, *references):
    monkeypatch.setattr(sections, "contributed", lambda kind: references if kind == "run" else ())


def test_every_giver_is_found_under_the_name_of_its_function():
    assert list(givers("run")) == [section_id(reference) for reference in sections.RUN]
    assert list(givers("study")) == [section_id(reference) for reference in sections.STUDY]


def test_a_contributed_section_stands_in_the_place_that_it_names(make_run, monkeypatch):
    contribute(monkeypatch, f"{__name__}:weather after policies")
    folder = make_run()
    names = list(page_sections("run", read_run(folder)))
    assert names[names.index("policies") + 1] == "weather"
    page = write_report(folder).read_text()
    assert "It rained on" in page and page.index("Weather") > page.index("Policies")
    contribute(monkeypatch, f"{__name__}:weather")
    assert list(givers("run"))[-1] == "weather"


def test_a_section_that_cannot_be_placed_or_loaded_is_named(monkeypatch):
    contribute(monkeypatch, f"{__name__}:weather after roof")
    with pytest.raises(ConfigError, match=r"weather: a run's page has no section 'roof' to follow"):
        givers("run")
    contribute(monkeypatch, f"{__name__}:sunshine")
    with pytest.raises(ConfigError, match=r"sunshine.*write it as module:function"):
        givers("run")


def test_sections_without_content_are_left_out(make_run, make_study):
    run = read_run(make_run())
    assert attempts(run) is None
    shown_lights = lights(run)
    assert shown_lights is not None and shown_lights.values["lights"]
    shown = page_sections("run", run)
    assert "attempts" not in shown and {"header", "policies", "settings"} <= shown.keys()
    results = StudyResults(read_study(make_study()))
    assert fronts(results).values == {"boxes": []}  # a study without fronts
    assert paths(results) is not None and jobs(results) is not None
    assert next(iter(page_sections("study", results))) == "header"
    assert pairs(results) is None or pairs(results).values


def test_dropped_rows_are_listed_by_split(make_run):
    report = {"train": {"rows": 5, "kept": 4, "dropped": {"empty": 1}}, "test": {"rows": 2}, "other": "text"}
    assert [(entry["split"], entry["rows"], entry["dropped"]) for entry in data_reports(report)] == [
        ("train", 5, {"empty": 1}),
        ("test", 2, {}),
    ]
    assert data_reports({"rows": 3})[0]["split"] == "all" and data_reports(None) == []
    section = origin(read_run(make_run()))
    assert section is None or section.title == "Where it comes from"
