"""A page is a list of sections: the lab's own in their order, and those of packs in the places that they name."""

from __future__ import annotations

import pytest
from synthetic_runs import edit

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.reports import sections
from rlhf_lab.reports.monitor.panels import lights
from rlhf_lab.reports.report import write_report
from rlhf_lab.reports.reward.card import criteria
from rlhf_lab.reports.run.header import data_reports
from rlhf_lab.reports.run.samples import corpus, corpus_dots
from rlhf_lab.reports.sections import PageSection, ReportTable, page_sections, section_givers
from rlhf_lab.reports.study.claims import fronts
from rlhf_lab.reports.study.header import jobs
from rlhf_lab.reports.study.paths import paths
from rlhf_lab.reports.study.results import StudyResults
from rlhf_lab.results.rundir import read_run
from rlhf_lab.studies.frame import read_study


def weather(run):
    """A section of another package."""
    return PageSection("Weather", f"It rained on {run.recipe}.")


def laps(run):
    """A section with a table, a template of its package and a file."""
    return PageSection(
        "Laps",
        "Read from `laps.csv`.",
        table=ReportTable(("lap", "seconds"), [("first", "<b>61</b>")]),
        template="other_lab:laps.html.j2",
        values={"laps": 7},
        files={"laps.txt": "7 laps"},
    )


def tides(run):
    raise RuntimeError("no tide table")


def contribute(monkeypatch, *references):
    monkeypatch.setattr(sections, "contributed_sections", lambda kind: references if kind == "run" else ())


def test_a_section_that_cannot_be_placed_or_loaded_is_named(monkeypatch):
    contribute(monkeypatch, f"{__name__}:weather after roof")
    with pytest.raises(ConfigError, match=r"weather cannot follow 'roof', because a run's page has no such section"):
        section_givers("run")
    for reference in (f"{__name__}:sunshine", "no_such_module:weather", f"{__name__}.weather"):
        contribute(monkeypatch, reference)
        with pytest.raises(ConfigError, match=rf"section {reference}: .*write it as module:function"):
            section_givers("run")
    contribute(monkeypatch, f"{__name__}:weather", f"{__name__}:weather after gains")
    with pytest.raises(ConfigError, match=r"weather: a run's page already has section 'weather'; rename the function"):
        section_givers("run")


def test_sections_that_follow_one_section_keep_their_order(monkeypatch):
    references = (f"{__name__}:weather after gains", f"{__name__}:laps after gains", f"{__name__}:tides after weather")
    contribute(monkeypatch, *references)
    names = list(section_givers("run"))
    position = names.index("gains")
    assert names[position : position + 5] == ["gains", "weather", "tides", "laps", "samples"]
    contribute(monkeypatch, f"{__name__}:weather")
    assert list(section_givers("run"))[-1] == "weather"


def test_a_section_brings_its_template_and_writes_files(make_run, monkeypatch, tmp_path):
    (tmp_path / "other_lab").mkdir()
    (tmp_path / "other_lab/__init__.py").touch()
    (tmp_path / "other_lab/laps.html.j2").write_text(
        '{% extends "section.html.j2" %}{% block body %}'
        '<p>{% include ":words.txt" %} of {{ id }}: {{ laps }}</p>{% endblock %}'
    )
    (tmp_path / "other_lab/words.txt").write_text("All")
    monkeypatch.syspath_prepend(tmp_path)
    contribute(monkeypatch, f"{__name__}:laps after policies")
    directory = make_run()
    page = write_report(directory).read_text()
    section = page[page.index('<section id="laps">') : page.index('<section id="gains">')]
    assert "Read from <code>laps.csv</code>." in section and "<td>&lt;b&gt;61&lt;/b&gt;</td>" in section
    assert "<p>All of laps: 7</p>" in section
    assert (directory / "laps.txt").read_text() == "7 laps"


def test_a_giver_that_raises_ends_the_report_with_its_own_error(make_run, monkeypatch):
    contribute(monkeypatch, f"{__name__}:tides")
    directory = make_run()
    with pytest.raises(RuntimeError, match="no tide table"):
        write_report(directory)
    assert not (directory / "report.html").exists()


@pytest.mark.slow
def test_sections_without_content_are_left_out(make_run, make_study):
    run = read_run(make_run())
    assert lights(run).values["lights"]
    shown = page_sections("run", run)
    assert {"header", "policies", "settings"} <= shown.keys() < section_givers("run").keys()
    results = StudyResults(read_study(make_study()))
    assert fronts(results).values == {"boxes": []}  # a study without fronts
    assert paths(results) is not None and jobs(results) is not None


def with_metrics(directory, numbers: dict[str, float]):
    metrics = {name: {"mean": n, "low": n, "high": n, "n": 1, "clusters": 1} for name, n in numbers.items()}
    edit(directory / "result.json", metrics=metrics)
    return read_run(directory)


def test_parts_of_a_reward_and_made_data_have_figures_where_there_are_numbers(make_run):
    directory = make_run(policies=())
    assert criteria(read_run(directory)) is None and corpus_dots(read_run(directory)) is None
    run = with_metrics(directory, {"agreement/words": 0.2, "weight/words": 1.0, "weight/praise": -1.0})
    assert len(criteria(run).figures) == 2
    section = corpus(with_metrics(directory, {"made/items": 150.0, "made/acceptance": 0.8, "made/rejected/tie": 30.0}))
    assert section.title == "Synthetic data" and len(section.figures) == 1


def test_dropped_rows_are_listed_by_split():
    report = {"train": {"rows": 5, "kept": 4, "dropped": {"empty": 1}}, "test": {"rows": 2}, "other": "text"}
    assert [(entry["split"], entry["rows"], entry["dropped"]) for entry in data_reports(report)] == [
        ("train", 5, {"empty": 1}),
        ("test", 2, {}),
    ]
    assert data_reports({"rows": 3})[0]["split"] == "all" and data_reports(None) == []
