"""Samples of a run: responses of its policies side by side, and the distribution of single samples."""

from __future__ import annotations

from typing import Any

from rlhf_lab.figures.charts import spread
from rlhf_lab.figures.layers import Chart
from rlhf_lab.reports.sections import PageSection
from rlhf_lab.results.gains import five_numbers, policy_names
from rlhf_lab.results.rundir import StoredRun
from rlhf_lab.results.samples import pick_samples
from rlhf_lab.results.wording import metric_title

BUDGET_BYTES = 3_000_000
"""Maximum size of the samples on a page. All evaluation prompts of the built-in recipes fit into this size, and the
page still opens quickly."""


def samples(run: StoredRun) -> PageSection | None:
    return samples_section(pick_samples(run, budget=BUDGET_BYTES))


def samples_section(samples: dict[str, Any]) -> PageSection | None:
    """Return the section with the samples of `pick_samples` and a script to browse them; None without samples."""
    if not samples["prompts"]:
        return None
    return PageSection("Samples side by side", template="samples.html.j2", values={"samples": samples})


def sample_distributions(run: StoredRun) -> PageSection | None:
    """Return the section on the distributions of gold (or proxy) and length over samples; None without samples."""
    note = "Line: 5 to 95 % of samples. Bar: 25 to 75 %. Tick: median."
    charts = spread_charts(run)
    if not charts:
        return None
    template = f"{__package__}:spreads.html.j2"
    return PageSection("Distribution of single samples", note, template=template, values={"charts": charts})


def spread_charts(run: StoredRun) -> list[Chart]:
    """Plot quantiles of single samples under each policy, for gold (or proxy without gold) and length."""
    charts = []
    for metric in ("gold" if run.has_gold else "proxy", "tokens"):
        if metric not in run.evaluation:
            continue
        quantiles = {}
        for name in policy_names(run):
            values = run.evaluation.loc[run.evaluation["policy"] == name, metric].to_numpy()
            if five := five_numbers(values):
                quantiles[name] = five
        if quantiles:
            title = metric_title(metric)
            charts.append(
                spread(quantiles, title=f"{title} of single samples, by policy", x_label=f"{title} per sample")
            )
    return charts
