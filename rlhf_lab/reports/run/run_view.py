"""Turns a run in memory into what its report shows: tables as text, figures as SVG, notes on what is missing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_lab.core.errors import NumericError
from rlhf_lab.core.metrics import titled
from rlhf_lab.figures.charts import Point, Series, frontier, spread
from rlhf_lab.reports.run.hacking_view import hacking_view, told
from rlhf_lab.reports.run.reward_view import benchmark_dots, reward_view
from rlhf_lab.reports.run.training import training_curves
from rlhf_lab.results.answer import answer, read_config
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
from rlhf_lab.results.rundir import Run
from rlhf_lab.results.samples import pack, pick_samples
from rlhf_lab.results.wording import compact, duration, judged_title, metric_note, metric_title, p_text, signed
from rlhf_lab.statistics.inference import Comparison, Estimate, check_mean, holm

MAX_CONFIG = 12_000
BUDGET_BYTES = 3_000_000
"""Of the samples on a page: all prompts of an evaluation as large as the recipes', and still opened in a moment."""


def run_view(run: Run) -> dict[str, Any]:
    """Everything the template of a run needs; no part of it is missing, however little the run left behind."""
    hacking = hacking_view(run)
    samples = pick_samples(run, budget=BUDGET_BYTES)
    charts, rest = training_curves(run.metrics)
    shown_lights = lights(run)
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
        "frontier": kl_frontier(run),
        "proxy_gold": proxy_against_gold(run),
        "spreads": spreads(run),
        "charts": charts,
        "other_metrics": rest,
        "samples": samples,
        "samples_json": pack(samples),
        "config": run.config[:MAX_CONFIG] + ("\n… (cut; see config.yaml)" if len(run.config) > MAX_CONFIG else ""),
    }


def result_numbers(run: Run) -> dict[str, list[tuple[str, str]]]:
    """Run-level numbers: those with a title, and the others, such as counts of rows, which a reader has to open."""
    names = [name for name in run.results if not told(name)]
    numbers = {name: (metric_title(name), compact(run.results[name])) for name in names}
    return {
        "result_facts": [numbers[name] for name in names if name in titled()],
        "other_facts": [(name, numbers[name][1]) for name in names if name not in titled()],
    }


def header(run: Run) -> dict[str, Any]:
    """Facts above the fold, each as text."""
    manifest, seed = run.manifest, run.manifest.get("seed")
    command = manifest.get("command") or f"python -m rlhf_lab +recipe={run.recipe}" + (
        f" seed={seed}" if seed is not None else ""
    )
    facts = [
        ("seed", seed),
        ("time", duration(run.seconds)),
        ("started", str(manifest.get("created") or "")[:19].replace("T", " ")),
        ("code", str(manifest.get("git_sha") or "")[:10]),
        ("key", str(manifest.get("key") or "")[:12]),
    ]
    data = manifest.get("data") or {}
    return {
        "command": command,
        "size": read_config(run).get("size"),
        "facts": [(name, str(value)) for name, value in facts if value not in (None, "")],
        "versions": dict(manifest.get("versions") or {}),
        "data": data,
        "drops": data_reports(data.get("report")),
        "needs": [(role, need) for role, need in (manifest.get("needs") or {}).items() if isinstance(need, Mapping)],
        "world": "simulated world, true reward known"
        if run.has_gold
        else "no gold reward: the truth is not known here",
    }


def data_reports(report: object) -> list[dict[str, Any]]:
    """What happened to the rows of each split, one entry per split."""
    if not isinstance(report, Mapping):
        return []
    splits = {"all": report} if "rows" in report else report
    found = []
    for split, counts in splits.items():
        if isinstance(counts, Mapping) and "rows" in counts:
            dropped = dict(counts.get("dropped") or {})
            entry = {"split": split, "rows": counts["rows"], "kept": counts.get("kept"), "dropped": dropped}
            found.append({**entry, "noted": dict(counts.get("noted") or {})})
    return found


def mismatches(run: Run) -> list[str]:
    """Stored means that their own samples contradict."""
    found = []
    for policy in run.policies if len(run.evaluation) else ():
        rows = run.evaluation[run.evaluation["policy"] == policy.name]
        for metric in ("gold", "proxy", "tokens"):
            if metric in rows and metric in policy.metrics and len(rows):
                try:
                    check_mean(policy.metrics[metric].mean, scores(rows, metric).to_numpy(), decimals=2)
                except NumericError as fault:
                    found.append(f"{policy.name}, {metric_title(metric)}: {fault}")
    return found


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
        counted = max((value for value in values if value), key=lambda value: value.n, default=None)
        size = f"{counted.n} / {counted.clusters}" if counted and counted.n else "–"
        rows.append((name, size, [compact(value) if value else "–" for value in values]))
    heads = [(judged_title(column, run.has_gold), metric_note(column)) for column in columns]
    return {"columns": heads, "rows": rows}


def gain_table(run: Run) -> dict[str, Any] | None:
    """Every later policy against the first, paired by prompt, Holm over the table's rows of each metric."""
    names = policy_names(run)
    rows: list[tuple[str, str, str, str, str, str]] = []
    for metric in ("gold", "proxy"):
        found = {name: comparison for name in names[1:] if (comparison := gain(run, name, metric))}
        adjusted = holm([comparison.p_value for comparison in found.values()])
        for (name, comparison), p in zip(found.items(), adjusted, strict=True):
            effect = comparison.minimum_detectable_effect
            size = compact(effect) if math.isfinite(effect) and effect > 0 else "–"
            count = str(comparison.difference.clusters or "–")
            rows.append((metric_title(metric), name, signed(comparison.difference), p_text(p), size, count))
    return {"first": names[0], "rows": rows} if rows else None


