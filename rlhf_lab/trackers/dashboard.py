"""W&B dashboard as code: a workspace with the panels of `panels.py`, which plot what `tracker=wandb` logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlhf_lab.core.errors import ConfigError, LabError, MissingDependency
from rlhf_lab.core.files import write_json
from rlhf_lab.trackers import wandb as tracker
from rlhf_lab.trackers.panels import SECTIONS, Bars, Nodes, Panel, Points

NAME = "rlhf_lab"
LEVEL = "level"
"""Key in a tracked run's config that comparisons are grouped by."""
TABLES = ("policies", "samples")


def workspace(entity: str = "", project: str = NAME) -> Any:
    """Return the dashboard as a wandb-workspaces object. It needs no network."""
    # Sets environment variables that the client reads when it is imported.
    tracker.load()
    try:
        import wandb_workspaces.reports.v2 as reports
        import wandb_workspaces.workspaces as workspaces
    except ImportError as error:
        raise MissingDependency("the dashboard", "'rlhf_lab[wandb]'") from error
    panels = {name: [_to_library_panel(reports, panel) for panel in listed] for name, listed in SECTIONS.items()}
    last = panels.popitem()  # the comparison of levels
    panels["Evaluation: policies and samples"] = [reports.WeavePanelSummaryTable(table_name=name) for name in TABLES]
    sections = [workspaces.Section(name=name, panels=listed, is_open=True) for name, listed in (*panels.items(), last)]
    return workspaces.Workspace(
        entity=entity,
        project=project,
        name=NAME,
        sections=sections,
        settings=workspaces.WorkspaceSettings(x_axis="step"),
    )


def _to_library_panel(reports: Any, panel: Panel) -> Any:
    # mean of each level, with the standard error over its runs
    by_level = {"groupby": reports.Config(LEVEL), "groupby_aggfunc": "mean", "groupby_rangefunc": "stderr"}
    if isinstance(panel, Points):
        x, y = (reports.SummaryMetric(f"final/{metric}") for metric in (panel.x, panel.y))
        return reports.ScatterPlot(title=panel.title, x=x, y=y)
    if isinstance(panel, Bars):
        metric = reports.SummaryMetric(f"final/{panel.metric}")
        return reports.BarPlot(title=panel.title, title_x=panel.unit, metrics=[metric], **by_level)
    if isinstance(panel, Nodes):
        return reports.LinePlot(title=panel.title, title_y=panel.unit, x="step", metric_regex=panel.pattern)
    grouping = by_level if panel.grouped else {}
    return reports.LinePlot(title=panel.title, title_y=panel.unit, x=panel.x, y=list(panel.metrics), **grouping)


def write(path: Path) -> Path:
    """Write the dashboard as JSON, in the form in which W&B stores a view."""
    # The library has no public method for this.
    view = workspace()._to_model()
    write_json(path, json.loads(view.model_dump_json(by_alias=True, exclude_none=True)))
    return path


def push(target: str) -> str:
    """Save the dashboard in a W&B project, `entity/project`. Return its address. Raise LabError without a login."""
    entity, _, project = target.partition("/")
    if not entity or not project or "/" in project:
        raise ConfigError(f"--push {target} is not of the form entity/project; write e.g. --push my-team/{NAME}")
    if not tracker.logged_in(tracker.load()):
        raise LabError("pushing the dashboard needs a login; run `wandb login` or set WANDB_API_KEY first")
    return str(workspace(entity, project).save().url)
