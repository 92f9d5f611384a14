"""The local page with the panels of the W&B dashboard: one list, for runs with their upstream stages and studies."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic_runs import write_run, write_study

from rlhf_lab.cli.commands import dashboard_command
from rlhf_lab.reports import panels
from rlhf_lab.trackers.panels import SECTIONS, Bars, Curve, Nodes, Points


def titles_of(page: Path, *kinds: type) -> list[str]:
    """Return the titles of the panels of some kinds that a page shows."""
    text = page.read_text()
    everything = [panel for section in SECTIONS.values() for panel in section if isinstance(panel, kinds)]
    return [panel.title for panel in everything if f"<h2>{panel.title}</h2>" in text]


def curve_run(group: str, *values: float, is_level: bool = True) -> panels.PanelRun:
    rows = pd.DataFrame({"step": range(1, len(values) + 1), "kl": values, "reward/bt": values})
    return panels.PanelRun(group, is_level, rows, {"kl": values[-1], "gold": 2 * values[-1]})


def test_a_run_shows_its_own_curves_and_those_of_reused_stages(tmp_path):
    upstream = write_run(tmp_path, "sft", policies=())
    manifest = json.loads((upstream / "manifest.json").read_text())
    (upstream / "manifest.json").write_text(json.dumps({**manifest, "recipe": "sft", "needs": {}}))
    path = write_run(tmp_path)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["needs"] = {"policy": {"recipe": "sft", "dir": str(upstream)}, "reward": {"source": "hub/model"}}
    (path / "manifest.json").write_text(json.dumps(manifest))
    dashboard_command([str(path)])
    page = path / "dashboard.html"
    assert titles_of(page, Curve) == ["KL(policy ‖ reference)", "Loss"]
    assert len(titles_of(page, Points)) == 2 and not titles_of(page, Bars)
    groups = [run.group for run in panels._runs([("", path)])]
    assert groups == ["sft", "dpo_iterative"]
    assert ">sft<" in page.read_text()


def test_a_study_compares_its_levels(tmp_path):
    page = panels.write_dashboard(write_study(tmp_path))
    shown = titles_of(page, Bars)
    assert shown == ["Gold reward by level", "Proxy reward by level", "KL by level", "Response length by level"]
    assert "KL along training by level" in titles_of(page, Curve)


def test_the_curve_of_a_level_is_the_mean_with_its_standard_error():
    """Values 1 and 3 at step 1, 2 and 6 at step 2: means 2 and 4, standard errors √2/√2 = 1 and √8/√2 = 2."""
    logged = [panels._values(curve_run("a", *values).rows, "step", "kl") for values in ((1.0, 2.0), (3.0, 6.0))]
    first, second = panels._mean_curve(logged)
    assert (first.y, first.low, first.high) == pytest.approx((2, 1, 3))
    assert (second.y, second.low, second.high) == pytest.approx((4, 2, 6))
    assert (first.x, second.x) == (1, 2)
    # A run without values does not count, and a single run has no standard error.
    (only, _) = panels._mean_curve([logged[0], (np.zeros(0), np.zeros(0))])
    assert only.y == 1 and math.isnan(only.low) and only.tooltip["step"] == "1"
    # Over KL, the tooltip has the KL.
    (point,) = panels._mean_curve([(np.array([0.25]), np.array([2.0]))], "kl")
    assert point.tooltip == {"kl": "0.250", "value": "2.00"}


def test_panels_without_numbers_are_left_out_and_nodes_are_found_by_their_pattern():
    runs = [curve_run("a", 1.0, 2.0), curve_run("sft", 5.0, is_level=False)]
    assert panels._box(Curve("t", "u", ("beta",)), runs) is None
    assert panels._box(Bars("t", "u", "win_rate"), runs) is None
    assert panels._box(Points("t", "kl", "proxy"), runs) is None
    assert panels._metrics_of(Nodes("t", "u", r"^reward/"), runs) == ["reward/bt"]
    assert panels._box(Bars("t", "u", "kl"), runs[1:]) is None  # a stage without a level is not compared
