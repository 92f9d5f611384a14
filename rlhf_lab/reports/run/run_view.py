"""Turns a run in memory into what its report shows: tables as text, figures as charts, notes on what is missing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlhf_lab.core.errors import NumericError
from rlhf_lab.core.metrics import titled
from rlhf_lab.figures.charts import Point, Series, estimate_facts, frontier, spread
from rlhf_lab.figures.layers import Chart
from rlhf_lab.reports.run.corpus_view import corpus_dots
from rlhf_lab.reports.run.hacking_view import hacking_view, in_hacking_section
from rlhf_lab.reports.run.parts_view import parts_figures
from rlhf_lab.reports.run.reward_view import benchmark_dots, reward_view
from rlhf_lab.reports.run.training import training_curves
from rlhf_lab.results.answer import answer
from rlhf_lab.results.gains import (
    five_numbers,
    gain,
    light_remark,
    lights,
    policy_mean,
    policy_names,
    scores,
    spread_of_first,
)
from rlhf_lab.results.paths import policies_on_path
from rlhf_lab.results.rundir import TRUE_REWARD, Run
from rlhf_lab.results.samples import pack, pick_samples
from rlhf_lab.results.wording import compact, duration, judged_title, metric_note, metric_title, p_text, signed
from rlhf_lab.statistics.inference import Comparison, Estimate, check_mean, holm

MAX_CONFIG = 12_000
"""Characters of config.yaml on a page."""
BUDGET_BYTES = 3_000_000
"""Of the samples on a page: all prompts of an evaluation as large as the recipes', and still opened in a moment."""


def run_view(run: Run) -> dict[str, Any]:
    """Everything the template of a run needs; no part of it is missing, however little the run left behind."""
    hacking = hacking_view(run)
    samples = pick_samples(run, budget=BUDGET_BYTES)
    charts, uncharted = training_curves(run.metrics)
    shown_lights = lights(run)
    config = run.config[:MAX_CONFIG]
    if len(run.config) > MAX_CONFIG:
        config += "\n… (cut; see config.yaml)"
    return {
        "run": run,
        "header": header(run),
        "answer": answer(run),
        "problems": [*run.problems, *mismatches(run)],
        "policies": policy_table(run),
        **result_numbers(run),
        "gains": gain_table(run),
        "lights": shown_lights,
        "light_remark": light_remark(shown_lights),
        "hacking": hacking,
        "reward": reward_view(run),
        "benchmark": benchmark_dots(run),
        "part_figures": parts_figures(run),
        "corpus": corpus_dots(run),
        "frontier": kl_frontier(run),
        "proxy_gold": proxy_against_gold(run),
        "on_path": bool(policies_on_path(run)),
        "spreads": spreads(run),
        "charts": charts,
        "other_metrics": uncharted,
        "samples": samples,
        "samples_json": pack(samples),
        "config": config,
    }


def result_numbers(run: Run) -> dict[str, list[tuple[str, str]]]:
    """Run-level numbers: those with a title, and the others, such as counts of rows, which a reader has to open."""
    numbers = {name: compact(value) for name, value in run.results.items() if not in_hacking_section(name)}
    return {
        "result_facts": [(metric_title(name), number) for name, number in numbers.items() if name in titled()],
        "other_facts": [(name, number) for name, number in numbers.items() if name not in titled()],
    }


def header(run: Run) -> dict[str, Any]:
    """Facts above the fold, each as text."""
    manifest = run.manifest
    seed = manifest.get("seed")
    command = manifest.get("command")
    if not command:
        command = f"python -m rlhf_lab +recipe={run.recipe}"
        if seed is not None:
            command += f" seed={seed}"
    facts = [
        ("seed", seed),
        ("time", duration(run.seconds)),
        ("started", str(manifest.get("created") or "")[:19].replace("T", " ")),
        ("code", str(manifest.get("git_sha") or "")[:10]),
        ("key", str(manifest.get("key") or "")[:12]),
    ]
    data = manifest.get("data") or {}
    world = "no gold reward: what responses are truly worth is not known here"
    if run.has_verified_answers:
        world = "answers are verified: which are right is known"
    if run.has_gold:
        is_simulated = run.gold_source == TRUE_REWARD
        world = "simulated world, true reward known" if is_simulated else f"gold is {run.gold_source}"
    return {
        "command": command,
        "size": run.settings.get("size"),
        "facts": [(name, str(value)) for name, value in facts if value not in (None, "")],
        "versions": dict(manifest.get("versions") or {}),
        "data": data,
        "drops": data_reports(data.get("report")),
        "needs": [(role, need) for role, need in (manifest.get("needs") or {}).items() if isinstance(need, Mapping)],
        "world": world,
    }


