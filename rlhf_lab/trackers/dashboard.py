"""W&B dashboard as code: a workspace whose panels plot the metrics that `tracker=wandb` logs.

Curves have a run's `step` as x axis. Bars show the final value of a metric, `final/<metric>`. In a study, bars and the
curves of the last section are grouped by `level`, the value of the compared setting.
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
"""Key in a tracked run's config that comparisons are grouped by."""
TABLES = ("policies", "samples")


@dataclass(frozen=True)
class Curve:
    """Metrics over `x`. If `grouped` is true, it plots mean and standard error of each level instead of each run."""

    title: str
    unit: str
    metrics: Sequence[str]
    x: str = "step"
    grouped: bool = False


@dataclass(frozen=True)
class Bars:
    """Bars of the mean final value of a metric for each level."""

    title: str
    unit: str
    metric: str


@dataclass(frozen=True)
class Nodes:
    """Curves of all metrics whose names match a pattern."""

    title: str
    unit: str
    pattern: str


@dataclass(frozen=True)
class Points:
    """Scatter plot of two final metrics, with one point per run."""

    title: str
    x: str
    y: str


Panel = Curve | Bars | Nodes | Points

SECTIONS: dict[str, Sequence[Panel]] = {
    "Reward": (
        Curve("Reward of the samples", "reward", ("reward", "reward_kept")),
        Curve("What is trained on: reward after shaping", "score", ("score",)),
        Nodes("Nodes of the reward graph", "reward", r"^reward/"),
        Curve("Rewards of chosen and rejected responses", "reward", ("reward_best", "reward_worst")),
        Curve("Spread of the reward over responses", "standard deviation", ("reward_sd",)),
    ),
    "KL": (
        Curve("KL(policy ‖ reference)", "nats per response", ("kl", "kl_k3", "kl_sampled")),
        Curve("Coefficient of the KL penalty", "β", ("beta",)),
        Curve("KL estimate in the loss", "nats per token", ("kl_penalty",)),
        Curve("KL(old ‖ new) of an update", "nats per token", ("approx_kl",)),
    ),
    "Length": (
        Curve("Response length", "tokens, EOS included", ("tokens",)),
        Curve("Responses that ended with EOS", "fraction", ("ended",)),
        Curve("Prompts cut to fit", "prompts", ("prompts_cut",)),
    ),
    "Hacking lights": (
        Curve("Alarm level: 0 ok, 1 warning, 2 critical", "level", ("monitor/level",)),
        Curve("Mean length against warm-up", "standard errors", ("monitor/length_z",)),
        Curve("Reward distribution against warm-up", "KL, nats", ("monitor/reward_kl",)),
        Curve(
            "CUSUMs: alarm above 1", "thresholds", ("monitor/length_cusum", "monitor/disagreement", "monitor/parting")
        ),
        Curve("Audit: wins against the start policy, ties half", "fraction", ("audit/win_rate", "audit/lower_bound")),
        Curve("Audit: evidence against the policy", "e-value", ("audit/e_value",)),
        Curve("Verbose and unreadable samples", "fraction", ("verbose", "garble")),
        Curve("Samples without a reward", "fraction", ("unscored",)),
    ),
    "Gold vs proxy": (
        Curve("Gold reward of the samples", "gold points, or the unit of needs.gold", ("gold",)),
        Curve("Gold and learned reward over KL", "reward", ("gold", "reward"), x="kl"),
        Points("Gold reward against learned reward (sd) of final policies", "proxy", "gold"),
        Points("Gold reward against KL (nats per response) of final policies", "kl", "gold"),
    ),
    "Optimisation": (
        Curve("Loss", "per token or pair", ("loss",)),
        Curve("Held-out loss", "nats per token", ("heldout_nll",)),
        Curve("Gradient norm before clipping", "norm", ("grad_norm", "grad_norm/critic")),
        Curve("Learning rate", "fraction of the peak", ("lr_scale",)),
        Curve("Tokens with a clipped ratio", "fraction", ("clip_fraction",)),
        Curve("Critic: explained variance", "fraction", ("explained_variance",)),
        Curve("Critic: loss", "per token", ("value_loss",)),
        Curve("Entropy of the samples", "nats per token", ("entropy",)),
        Curve("Implicit reward: accuracy", "fraction of pairs", ("accuracy",)),
        Curve("Implicit reward: margin", "as the loss defines it", ("margin",)),
        Curve("Groups without a difference in reward", "fraction", ("wasted_groups",)),
    ),
    "Study: levels compared": (
        Bars("Gold reward by level", "gold points, or the unit of needs.gold", "gold"),
        Bars("Learned reward by level", "sd of the reference's responses", "proxy"),
        Bars("Win rate by level", "fraction", "win_rate"),
        Bars("KL by level", "nats per response", "kl"),
        Bars("Response length by level", "tokens", "tokens"),
        Bars("Accuracy of answers by level", "fraction", "correct"),
        Curve("Reward along training by level", "reward", ("reward",), grouped=True),
        Curve("Gold reward along training by level", "gold points, or the unit of needs.gold", ("gold",), grouped=True),
        Curve("KL along training by level", "nats per response", ("kl",), grouped=True),
    ),
}


def workspace(entity: str = "", project: str = NAME) -> Any:
    """Return the dashboard as a wandb-workspaces object. It needs no network."""
    # Sets environment variables that the client reads when it is imported.
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
    """Convert a panel to the library's object."""
    # mean of each level, with the standard error over its runs
    by_level = {"groupby": reports.Config(LEVEL), "groupby_aggfunc": "mean", "groupby_rangefunc": "stderr"}
    if isinstance(panel, Points):
        x = reports.SummaryMetric(f"final/{panel.x}")
        y = reports.SummaryMetric(f"final/{panel.y}")
        return reports.ScatterPlot(title=panel.title, x=x, y=y)
    if isinstance(panel, Bars):
        metric = reports.SummaryMetric(f"final/{panel.metric}")
        return reports.BarPlot(
            title=panel.title,
            title_x=panel.unit,
            metrics=[metric],
            **by_level,
        )
    if isinstance(panel, Nodes):
        return reports.LinePlot(title=panel.title, title_y=panel.unit, x="step", metric_regex=panel.pattern)
    grouping = by_level if panel.grouped else {}
    return reports.LinePlot(
        title=panel.title,
        title_y=panel.unit,
        x=panel.x,
        y=list(panel.metrics),
        **grouping,
    )


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
