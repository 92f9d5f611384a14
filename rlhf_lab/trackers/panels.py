"""Panels of the W&B dashboard, which `dashboard.py` makes.

Curves have a run's `step` as x axis. Bars show the final value of a metric, `final/<metric>`. In a study, bars
and the curves of the last section are grouped by level, the value of the compared setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
        Curve("CUSUMs: alarm above 1", "thresholds", ("monitor/length_cusum", "monitor/parting")),
        Curve("Audit: wins against the start policy, ties half", "fraction", ("audit/win_rate", "audit/lower_bound")),
        Curve("Audit: evidence against the policy", "e-value", ("audit/e_value",)),
        Curve("Verbose and unreadable samples", "fraction", ("verbose", "garble")),
        Curve("Samples without a reward", "fraction", ("unscored",)),
    ),
    "Gold vs proxy": (
        Curve("Gold reward of the samples", "gold points, or the unit of needs.gold", ("gold",)),
        Curve("Gold reward and reward of training over KL", "reward", ("gold", "reward"), x="kl"),
        Points("Gold reward against proxy reward (each in its own unit) of final policies", "proxy", "gold"),
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
        Bars("Proxy reward by level", "reward that training maximises", "proxy"),
        Bars("Win rate by level", "fraction", "win_rate"),
        Bars("KL by level", "nats per response", "kl"),
        Bars("Response length by level", "tokens", "tokens"),
        Bars("Accuracy of answers by level", "fraction", "correct"),
        Curve("Reward along training by level", "reward", ("reward",), grouped=True),
        Curve("Gold reward along training by level", "gold points, or the unit of needs.gold", ("gold",), grouped=True),
        Curve("KL along training by level", "nats per response", ("kl",), grouped=True),
    ),
}
