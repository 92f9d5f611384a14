"""Panels of a report card and of a benchmark: what is drawn is what the stage measured, and the page stands alone."""

from __future__ import annotations

import json

import numpy as np
import pytest
from synthetic_runs import edited

from rlhf_lab.core.types import Pair
from rlhf_lab.evaluations import rm_figures
from rlhf_lab.figures.layers import Chart
from rlhf_lab.reports.report import write_run_report
from rlhf_lab.reports.reward.card import reliability, report_card
from rlhf_lab.results.rundir import read_run
from rlhf_lab.statistics.inference import clustered_mean


@pytest.fixture
def card(make_run):
    """A run with the files of a report card of an overconfident reward: margins are three times what they deserve."""
    rng = np.random.default_rng(0)
    true = np.abs(rng.normal(0, 1.5, 600))
    margin = 3 * np.where(rng.random(600) < 1 / (1 + np.exp(-true)), true, -true)
    margin[::50] = np.nan
    pairs = [Pair(f"p{i // 2}", "word " * (5 + i % 20), "word " * (5 + i % 7)) for i in range(600)]
    words = rng.integers(3, 60, 400).astype(float)
    by_length = rm_figures.score_by_length(words + rng.normal(size=400), words)
    directory = make_run()
    shown = rm_figures.pair_figures(margin, 1.0, pairs, 10) | {"score_by_length": by_length}
    (directory / rm_figures.FILE).write_text(json.dumps(shown))
    with edited(directory / "result.json") as result:
        result["policies"] = []
        result["metrics"] = {
            "accuracy": clustered_mean([1, 0, 1, 1], range(4)).to_dict(),
            "filler_slope/pairs": clustered_mean([0.3, 0.4], range(2)).to_dict(),
            "disagreement/<i>": 0.5,
            "data/train/rows": 96,
        }
    return directory


def test_the_panel_shows_what_was_measured(card):
    section = report_card(read_run(card))
    assert section is not None and section.table is not None
    boxes = {box.title: box for row in section.values["rows"] for box in row}
    for title in ("Is its confidence calibrated?", "Does accuracy depend on length?", "Scores by length"):
        assert all(isinstance(figure, Chart) for figure in boxes[title].figures) and boxes[title].figures
    named = {title: (value, note) for title, value, _, note in section.table.rows}
    assert named["accuracy"][0].startswith("0.75")
    assert named["filler per 10 words, pairs"] == ("0.35 ±0.64", "`filler_slope` over the responses of held-out pairs")
    assert "disagreement, <i>" in named
    assert not any("data" in title for title in named)


def test_every_bin_is_drawn_with_its_interval(card):
    """20 bins, 10 as they are and 10 scaled, each with its interval and its count in the tooltip."""
    shown = json.loads((card / rm_figures.FILE).read_text())["reliability"]
    assert [len(shown[name]) for name in ("raw", "scaled")] == [10, 10]
    assert sum(row["n"] for row in shown["raw"]) == 588, "unscored pairs are in no bin"
    figure = reliability(shown)
    assert figure is not None
    bins = figure.specification["datasets"]["rows0"]
    assert [row["series"] for row in bins] == ["as it is"] * 10 + ["after temperature scaling"] * 10
    for row, measured in zip(bins, shown["raw"] + shown["scaled"], strict=True):
        assert row["x"] == pytest.approx(measured["confidence"], rel=1e-4)
        assert [row["low"], row["y"], row["high"]] == pytest.approx(
            [measured[key] for key in ("low", "mean", "high")], rel=1e-4
        )
        assert row["t4"] == str(measured["n"])
    assert figure.specification["datasets"]["rows1"] == [{"x": 0.5, "y": 0.5}, {"x": 1.0, "y": 1.0}]
    raw, scaled = (np.mean([row["confidence"] - row["mean"] for row in shown[name]]) for name in ("raw", "scaled"))
    assert raw > 0.1 > 0.03 > abs(scaled)


def test_the_page_escapes_and_has_a_figure_of_its_own(card):
    page = write_run_report(card).read_text()
    assert "Report card of the reward" in page and "<i>" not in page
    assert 'xmlns="http://www.w3.org/2000/svg"' in (card / "plot.svg").read_text()