def data_reports(report: object) -> list[dict[str, Any]]:
    """What happened to the rows of each split, one entry per split."""
    if not isinstance(report, Mapping):
        return []
    splits = {"all": report} if "rows" in report else report
    entries = []
    for split, counts in splits.items():
        if isinstance(counts, Mapping) and "rows" in counts:
            entries.append(
                {
                    "split": split,
                    "rows": counts["rows"],
                    "kept": counts.get("kept"),
                    "dropped": dict(counts.get("dropped") or {}),
                    "noted": dict(counts.get("noted") or {}),
                }
            )
    return entries


def mismatches(run: Run) -> list[str]:
    """Stored means that their own samples contradict."""
    if not len(run.evaluation):
        return []
    problems = []
    for policy in run.policies:
        rows = run.evaluation[run.evaluation["policy"] == policy.name]
        for metric in ("gold", "proxy", "tokens"):
            if metric not in rows or metric not in policy.metrics or not len(rows):
                continue
            try:
                check_mean(policy.metrics[metric].mean, scores(rows, metric).to_numpy(), decimals=2)
            except NumericError as fault:
                problems.append(f"{policy.name}, {metric_title(metric)}: {fault}")
    return problems


def policy_table(run: Run) -> dict[str, Any] | None:
    """One row per policy, one column per metric: what it scored, over how many samples of how many prompts."""
    names = policy_names(run)
    if not names:
        return None
    stored = {name for policy in run.policies for name in policy.metrics}
    sampled = {name for name in titled() if name in run.evaluation and run.evaluation[name].notna().any()}
    columns = [name for name in titled() if name in stored | sampled] + sorted(stored - set(titled()))
    rows = []
    for name in names:
        values = [policy_mean(run, name, column) for column in columns]
        largest = max((value for value in values if value), key=lambda value: value.n, default=None)
        size = f"{largest.n} / {largest.clusters}" if largest and largest.n else "–"
        rows.append((name, size, [compact(value) if value else "–" for value in values]))
    headings = [(judged_title(column, run.has_gold), metric_note(column)) for column in columns]
    return {"columns": headings, "rows": rows}


def gain_table(run: Run) -> dict[str, Any] | None:
    """Every later policy against the first, paired by prompt, Holm over the table's rows of each metric."""
    names = policy_names(run)
    rows: list[tuple[str, str, str, str, str, str]] = []
    for metric in ("gold", "proxy"):
        gains = {name: comparison for name in names[1:] if (comparison := gain(run, name, metric))}
        adjusted = holm([comparison.p_value for comparison in gains.values()])
        for (name, comparison), p_holm in zip(gains.items(), adjusted, strict=True):
            gap = signed(comparison.difference)
            effect = comparison.minimum_detectable_effect
            detectable = compact(effect) if math.isfinite(effect) and effect > 0 else "–"
            prompts = str(comparison.difference.clusters or "–")
            rows.append((metric_title(metric), name, gap, p_text(p_holm), detectable, prompts))
    return {"first": names[0], "rows": rows} if rows else None


def run_markdown(view: Mapping[str, Any]) -> str:
    """A run's comparison as a page of Markdown: question, command, policies, gains over the first policy."""
    run, header, table, gains = view["run"], view["header"], view["policies"], view["gains"]
    conclusion = view["answer"]
    lines = [f"# {run.manifest.get('question') or run.recipe}", ""]
    lines += [f"**{conclusion.sentence}** {conclusion.caveat}".rstrip(), "", f"`{header['command']}`", ""]
    facts = "; ".join(f"{name} {value}" for name, value in header["facts"])
    lines += [f"{facts}. {header['world'].capitalize()}.", ""]
    headings = ["policy", "n / prompts", *(title for title, _ in table["columns"])]
    lines += [_markdown_row(headings), _markdown_row(["---"] * 2 + ["---:"] * len(table["columns"]))]
    lines += [_markdown_row([name, size, *cells]) for name, size, cells in table["rows"]]
    lines += ["", "Means with 95 % intervals clustered by prompt."]
    if gains:
        lines += ["", f"## Gain over {gains['first']}", ""]
        headings = ["metric", "policy", "difference", "p (Holm)", "detectable", "prompts"]
        lines += [_markdown_row(headings), _markdown_row(["---"] * 2 + ["---:"] * 4)]
        lines += [_markdown_row(row) for row in gains["rows"]]
        lines += ["", "Paired by prompt; detectable is the difference that would be found with 80 % power."]
    return "\n".join(lines) + "\n"


def _markdown_row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


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
    return frontier(
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
    return frontier(series, title="Gold against proxy reward", x_label="proxy reward", y_label="gold reward")


def spreads(run: Run) -> list[Chart]:
    """How single samples scatter under each policy, for gold (or proxy without it) and length."""
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
