"""The W&B dashboard draws only what is documented, says what and in which unit, and builds without a network."""

from __future__ import annotations

import re

import pytest
import wandb_log

from rlhf_lab.cli.commands import dashboard_command
from rlhf_lab.core.errors import ConfigError, LabError
from rlhf_lab.core.files import read_json
from rlhf_lab.core.metrics import declared
from rlhf_lab.trackers.dashboard import TABLES
from rlhf_lab.trackers.panels import SECTIONS, Nodes

pytest.importorskip("wandb_workspaces")


@pytest.fixture
def no_login(monkeypatch, tmp_path):
    wandb_log.hide_login(monkeypatch, tmp_path)
    return tmp_path


@pytest.fixture
def sections(no_login) -> list[dict]:
    path = no_login / "dashboard.json"
    dashboard_command([str(path)])
    return read_json(path)["spec"]["section"]["panelBankConfig"]["sections"]


def test_every_metric_of_every_panel_is_documented(sections):
    known = [metric for metric in declared() if not metric.name.startswith("<")]
    selected = []
    for panel in (panel for section in sections for panel in section["panels"]):
        config = panel["config"]
        selected += config.get("metrics", [])
        selected += [config[axis] for axis in ("xAxis", "yAxis") if config.get(axis, "step") != "step"]
    tables = [section for section in sections if section["name"] == "Evaluation: policies and samples"]
    assert [panel["viewType"] for panel in tables[0]["panels"]] == ["Weave"] * len(TABLES)
    names = [re.sub(r"^(summary_metrics\.|summary:)final/", "", name) for name in selected]
    assert len(names) > 50
    assert not [name for name in names if not any(metric.matches(name) for metric in known)]
    assert not any(metric.matches("no_such_metric") for metric in known)


def test_the_reward_nodes_panel_matches_what_is_logged(sections):
    (pattern,) = {panel.pattern for panels in SECTIONS.values() for panel in panels if isinstance(panel, Nodes)}
    assert re.search(pattern, "reward/bt")
    assert not re.search(pattern, "reward_sd")


def test_the_directory_of_a_run_does_not_become_a_file(no_login):
    with pytest.raises(ConfigError, match=r"needs a name that ends in \.json; .*: report .*dpo-1"):
        dashboard_command([str(no_login / "dpo-1")])
    assert not list(no_login.iterdir())


def test_pushing_needs_a_target_and_a_login(no_login):
    with pytest.raises(LabError, match="needs a login"):
        dashboard_command(["--push", "me/rlhf_lab"])
    with pytest.raises(ConfigError, match="is not of the form entity/project"):
        dashboard_command(["--push", "rlhf_lab"])
    with pytest.raises(ConfigError, match="a file to write or --push"):
        dashboard_command(["a.json", "b.json"])
