"""The policies of a run: what each scored, and what each gained over the first."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlhf_lab.core.metrics import titled
from rlhf_lab.reports.monitor.panels import in_monitor_section
from rlhf_lab.reports.reward.card import has_report_card
from rlhf_lab.reports.run.header import header_facts
from rlhf_lab.reports.sections import PageSection, Table
from rlhf_lab.results.answer import answer
from rlhf_lab.results.gains import gain, policy_mean, policy_names
from rlhf_lab.results.glossary import term
from rlhf_lab.results.rundir import Run
from rlhf_lab.results.wording import compact, judged_title, metric_note, metric_title, p_text, signed
from rlhf_lab.statistics.inference import holm

GAIN_HEADINGS = ("metric", "policy", "difference", "p (Holm)", "detectable", "prompts")


def policies(run: Run) -> PageSection:
    """What each policy scored, then the numbers of the run that no other section shows."""
    columns, rows = policy_table(run)
    note, table = "", None
    if rows:
        note = "Mean with 95 % interval, clustered by prompt."
        if not run.has_gold:
            note += " No gold reward: this data has no known truth, and needs.gold names no model."
        headings = ["policy", term("n / prompts"), *(term(title, meaning) for title, meaning in columns)]
        table = Table(headings, rows)
    return PageSection(
        "Policies", note, table=table, template=f"{__package__}:policies.html.j2", values=result_numbers(run)
    )


def result_numbers(run: Run) -> dict[str, list[tuple[str, str]]]:
    """Run-level numbers: those with a title, and the others, such as counts of rows, which a reader has to open."""
    shown = {} if has_report_card(run) else run.results
    numbers = {name: compact(value) for name, value in shown.items() if not in_monitor_section(name)}
    return {
        "result_facts": [(metric_title(name), number) for name, number in numbers.items() if name in titled()],
        "other_facts": [(name, number) for name, number in numbers.items() if name not in titled()],
    }


def policy_table(run: Run) -> tuple[list[tuple[str, str]], list[tuple[str, ...]]]:
    """(title, note) of each metric; per policy its name, "samples / prompts" and its value of each metric."""
    names = policy_names(run)
    stored = {name for policy in run.policies for name in policy.metrics}
    sampled = {name for name in titled() if name in run.evaluation and run.evaluation[name].notna().any()}
    metrics = [name for name in titled() if name in stored | sampled] + sorted(stored - set(titled()))
    rows = []
    for name in names:
        values = [policy_mean(run, name, metric) for metric in metrics]
        largest = max((value for value in values if value), key=lambda value: value.n, default=None)
        size = f"{largest.n} / {largest.clusters}" if largest and largest.n else "–"
        rows.append((name, size, *(compact(value) if value else "–" for value in values)))
    return [(judged_title(metric, run.has_gold), metric_note(metric)) for metric in metrics], rows


def gains(run: Run) -> PageSection | None:
    """Every later policy against the first; None without two policies."""
    rows = gain_table(run)
    if not rows:
        return None
    note = (
        "Paired by prompt; p after Holm over the policies of one metric; “detectable” is the difference that would be "
        "found with 80 % power."
    )
    table = Table([term(name) for name in GAIN_HEADINGS], [(term(metric), *rest) for metric, *rest in rows], "names")
    return PageSection(_gain_title(run), note, table=table)


def _gain_title(run: Run) -> str:
    return f"Gain over {policy_names(run)[0]}"


def gain_table(run: Run) -> list[tuple[str, ...]]:
    """A row per metric and later policy in the order of GAIN_HEADINGS, Holm over the rows of each metric."""
    names = policy_names(run)
    rows: list[tuple[str, ...]] = []
    for metric in ("gold", "proxy"):
        changes = {name: comparison for name in names[1:] if (comparison := gain(run, name, metric))}
        adjusted = holm([comparison.p_value for comparison in changes.values()])
        for (name, comparison), p_holm in zip(changes.items(), adjusted, strict=True):
            gap = signed(comparison.difference)
            effect = comparison.minimum_detectable_effect
            detectable = compact(effect) if math.isfinite(effect) and effect > 0 else "–"
            prompts = str(comparison.difference.clusters or "–")
            rows.append((metric_title(metric), name, gap, p_text(p_holm), detectable, prompts))
    return rows


def run_markdown(run: Run) -> str:
    """A run's comparison as a page of Markdown: question, command, policies, gains over the first policy."""
    known, conclusion = header_facts(run), answer(run)
    lines = [f"# {run.manifest.get('question') or run.recipe}", ""]
    lines += [f"**{conclusion.sentence}** {conclusion.caveat}".rstrip(), "", f"`{known['command']}`", ""]
    facts = "; ".join(f"{name} {value}" for name, value in known["facts"])
    lines += [f"{facts}. {known['world'].capitalize()}.", ""]
    columns, rows = policy_table(run)
    headings = ["policy", "n / prompts", *(title for title, _ in columns)]
    lines += [_markdown_row(headings), _markdown_row(["---"] * 2 + ["---:"] * len(columns))]
    lines += [_markdown_row(row) for row in rows]
    lines += ["", "Means with 95 % intervals clustered by prompt."]
    if gain_rows := gain_table(run):
        lines += ["", f"## {_gain_title(run)}", ""]
        lines += [_markdown_row(GAIN_HEADINGS), _markdown_row(["---"] * 2 + ["---:"] * 4)]
        lines += [_markdown_row(row) for row in gain_rows]
        lines += ["", "Paired by prompt; detectable is the difference that would be found with 80 % power."]
    return "\n".join(lines) + "\n"


def _markdown_row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"
