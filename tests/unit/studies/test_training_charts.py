"""Selection and order of the curves of a run; the curves that the monitor's section takes for itself."""

from __future__ import annotations

import pandas as pd

from rlhf_lab.reports.monitor.panels import in_monitor_section, monitor
from rlhf_lab.reports.run.training import overlaid_curves, training_curves
from rlhf_lab.results.rundir import read_run

ROWS = pd.DataFrame(
    {
        "step": range(100),
        "time": range(100),
        "zeal": [i % 7 for i in range(100)],
        "loss/critic": [1 / (i + 1) for i in range(100)],
        "loss": [2 / (i + 1) for i in range(100)],
        "beta": [0.1] * 100,
        "monitor/length_z": range(100),
    }
)


def test_what_varies_is_drawn_most_looked_at_first_and_the_rest_is_listed():
    charts, uncharted = training_curves(ROWS)
    assert [name for name, _ in charts] == ["loss", "loss/critic", "zeal"]
    assert all(name in chart.title for name, chart in charts)
    assert uncharted == [("beta", "0.100", "0.100")]
    assert training_curves(ROWS.drop(columns="step")) == ([], [])


def test_two_runs_share_a_chart_where_both_logged_the_metric():
    other = ROWS.drop(columns="zeal").assign(beta=0.3)
    assert [name for name, _ in overlaid_curves({"A": ROWS, "B": other})] == ["loss", "loss/critic", "beta"]


def test_the_section_of_the_monitor(make_run):
    assert in_monitor_section("alarm/length_z") and in_monitor_section("alarm_at/length_z")
    assert not in_monitor_section("gold") and not in_monitor_section("length_correlation")
    assert monitor(read_run(make_run())) is None  # it was not watched
