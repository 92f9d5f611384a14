"""The W&B dashboard of the lab as code: a workspace whose panels draw what `tracker=wandb` logs.

Curves have a run's `step` as x axis. Bars read the number a run ended with, `final/<metric>`; in a study they are
grouped by `level`, the value of the compared setting, and so are the curves of the last section.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_lab.core.errors import ConfigError, LabError, MissingDependency
from rlhf_lab.core.files import write_json
from rlhf_lab.trackers import wandb as tracker

NAME = "rlhf_lab"
LEVEL = "level"
"""Key of a tracked run's config that comparisons are grouped by."""
TABLES = ("policies", "samples")


@dataclass(frozen=True)
class Curve:
    """Metrics over `x`. `grouped` draws the mean and standard error of each level instead of a line per run."""

    title: str
    unit: str
    metrics: Sequence[str]
    x: str = "step"
    grouped: bool = False


@dataclass(frozen=True)
class Bars:
    """What a metric ended with: the mean of each level."""

    title: str
    unit: str
    metric: str


@dataclass(frozen=True)
class Nodes:
    """A curve for every metric whose name matches."""

    title: str
    unit: str
    pattern: str


@dataclass(frozen=True)
class Points:
    """One metric against another, a point per run, both as they ended."""

    title: str
    x: str
    y: str


Panel = Curve | Bars | Nodes | Points

SECTIONS: dict[str, Sequence[Panel]] = {
    "Reward": (
        Curve("Reward of the samples", "reward", ("reward", "reward_kept")),
        Curve("What is trained on: reward after shaping", "score", ("score",)),
        Nodes("Nodes of the reward graph", "reward", r"^reward/"),
        Curve("Rewards of chosen and rejected replies", "reward", ("reward_best", "reward_worst")),
        Curve("Spread of the reward over replies", "standard deviation", ("reward_sd",)),
    ),
    "KL": (
        Curve("KL(policy ‖ reference)", "nats per reply", ("kl", "kl_k3", "kl_sampled")),
        Curve("Coefficient of the KL penalty", "β", ("beta",)),
        Curve("KL estimate in the loss", "nats per token", ("kl_penalty",)),
        Curve("KL(old ‖ new) of an update", "nats per token", ("approx_kl",)),
    ),
    "Length": (
        Curve("Reply length", "tokens, EOS included", ("tokens",)),
        Curve("Replies that ended with EOS", "share", ("ended",)),
        Curve("Prompts cut to fit", "prompts", ("prompts_cut",)),
    ),
    "Hacking lights": (
        Curve("Alarm level: 0 ok, 1 warning, 2 strong warning", "level", ("monitor/level",)),
        Curve("Mean length against warm-up", "standard errors", ("monitor/length_z",)),
        Curve("Reward distribution against warm-up", "KL, nats", ("monitor/reward_kl",)),
        Curve(
            "CUSUMs: alarm above 1", "thresholds", ("monitor/length_cusum", "monitor/disagreement", "monitor/parting")
        ),
        Curve("Verbose and unreadable samples", "share", ("verbose", "garble")),
        Curve("Samples without a reward", "share", ("unscored",)),
    ),
    "Gold vs proxy": (
        Curve("Gold reward of the samples", "gold points, or the unit of needs.gold", ("gold",)),
        Curve("Gold and learned reward over KL", "reward", ("gold", "reward"), x="kl"),
        Points("Gold reward against learned reward (sd) of final policies", "proxy", "gold"),
        Points("Gold reward against KL (nats per reply) of final policies", "kl", "gold"),
    ),
    "Optimisation": (
        Curve("Loss", "per token or pair", ("loss",)),
        Curve("Held-out loss", "nats per token", ("heldout_nll",)),
        Curve("Gradient norm before clipping", "norm", ("grad_norm", "grad_norm/critic")),
        Curve("Learning rate", "share of the peak", ("lr_scale",)),
        Curve("Tokens whose ratio was cut", "share", ("clip_fraction",)),
        Curve("Critic: explained variance", "share", ("explained_variance",)),
        Curve("Critic: loss", "per token", ("value_loss",)),
        Curve("Entropy of the samples", "nats per token", ("entropy",)),
        Curve("Implicit reward: accuracy", "share of pairs", ("accuracy",)),
        Curve("Implicit reward: margin", "as the loss defines it", ("margin",)),
        Curve("Groups without a difference in reward", "share", ("wasted_groups",)),
    ),
    "Study: levels compared": (
        Bars("Gold reward by level", "gold points, or the unit of needs.gold", "gold"),
        Bars("Learned reward by level", "sd of the reference's replies", "proxy"),
        Bars("Win rate by level", "share", "win_rate"),
        Bars("KL by level", "nats per reply", "kl"),
        Bars("Reply length by level", "tokens", "tokens"),
        Bars("Accuracy of answers by level", "share", "correct"),
        Curve("Reward along training by level", "reward", ("reward",), grouped=True),
        Curve("Gold reward along training by level", "gold points, or the unit of needs.gold", ("gold",), grouped=True),
        Curve("KL along training by level", "nats per reply", ("kl",), grouped=True),
    ),
}