def run_markdown(view: Mapping[str, Any]) -> str:
    """A run's comparison as a page of Markdown: question, command, policies, gains over the first policy."""
    run, header, table, gains = view["run"], view["header"], view["policies"], view["gains"]
    answered = view["answer"]
    lines = [f"# {run.manifest.get('question') or run.recipe}", ""]
    lines += [f"**{answered.sentence}** {answered.caveat}".rstrip(), "", f"`{header['command']}`", ""]
    facts = "; ".join(f"{name} {value}" for name, value in header["facts"])
    lines += [f"{facts}. {header['world'].capitalize()}.", ""]
    heads = ["policy", "n / prompts", *(title for title, _ in table["columns"])]
    lines += [_row(heads), _row(["---"] * 2 + ["---:"] * len(table["columns"]))]
    lines += [_row([name, size, *cells]) for name, size, cells in table["rows"]]
    lines += ["", "Means with 95 % intervals clustered by prompt."]
    if gains:
        lines += ["", f"## Gain over {gains['first']}", ""]
        heads = ["metric", "policy", "difference", "p (Holm)", "detectable", "prompts"]
        lines += [_row(heads), _row(["---"] * 2 + ["---:"] * 4), *(_row(row) for row in gains["rows"])]
        lines += ["", "Paired by prompt; detectable is the difference that would be found with 80 % power."]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def kl_frontier(run: Run, *, standalone: bool = False) -> str | None:
    """Gain in proxy and gold reward against √KL, in standard deviations of the first policy where scales differ."""
    names = policy_names(run)
    divergence = {name: policy_mean(run, name, "kl") for name in names}
    if len(names) < 2 or not any(divergence[name] for name in names[1:]):
        return None
    raw = {metric: {name: gain(run, name, metric) for name in names[1:]} for metric in ("proxy", "gold")}
    sizes = [max((abs(c.difference.mean) for c in found.values() if c), default=0.0) for found in raw.values()]
    spreads_of_first = [spread_of_first(run, metric) for metric in raw]
    standard = min(sizes) > 0 and not 1 / 6 < sizes[0] / sizes[1] < 6 and min(spreads_of_first, default=0) > 0
    series = []
    for colour, (metric, scale) in enumerate(zip(raw, spreads_of_first, strict=True)):
        points = [Point(_root(divergence[names[0]], 0.0)[0], 0.0, label=names[0] if colour == 0 else "")]
        for name in names[1:]:
            change, nats = gain(run, name, metric, scale=scale if standard else 1.0), divergence[name]
            if change and nats and not math.isnan(nats.mean):
                points.append(_gain_point(change, nats, name if metric == "proxy" else ""))
        if len(points) > 1:
            series.append(Series(metric_title(metric), sorted(points, key=lambda point: point.x), colour))
    unit = f"standard deviations of {names[0]}" if standard else "reward"
    return (
        frontier(
            series,
            title="Reward gained against distance from the reference policy",
            x_label="√KL from the reference policy, √nats per response",
            y_label=f"gain over {names[0]}, {unit}",
            origin=True,
            standalone=standalone,
        )
        if series
        else None
    )


def _gain_point(change: Comparison, nats: Estimate, label: str) -> Point:
    (x, x_low, x_high), gap = _root(nats, math.nan), change.difference
    return Point(x, gap.mean, gap.low, gap.high, x_low, x_high, label)


def _root(nats: Estimate | None, missing: float) -> tuple[float, float, float]:
    """Square root of a divergence and of its bounds, which cannot be negative."""
    if nats is None or math.isnan(nats.mean):
        return missing, math.nan, math.nan
    bounds = (nats.mean, nats.low, nats.high) if nats.bounded else (nats.mean, math.nan, math.nan)
    mean, low, high = (math.sqrt(max(value, 0.0)) if not math.isnan(value) else value for value in bounds)
    return mean, low, high


def proxy_against_gold(run: Run) -> str | None:
    """Where each policy stands: proxy reward across, gold reward up, joined in order of proxy."""
    points = []
    for name in policy_names(run):
        proxy, gold = policy_mean(run, name, "proxy"), policy_mean(run, name, "gold")
        if proxy and gold and not math.isnan(proxy.mean + gold.mean):
            points.append(Point(proxy.mean, gold.mean, gold.low, gold.high, proxy.low, proxy.high, name))
    if len(points) < 2:
        return None
    series = [Series("policies in order of proxy", sorted(points, key=lambda point: point.x), 2)]
    return frontier(series, title="Gold against proxy reward", x_label="proxy reward", y_label="gold reward")


def spreads(run: Run) -> list[str]:
    """How single samples scatter under each policy, for gold (or proxy without it) and length."""
    found = []
    for metric in ("gold" if run.has_gold else "proxy", "tokens"):
        if metric not in run.evaluation:
            continue
        rows = {}
        for name in policy_names(run):
            five = five_numbers(run.evaluation.loc[run.evaluation["policy"] == name, metric].to_numpy())
            if five:
                rows[name] = five
        if rows:
            title = metric_title(metric)
            found.append(spread(rows, title=f"{title} of single samples, by policy", x_label=f"{title} per sample"))
    return found
