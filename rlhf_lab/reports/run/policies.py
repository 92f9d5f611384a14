"""Policies of a run: their scores, and their gains over the first policy."""

from __future__ import annotations

import math

from rlhf_lab.core.metrics import titled
from rlhf_lab.reports.monitor.panels import in_monitor_section
from rlhf_lab.reports.reward.card import has_report_card
from rlhf_lab.reports.run.header import header_metadata
from rlhf_lab.reports.sections import PageSection, ReportTable
from rlhf_lab.results.answer import answer
from rlhf_lab.results.gains import gain, policy_mean, policy_names
from rlhf_lab.results.glossary import term
from rlhf_lab.results.rundir import StoredRun
from rlhf_lab.results.wording import (
    compact,
    judged_title,
    markdown_table,
    metric_note,
    metric_title,
    p_text,
    signed,
    usual_size,
    with_own_size,
)
from rlhf_lab.statistics.inference import holm

OWN_SIZE = "A number over other rows than most numbers of its row is followed by its counts in brackets."
GAIN_HEADINGS = ("metric", "policy", "difference", "p (Holm)", "detectable", "prompts")


def policies(run: StoredRun) -> PageSection:
    """Return the section with the scores of each policy, then the numbers of the run that no other section shows."""
    columns, rows = policy_table(run)
    note, table = "", None
    if rows:
        note = f"Mean with 95 % interval, clustered by {run.stage.evidence.clusters.name}. {OWN_SIZE}"
        if not run.has_gold:
            note += " No gold reward: these data have no known gold, and needs.gold names no model."
        headings = ["policy", term(_size_heading(run))]
        headings += [term(title, meaning) for title, meaning in columns]
        table = ReportTable(headings, rows)
    return PageSection(
        "Policies", note, table=table, template=f"{__package__}:policies.html.j2", values=result_numbers(run)
    )


def result_numbers(run: StoredRun) -> dict[str, list[tuple[str, str]]]:
    """Return run-level numbers: those with a title, and the others, such as counts of rows, which are collapsed."""
    shown = {} if has_report_card(run) else run.results
    numbers = {name: compact(value) for name, value in shown.items() if not in_monitor_section(name)}
    return {
        "result_facts": [(metric_title(name), number) for name, number in numbers.items() if name in titled()],
        "other_facts": [(name, number) for name, number in numbers.items() if name not in titled()],
    }


def policy_table(run: StoredRun) -> tuple[list[tuple[str, str]], list[tuple[str, ...]]]:
    """Return the columns and rows of the table of policies.

    A column is (title, note) of a metric. A row has the policy's name, the "n / clusters" of most metrics, and the
    value of each metric. If a value has other counts, they follow it.
    """
    names = policy_names(run)
    # Metrics may be stored as means or only as rows per sample.
    stored = {name for policy in run.policies for name in policy.metrics}
    columns = [name for name in titled() if name in run.evaluation]
    sampled = {name for name in columns if run.evaluation[name].notna().any()}
    metrics = [name for name in titled() if name in stored | sampled]
    metrics += sorted(stored - set(titled()))
    rows = []
    for name in names:
        values = [policy_mean(run, name, metric) for metric in metrics]
        size = usual_size(values)
        cells = [with_own_size(compact(value), value, size) if value else "–" for value in values]
        counts = f"{size[0]} / {size[1]}" if size else "–"
        rows.append((name, counts, *cells))
    return [(judged_title(metric, run.has_gold), metric_note(metric)) for metric in metrics], rows


def _size_heading(run: StoredRun) -> str:
    return f"n / {run.stage.evidence.clusters.plural}"


def gains(run: StoredRun) -> PageSection | None:
    """Return the section that compares every later policy with the first; None without two policies."""
    rows = gain_table(run)
    if not rows:
        return None
    note = (
        "Paired by prompt; p after Holm over the policies of one metric; “detectable” is the difference that would be "
        "found with 80 % power."
    )
    headings = [term(name) for name in GAIN_HEADINGS]
    cells = [(term(metric), *rest) for metric, *rest in rows]
    table = ReportTable(headings, cells, "names")
    return PageSection(_gain_title(run), note, table=table)


def _gain_title(run: StoredRun) -> str:
    return f"Gain over {policy_names(run)[0]}"


def gain_table(run: StoredRun) -> list[tuple[str, ...]]:
    """Return a row per metric and later policy in the order of GAIN_HEADINGS.

    Holm's adjustment is over the rows of a metric.
    """
    names = policy_names(run)
    rows: list[tuple[str, ...]] = []
    for metric in ("gold", "proxy"):
        changes = {name: comparison for name in names[1:] if (comparison := gain(run, name, metric))}
        adjusted = holm([comparison.p_value for comparison in changes.values()])
        for (name, comparison), p_holm in zip(changes.items(), adjusted, strict=True):
            effect = comparison.minimum_detectable_effect
            detectable = compact(effect) if math.isfinite(effect) and effect > 0 else "–"
            prompts = str(comparison.difference.clusters or "–")
            rows.append(
                (metric_title(metric), name, signed(comparison.difference), p_text(p_holm), detectable, prompts)
            )
    return rows


def run_markdown(run: StoredRun) -> str:
    """Return a run's comparison as a Markdown page: question, command, policies, gains over the first policy."""
    known, conclusion = header_metadata(run), answer(run)
    lines = [f"# {run.manifest.get('question') or run.recipe}", ""]
    lines += [f"**{conclusion.sentence}** {conclusion.caveat}".rstrip(), "", f"`{known['command']}`", ""]
    tooltip = "; ".join(f"{name} {value}" for name, value in known["facts"])
    world = known["world"]
    lines += [f"{tooltip}. {world[0].upper()}{world[1:]}.", ""]
    columns, rows = policy_table(run)
    headings = ["policy", _size_heading(run), *(title for title, _ in columns)]
    lines.append(markdown_table(headings, rows, "ll" + "r" * len(columns)))
    lines += ["", f"Means with 95 % intervals clustered by {run.stage.evidence.clusters.name}. {OWN_SIZE}"]
    if gain_rows := gain_table(run):
        lines += ["", f"## {_gain_title(run)}", "", markdown_table(GAIN_HEADINGS, gain_rows, "llrrrr")]
        lines += ["", "Paired by prompt; detectable is the difference that would be found with 80 % power."]
    return "\n".join(lines) + "\n"