def workspace(entity: str = "", project: str = NAME) -> Any:
    """The dashboard as a wandb-workspaces object; builds offline."""
    tracker.load()
    try:
        import wandb_workspaces.reports.v2 as reports
        import wandb_workspaces.workspaces as workspaces
    except ImportError as error:
        raise MissingDependency("the dashboard", "'rlhf_lab[wandb]'") from error
    sections = []
    for name, panels in SECTIONS.items():
        library_panels = [_to_library_panel(reports, panel) for panel in panels]
        sections.append(workspaces.Section(name=name, panels=library_panels, is_open=True))
    tables: list[Any] = [reports.WeavePanelSummaryTable(table_name=name) for name in TABLES]
    evaluation = workspaces.Section(name="Evaluation: policies and samples", panels=tables, is_open=True)
    sections.insert(-1, evaluation)  # the comparison of levels stays last
    return workspaces.Workspace(
        entity=entity,
        project=project,
        name=NAME,
        sections=sections,
        settings=workspaces.WorkspaceSettings(x_axis="step"),
    )


def _to_library_panel(reports: Any, panel: Panel) -> Any:
    """A panel as the library's object."""
    by_level = {"groupby": reports.Config(LEVEL), "groupby_aggfunc": "mean", "groupby_rangefunc": "stderr"}
    if isinstance(panel, Points):
        x = reports.SummaryMetric(f"final/{panel.x}")
        y = reports.SummaryMetric(f"final/{panel.y}")
        return reports.ScatterPlot(title=panel.title, x=x, y=y)
    if isinstance(panel, Bars):
        metric = reports.SummaryMetric(f"final/{panel.metric}")
        return reports.BarPlot(title=panel.title, title_x=panel.unit, metrics=[metric], **by_level)
    if isinstance(panel, Nodes):
        return reports.LinePlot(title=panel.title, title_y=panel.unit, x="step", metric_regex=panel.pattern)
    grouping = by_level if panel.grouped else {}
    return reports.LinePlot(title=panel.title, title_y=panel.unit, x=panel.x, y=list(panel.metrics), **grouping)


def write(path: Path) -> Path:
    """Write the dashboard as JSON, as W&B stores a view."""
    view = workspace()._to_model()
    write_json(path, json.loads(view.model_dump_json(by_alias=True, exclude_none=True)))
    return path


def push(target: str) -> str:
    """Save the dashboard in a W&B project, `entity/project`. Returns its address. Raises LabError without a login."""
    entity, _, project = target.partition("/")
    if not entity or not project or "/" in project:
        raise ConfigError(f"--push {target} is not entity/project; write for example --push my-team/{NAME}")
    if not tracker.logged_in(tracker.load()):
        raise LabError("pushing the dashboard needs a login; run `wandb login` or set WANDB_API_KEY first")
    return str(workspace(entity, project).save().url)
