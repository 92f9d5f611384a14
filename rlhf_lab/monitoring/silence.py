"""Detection of silent failures of a completed stage: no signal, nothing learned, a policy that did not change.

Each rule reads metrics that the stage logged and returns a note with the likely cause, or None. A note does not fail
the stage, because an intentionally short run may have learned nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlhf_lab.statistics.estimates import Estimate, as_estimate
from rlhf_lab.training.settings import StageSettings

Rows = Sequence[Mapping[str, Any]]

LEAST_ROWS = 6
"""Minimum number of logged losses; with fewer, a fall cannot be distinguished from noise."""
NO_GRADIENT = 1e-8
"""Gradient norm up to which a gradient counts as missing."""
NO_DISTANCE = 1e-3
"""KL in nats per response below which a policy is practically equal to its reference."""


def remarks(
    settings: type[StageSettings], rows: Rows, policies: Sequence[Mapping[str, Any]], metrics: Mapping[str, Any]
) -> list[str]:
    """Return all notes on a completed stage, in the order of cause and effect.

    Args:
        policies: {"name", "metrics"} of each policy, the reference first.
        metrics: metrics of the stage: numbers and Estimates.
    """
    last_policy = policies[-1]["metrics"] if policies else {}
    results = [
        no_reward(rows) or wasted_groups(metrics),  # without a reward, groups have nothing to compare
        no_gradient(rows),
        loss_did_not_fall(rows) if settings.evidence.loss_falls else None,
        no_better_than_chance(settings, {**last_policy, **metrics}),
        same_as_reference(policies),
    ]
    return [note for note in results if note]


def no_reward(rows: Rows) -> str | None:
    """Return a note if the reward scored nothing, or gave all responses of each iteration the same reward."""
    unscored = _column(rows, "unscored")
    if len(unscored) and unscored.min() >= 1:
        return (
            "no signal: the reward scored none of the sampled responses, so nothing was trained, not even on "
            "penalties; likely the reward abstains on this data (check reward.terms)"
        )
    spread = _column(rows, "reward_sd")
    if not len(spread) or spread.max() > 1e-6:  # equal rewards may differ by rounding
        return None
    if _penalties_differ(rows):
        return (
            "the reward gave all sampled responses the same score; the policy was trained on penalties only "
            f"({', '.join(_penalties(rows))} in metrics.jsonl); likely the reward cannot distinguish responses"
        )
    return (
        "no signal: in every iteration all sampled responses had the same reward; likely the reward cannot "
        f"distinguish them, or they are identical (rollout.temperature){_cut_off(rows)}"
    )


def wasted_groups(metrics: Mapping[str, Any]) -> str | None:
    """Return a note if the responses to a prompt have the same score in (nearly) all groups."""
    fraction = _scored(metrics.get("wasted_groups"))
    if fraction is None or fraction.mean < 0.9:
        return None
    groups = "every group" if fraction.mean >= 1 else f"{fraction.mean:.0%} of groups"
    return (
        f"{groups} wasted: the responses to a prompt all had the same score; likely the task is too hard or too easy "
        "for this policy, or algorithm.group_size or rollout.temperature is too small (algorithm.dynamic_sampling "
        "samples other prompts)"
    )


def no_gradient(rows: Rows) -> str | None:
    """Return a note if the gradient was zero at every logged step."""
    norms = _column(rows, "grad_norm")
    if not len(norms) or norms.max() > NO_GRADIENT:
        return None
    return (
        "no gradient: its norm was 0 at every logged step, so no weight changed; likely the loss gets no signal from "
        "the reward, or no parameter of the model is trainable"
    )


def loss_did_not_fall(rows: Rows) -> str | None:
    """Return a note unless the last third of the logged losses is below the first by over one standard error."""
    losses = _column(rows, "loss")
    if len(losses) < LEAST_ROWS:
        return None
    # thirds leave out the middle, where a falling loss is neither high nor low
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
    """Return a note if the interval of a held-out accuracy contains ½ or is below it."""
    name = settings.evidence.chance_metric
    value = _scored(metrics.get(name))
    if value is None or not value.bounded or value.low > 0.5:
        return None
    title = name.partition("/")[0].replace("_", " ")
    interval = f"[{value.low:.3f}, {value.high:.3f}]"
    if not settings.outputs.model:  # the stage trains nothing; it judges a reward that another stage trained
        return f"held-out {title} of the judged reward, {value.mean:.3f} {interval}, is not above chance"
    return (
        f"nothing learned: held-out {title} {value.mean:.3f} {interval} is not above chance; likely too few pairs or "
        "steps, a wrong algorithm.lr, or labels that the text does not explain (chosen and rejected swapped?)"
    )


def same_as_reference(policies: Sequence[Mapping[str, Any]]) -> str | None:
    """Return a note on policies that did not move away from their reference, which is the first policy."""
    near = {}
    for policy in policies[1:]:
        kl = _scored(policy["metrics"].get("kl"))
        if kl is not None and abs(kl.mean) < NO_DISTANCE:
            near[policy["name"]] = kl.mean
    if not near:
        return None
    verb = "equals" if len(near) == 1 else "equal"
    largest = max(near.values(), key=abs)
    return (
        f"{' and '.join(near)} {verb} {policies[0]['name']}: KL {largest:.1g} nats per response, so their rewards can "
        "differ only by chance; likely algorithm.lr or the number of steps is too small, algorithm.beta too large, or "
        "there was no signal"
    )


def _penalties(rows: Rows) -> list[str]:
    """Return the names of the penalties that were logged and are not always 0."""
    logged = dict.fromkeys(name for row in rows for name in row)
    penalties = [name for name in logged if name.startswith("penalty/")]
    return [name for name in penalties if _column(rows, name).any()]


def _penalties_differ(rows: Rows) -> bool:
    """Return True if penalties made scores differ between responses, even if rewards are equal."""
    return bool(_penalties(rows)) and bool((_column(rows, "score_sd") > 1e-6).any())


def _cut_off(rows: Rows) -> str:
    """Return a further likely cause: all responses were truncated at the token limit; otherwise empty."""
    finished = _column(rows, "ended")
    return "; no response ended within rollout.max_new_tokens" if len(finished) and not finished.any() else ""


def _column(rows: Rows, name: str) -> np.ndarray:
    """Return the finite values of a logged metric, in order."""
    values = [row[name] for row in rows if isinstance(row.get(name), int | float) and math.isfinite(row[name])]
    return np.array(values, dtype=np.float64)


def _scored(value: object) -> Estimate | None:
    """Return an Estimate from an Estimate, its JSON, or a number (without bounds); None if missing or unscored."""
    estimate = as_estimate(value)
    return None if estimate is None or math.isnan(estimate.mean) else estimate
