"""Gain of policies against their distance from the reference policy; plot and table of a run that compares policies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from rlhf_lab.figures.charts import Point, Series, estimate_tooltip
from rlhf_lab.figures.charts import frontier as draw_frontier
from rlhf_lab.figures.layers import Chart
from rlhf_lab.reports.run.policies import run_markdown
from rlhf_lab.reports.sections import PageSection, figure_boxes
from rlhf_lab.results.gains import gain, policies_on_path, policy_mean, policy_names, spread_of_first
from rlhf_lab.results.rundir import StoredRun
from rlhf_lab.results.wording import compact, metric_title
from rlhf_lab.statistics.inference import Estimate

METHODS = "Each point is a policy of a separate method: no line joins them"
BENDS_DOWN = "A line that bends down to the right is over-optimisation."


def frontier(run: StoredRun) -> PageSection | None:
    """Return the section with gain against distance and gold against proxy.

    The first figure is also a file, next to a table of the policies.
    """
    gained = kl_frontier(run)
    boxes = figure_boxes(
        ("Reward gained against distance", _gain_note(run), gained),
        ("Gold against proxy", gold_note(bool(policies_on_path(run))), proxy_against_gold(run)),
    )
    if not boxes:
        return None
    files: dict[str, str | Chart] = {}
    if gained:
        files = {"plot": gained, "table.md": run_markdown(run)}
    return PageSection(template="two.html.j2", values={"rows": [boxes]}, files=files)


def _gain_note(run: StoredRun) -> str:
    """Return how to read gain against distance in this run."""
    if not policies_on_path(run):
        return f"{METHODS}."
    if run.has_gold:
        return "If the two lines diverge, the policy maximises the proxy at the cost of gold."
    if run.has_verified_answers:
        return "Only the proxy is drawn; the fraction of correct answers is in the table."
    return "Only the proxy is known; without gold, over-optimisation cannot be seen here."


def gold_note(on_path: bool) -> str:
    """Return how to read gold against proxy.

    `on_path` is True if the policies follow one another in one training run.
    """
    return BENDS_DOWN if on_path else f"{METHODS}, and their order says nothing about over-optimisation."


def kl_frontier(run: StoredRun) -> Chart | None:
    """Plot the gain in proxy and gold against √KL, in standard deviations of the first policy if scales differ."""
    names = policy_names(run)
    kl = {name: policy_mean(run, name, "kl") for name in names}
    # A distance needs a KL, and a gain needs a second policy.
    if len(names) < 2 or not any(kl[name] for name in names[1:]):
        return None
    first, later_names = names[0], names[1:]
    kl_of_first = kl[first]
    scales = _common_scales(run, later_names)
    path = policies_on_path(run)
    series = []
    for colour, metric in enumerate(("proxy", "gold")):
        # The first policy has gain 0, at its own KL if that was measured.
        start = {"policy": first, "KL": compact(kl_of_first) if kl_of_first else "0", "gain": "0"}
        points = [Point(_root_kl(kl_of_first, 0.0)[0], 0.0, label=first, tooltip=start, joined=first in path)]
        for name in later_names:
            change = gain(run, name, metric, scale=scales[metric] if scales else 1.0)
            kl_of_policy = kl[name]
            if change and kl_of_policy and not math.isnan(kl_of_policy.mean):
                x, x_low, x_high = _root_kl(kl_of_policy, math.nan)
                gap = change.difference
                tooltip = {"policy": name, "KL": compact(kl_of_policy), **estimate_tooltip("gain", gap)}
                points.append(Point(x, gap.mean, gap.low, gap.high, x_low, x_high, name, tooltip, joined=name in path))
        if metric == "gold":  # both series have the same policies, so only one of them is labelled
            points = [replace(point, label="") for point in points]
        if len(points) > 1:
            series.append(Series(metric_title(metric), sorted(points, key=lambda point: point.x), colour))
    if not series:
        return None
    unit = f"standard deviations of {first}" if scales else "reward"
    return draw_frontier(
        series,
        title="Reward gained against distance from the reference policy",
        x_label="√KL from the reference policy, √nats per response",
        y_label=f"gain over {first}, {unit}",
        origin=True,
    )


def _common_scales(run: StoredRun, policies: Sequence[str]) -> dict[str, float] | None:
    """Return metric → standard deviation that divides its gains; None if proxy and gold fit on one axis undivided.

    They fit if their maximum gains differ by less than a factor of six, or if a standard deviation is unknown.
    """
    largest_gains, deviations = {}, {}
    for metric in ("proxy", "gold"):
        gains = [gain(run, name, metric) for name in policies]
        largest_gains[metric] = max((abs(change.difference.mean) for change in gains if change), default=0.0)
        deviations[metric] = spread_of_first(run, metric)
    if not min(largest_gains.values()) > 0:
        return None
    # With a factor of six or more, the smaller curve would be flat on a common axis.
    equal = 1 / 6 < largest_gains["proxy"] / largest_gains["gold"] < 6
    if equal or not min(deviations.values()) > 0:
        return None
    return deviations


def _root_kl(kl: Estimate | None, missing: float) -> tuple[float, float, float]:
    """Return the square root of a KL and of its bounds; negative estimates count as 0."""
    if kl is None or math.isnan(kl.mean):
        return missing, math.nan, math.nan
    mean, low, high = (math.sqrt(max(value, 0.0)) for value in (kl.mean, kl.low, kl.high))
    return (mean, low, high) if kl.bounded else (mean, math.nan, math.nan)


def proxy_against_gold(run: StoredRun) -> Chart | None:
    """Plot gold reward against proxy reward; the policies of one path are joined in order of proxy."""
    points = []
    path = policies_on_path(run)
    for name in policy_names(run):
        proxy = policy_mean(run, name, "proxy")
        gold = policy_mean(run, name, "gold")
        if proxy and gold and not math.isnan(proxy.mean + gold.mean):
            tooltip = {"policy": name, "proxy reward": compact(proxy), **estimate_tooltip("gold reward", gold)}
            bounds = (gold.low, gold.high, proxy.low, proxy.high)
            points.append(Point(proxy.mean, gold.mean, *bounds, name, tooltip, joined=name in path))
    if len(points) < 2:
        return None
    name = "policies in order of proxy" if path else "policies"
    series = [Series(name, sorted(points, key=lambda point: point.x), 2)]
    return draw_frontier(series, title="Gold against proxy reward", x_label="proxy reward", y_label="gold reward")
