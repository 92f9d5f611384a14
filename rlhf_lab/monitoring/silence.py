"""Silent failures of a stage that completed: no signal, nothing learned, a policy that did not move.

Each rule reads the numbers that the stage logged and returns a remark with the likely cause, or None. A remark does not
fail the stage: a run that was meant to be short may well have learned nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlhf_lab.statistics.estimates import Estimate
from rlhf_lab.training.settings import StageSettings

Rows = Sequence[Mapping[str, Any]]

LEAST_ROWS = 6
"""Logged losses below which a fall cannot be told from noise."""
NO_GRADIENT = 1e-8
"""Gradient norm up to which no gradient arrived."""
NO_DISTANCE = 1e-3
"""Nats of KL per reply below which a policy is its reference for every practical purpose."""


def remarks(
    settings: type[StageSettings], rows: Rows, policies: Sequence[Mapping[str, Any]], metrics: Mapping[str, Any]
) -> list[str]:
    """Every remark on one completed stage, in the order of cause and effect.

    Args:
        settings: of the algorithm.
        rows: of metrics.jsonl.
        policies: {"name", "metrics"} each, the reference first.
        metrics: of the stage: numbers and Estimates.
    """
    last_policy = policies[-1]["metrics"] if policies else {}
    results = [
        no_reward(rows) or wasted_groups(metrics),  # without a reward there is nothing to compare in a group
        no_gradient(rows),
        loss_did_not_fall(rows) if settings.loss_falls else None,
        no_better_than_chance(settings, {**last_policy, **metrics}),
        same_as_reference(policies),
    ]
    return [remark for remark in results if remark]


def no_reward(rows: Rows) -> str | None:
    """The reward scored nothing, or gave every reply of an iteration the same."""
    unscored = _column(rows, "unscored")
    if len(unscored) and unscored.min() >= 1:
        return (
            "no signal: the reward scored none of the sampled replies, so nothing was trained, by penalties neither; "
            "likely the reward abstains on this data (look at reward.terms)"
        )
    spread = _column(rows, "reward_sd")
    if len(spread) and spread.max() <= 1e-6 and _penalties_differ(rows):
        return (
            "the reward gave all sampled replies the same score; the policy was trained on penalties alone "
            f"({', '.join(_penalties(rows))} in metrics.jsonl); likely the reward cannot tell replies apart"
        )
    if len(spread) and spread.max() <= 1e-6:
        return (
            "no signal: in every iteration all sampled replies had the same reward; likely the reward cannot tell them "
            f"apart, or they are the same (rollout.temperature){_cut_off(rows)}"
        )
    return None


def wasted_groups(metrics: Mapping[str, Any]) -> str | None:
    """In (nearly) all groups the replies to a prompt have the same score, so that comparing them says nothing."""
    share = _estimate(metrics.get("wasted_groups"))
    if share is None or share.mean < 0.9:
        return None
    groups = "every group" if share.mean >= 1 else f"{share.mean:.0%} of groups"
    return (
        f"{groups} wasted: the replies to a prompt all had the same score; likely the task is too hard or too easy "
        "for this policy, or algorithm.group_size or rollout.temperature is too small (algorithm.dynamic_sampling "
        "draws other prompts)"
    )


def no_gradient(rows: Rows) -> str | None:
    """No gradient arrived at any logged step."""
    norms = _column(rows, "grad_norm")
    if not len(norms) or norms.max() > NO_GRADIENT:
        return None
    return (
        "no gradient: its norm was 0 at every logged step, so no weight changed; likely the loss gets no signal from "
        "the reward, or nothing of the model is trainable"
    )


def loss_did_not_fall(rows: Rows) -> str | None:
    """The last third of the logged losses is not below the first third by more than one standard error."""
    losses = _column(rows, "loss")
    if len(losses) < LEAST_ROWS:
        return None
    third = len(losses) // 3
    first, last = losses[:third], losses[-third:]
    errors = [float(losses_third.std(ddof=1)) / math.sqrt(third) for losses_third in (first, last)]
    if first.mean() - last.mean() > math.hypot(*errors):
        return None
    change = f"from {first.mean():.3g} to {last.mean():.3g}"
    return (
        f"nothing learned: the loss went {change} (first and last third of training); "
        "likely too few steps, or algorithm.lr is too small or so large that training diverged"
    )


def no_better_than_chance(settings: type[StageSettings], metrics: Mapping[str, Any]) -> str | None:
    """The interval of a held-out accuracy holds ½ or lies below it."""
    name = settings.chance_metric
    value = _estimate(metrics.get(name))
    if value is None or not value.bounded or value.low > 0.5:
        return None
    title = name.partition("/")[0].replace("_", " ")
    interval = f"[{value.low:.3f}, {value.high:.3f}]"
    if not settings.makes_model:  # it trains nothing: what it judges was trained by another stage
        return f"held-out {title} of the judged reward, {value.mean:.3f} {interval}, is not above chance"
    return (
        f"nothing learned: held-out {title} {value.mean:.3f} {interval} is not above chance; likely too few pairs or "
        "steps, a wrong algorithm.lr, or labels that the text does not explain (chosen and rejected swapped?)"
    )


def same_as_reference(policies: Sequence[Mapping[str, Any]]) -> str | None:
    """Policies that did not leave their reference, the first one."""
    near = {}
    for policy in policies[1:]:
        kl = _estimate(policy["metrics"].get("kl"))
        if kl is not None and abs(kl.mean) < NO_DISTANCE:
            near[policy["name"]] = kl.mean
    if not near:
        return None
    verb = "equals" if len(near) == 1 else "equal"
    largest = max(near.values(), key=abs)
    return (
        f"{' and '.join(near)} {verb} {policies[0]['name']}: KL {largest:.1g} nats per reply, so their rewards can "
        "differ by chance alone; likely algorithm.lr or the number of steps is too small, algorithm.beta too large, or "
        "there was no signal"
    )


def _penalties(rows: Rows) -> list[str]:
    """Names of the penalties that were logged and are not always 0."""
    names = dict.fromkeys(name for row in rows for name in row if name.startswith("penalty/"))
    return [name for name in names if _column(rows, name).any()]


def _penalties_differ(rows: Rows) -> bool:
    """Whether penalties made a difference between replies, so that scores differ where rewards need not."""
    spread = _column(rows, "score_sd")
    return bool(_penalties(rows)) and bool(len(spread)) and bool(spread.max() > 1e-6)


def _cut_off(rows: Rows) -> str:
    """A further likely cause: every reply was cut off at the token limit."""
    ended = _column(rows, "ended")
    return "; no reply ended within rollout.max_new_tokens" if len(ended) and ended.max() <= 0 else ""


def _column(rows: Rows, name: str) -> np.ndarray:
    """The finite values of a logged metric, in order."""
    values = [row[name] for row in rows if isinstance(row.get(name), int | float)]
    array = np.array(values, dtype=np.float64)
    return array[np.isfinite(array)]


def _estimate(value: object) -> Estimate | None:
    """An estimate, one read from JSON, or a bare number as one without bounds; None where it is missing or unscored."""
    if isinstance(value, Mapping):
        value = Estimate.from_dict(value) if value.get("mean") is not None else None
    if isinstance(value, int | float):
        value = Estimate(float(value), -math.inf, math.inf, 0, 0)
    return value if isinstance(value, Estimate) and not math.isnan(value.mean) else None
