"""How far policies went from the reference policy, and what they gained; the plot and table of a run that compares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from rlhf_lab.figures.charts import Point, Series, estimate_facts
from rlhf_lab.figures.charts import frontier as draw_frontier
from rlhf_lab.figures.layers import Chart
from rlhf_lab.reports.run.policies import run_markdown
from rlhf_lab.reports.sections import PageSection
from rlhf_lab.results.gains import gain, policy_mean, policy_names, spread_of_first
from rlhf_lab.results.paths import policies_on_path
from rlhf_lab.results.rundir import Run
from rlhf_lab.results.wording import compact, metric_title
from rlhf_lab.statistics.inference import Comparison, Estimate

METHODS = "Each point is a policy with a method of its own: no line joins them"
BENDS_DOWN = "A line that bends down to the right is over-optimisation."


def frontier(run: Run) -> PageSection | None:
    """Gain against distance, and gold against proxy; the first is also a file, beside a table of the policies."""
    boxes = []
    files: dict[str, str | Chart] = {}
    if gained := kl_frontier(run):
        boxes.append(PageSection("Reward gained per distance travelled", _gain_note(run), [gained]))
        files = {"plot": gained, "table.md": run_markdown(run)}
    if against := proxy_against_gold(run):
        boxes.append(PageSection("Gold against proxy", gold_note(bool(policies_on_path(run))), [against]))
    return PageSection(template="two.html.j2", values={"rows": [boxes]}, files=files) if boxes else None


def _gain_note(run: Run) -> str:
    if not policies_on_path(run):
        return f"{METHODS}."
    if run.has_gold:
        return "Where the two lines part, the policy maximises the proxy at the cost of the truth."
    if run.has_verified_answers:
        return "Only the proxy is drawn; the share of right answers is in the table."
    return "Only the proxy is known; whether the truth follows cannot be seen here."


def gold_note(on_path: bool) -> str:
    """How to read gold against proxy, of policies on a path of training or not."""
    return BENDS_DOWN if on_path else f"{METHODS}, and their order says nothing about over-optimisation."


def kl_frontier(run: Run) -> Chart | None:
    """Gain in proxy and gold reward against √KL, in standard deviations of the first policy where scales differ."""
    names = policy_names(run)
    kl = {name: policy_mean(run, name, "kl") for name in names}
    if len(names) < 2 or not any(kl[name] for name in names[1:]):
        return None
    first, later_names = names[0], names[1:]
    scales = _common_scales(run, later_names)
    path = policies_on_path(run)
    series = []
    for colour, metric in enumerate(("proxy", "gold")):
        kl_of_first = kl[first]
        start = {"policy": first, "KL": compact(kl_of_first) if kl_of_first else "0", "gain": "0"}
        label = first if metric == "proxy" else ""
        points = [Point(_root_kl(kl[first], 0.0)[0], 0.0, label=label, facts=start, joined=first in path)]
        for name in later_names:
            change = gain(run, name, metric, scale=scales[metric] if scales else 1.0)
            kl_of_policy = kl[name]
            if change and kl_of_policy and not math.isnan(kl_of_policy.mean):
                # The two series have the same policies: names are written at one of them.
                label = name if metric == "proxy" else ""
                point = _gain_point(name, change, kl_of_policy, label)
                points.append(replace(point, joined=name in path))
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


def _common_scales(run: Run, policies: Sequence[str]) -> dict[str, float] | None:
    """Metric → the standard deviation that divides its gains; None where proxy and gold fit on one axis undivided.

    They do when the largest gain of one is less than six times that of the other, or a deviation is not known.
    """
    largest_gains, deviations = {}, {}
    for metric in ("proxy", "gold"):
        gains = [gain(run, name, metric) for name in policies]
        largest_gains[metric] = max((abs(change.difference.mean) for change in gains if change), default=0.0)
        deviations[metric] = spread_of_first(run, metric)
    if not min(largest_gains.values()) > 0:
        return None
    alike = 1 / 6 < largest_gains["proxy"] / largest_gains["gold"] < 6
    if alike or not min(deviations.values()) > 0:
        return None
    return deviations


def _gain_point(policy: str, change: Comparison, kl: Estimate, label: str) -> Point:
    x, x_low, x_high = _root_kl(kl, math.nan)
    gap = change.difference
    facts = {"policy": policy, "KL": compact(kl), **estimate_facts("gain", gap)}
    return Point(x, gap.mean, gap.low, gap.high, x_low, x_high, label, facts)


def _root_kl(kl: Estimate | None, missing: float) -> tuple[float, float, float]:
    """Square root of a KL and of its bounds; estimates below 0 count as 0."""
    if kl is None or math.isnan(kl.mean):
        return missing, math.nan, math.nan
    values = (kl.mean, kl.low, kl.high) if kl.bounded else (kl.mean, math.nan, math.nan)
    mean, low, high = (math.sqrt(max(value, 0.0)) if not math.isnan(value) else value for value in values)
    return mean, low, high


def proxy_against_gold(run: Run) -> Chart | None:
    """Proxy reward across, gold reward up; the policies of one path are joined in order of proxy."""
    points = []
    path = policies_on_path(run)
    for name in policy_names(run):
        proxy = policy_mean(run, name, "proxy")
        gold = policy_mean(run, name, "gold")
        if proxy and gold and not math.isnan(proxy.mean + gold.mean):
            facts = {"policy": name, "proxy reward": compact(proxy), **estimate_facts("gold reward", gold)}
            bounds = (gold.low, gold.high, proxy.low, proxy.high)
            points.append(Point(proxy.mean, gold.mean, *bounds, name, facts, joined=name in path))
    if len(points) < 2:
        return None
    name = "policies in order of proxy" if path else "policies"
    series = [Series(name, sorted(points, key=lambda point: point.x), 2)]
    return draw_frontier(series, title="Gold against proxy reward", x_label="proxy reward", y_label="gold reward")
