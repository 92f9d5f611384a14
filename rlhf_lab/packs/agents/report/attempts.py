"""Attempts of agents in words and cells: what the page attempts.html shows.

A page is bounded. Where not all attempts fit, every agent, category and verdict gets its share, and the page says how
many are left out; trajectories.jsonl has all of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rlhf_lab.core.metrics import titled
from rlhf_lab.figures.charts import Level, dots
from rlhf_lab.figures.layers import Chart
from rlhf_lab.packs.agents.benchmarks.comparisons import read_comparisons
from rlhf_lab.packs.agents.benchmarks.trajectory_log import FILE, read_trajectories
from rlhf_lab.packs.agents.harness.code_executor import TOOL
from rlhf_lab.reports.sections import Page, PageSection, Table
from rlhf_lab.results.glossary import term
from rlhf_lab.results.rundir import Run
from rlhf_lab.results.wording import compact, metric_note, metric_title, p_text, signed
from rlhf_lab.statistics.estimates import Estimate

BUDGET_BYTES = 3_000_000
"""Of the attempts on a page: some hundreds, and still opened in a moment."""
MAX_TEXT = 4_000
"""Characters of one prompt, turn or result that are shown."""
VERDICTS = {"right": "right", "wrong_process": "right by a wrong process", "wrong": "wrong", "unscored": "not scored"}
ON_SET = "success_on/"
Row = Mapping[str, Any]


def attempts(run: Run) -> PageSection | None:
    """A link to `attempts.html`, which it has written; None for a run without trajectories."""
    page = attempts_page(run)
    if page is None:
        return None
    values = {"total": page.sections["attempts"].values["total"], "chart": success_dots(run)}
    template = f"{__package__}:link.html.j2"
    return PageSection("Attempts of agents", template=template, values=values, files={"attempts.html": page})


def attempts_page(run: Run, *, budget: int = BUDGET_BYTES) -> Page | None:
    """The page of attempts: agents, their differences, every attempt that fits; None for a run without trajectories."""
    trajectories = read_trajectories(run.path)
    if not trajectories:
        return None
    sections = {"header": PageSection(template=f"{__package__}:header.html.j2", values={"run": run})}
    if run.policies:
        sections["agents"] = _agents(run)
    if pairs := _pair_rows(run.path):
        note = (
            "The same tasks, paired; p after Holm over the pairs of one metric; “detectable” is the difference that "
            "would be found with 80 % power."
        )
        headings = ("metric", "agents", "difference", term("p (Holm)"), term("detectable"), "tasks", "test")
        sections["pairs"] = PageSection("Agents against each other", note, table=Table(headings, pairs, "names"))
    sections["attempts"] = _attempts(run, trajectories, budget)
    files = f"{FILE}, evaluation.jsonl, comparisons.json, result.json"
    footer = f"Every number is measured in this run. Files beside this page: {files}."
    return Page(f"{run.recipe} · attempts", sections, footer)


def _attempts(run: Run, trajectories: Sequence[Row], budget: int) -> PageSection:
    scores: dict[str, Row] = {}
    if "key" in run.evaluation:
        scores = {str(row["key"]): {str(name): row[name] for name in row} for row in run.evaluation.to_dict("records")}
    shown = _choose(trajectories, scores, budget)
    values = {"attempts": shown, "total": len(trajectories), "filters": _filters(shown), "file": FILE}
    return PageSection("Attempts", template=f"{__package__}:attempts.html.j2", values=values)


def _choose(trajectories: Sequence[Row], scores: Mapping[str, Row], budget: int) -> list[dict[str, Any]]:
    """Attempts as they are shown, in the order of the file, as many as fit; one in any case."""
    kinds: dict[tuple[str, ...], list[int]] = {}
    for place, row in enumerate(trajectories):
        kind = (row["agent"], row["set"], row["category"], row["attack"], verdict(scores.get(row["key"], {})))
        kinds.setdefault(kind, []).append(place)
    chosen: dict[int, dict[str, Any]] = {}
    used = 0
    for places in zip_longest(*kinds.values()):  # the first attempt of every kind, then the second, …
        for place in places:
            if place is None:
                continue
            entry = _entry(trajectories[place], scores.get(trajectories[place]["key"], {}))
            size = len(json.dumps(entry))
            if used + size > budget and chosen:
                return [chosen[number] for number in sorted(chosen)]
            used += size
            chosen[place] = entry
    return [chosen[number] for number in sorted(chosen)]


def verdict(scores: Row) -> str:
    """A key of VERDICTS."""
    success = _number(scores.get("success"))
    if success is None:
        return "unscored"
    if success < 1:
        return "wrong"
    return "wrong_process" if _number(scores.get("right_by_wrong_process")) == 1 else "right"


def _entry(row: Row, scores: Row) -> dict[str, Any]:
    trajectory = row["trajectory"]
    expected = row["expected"]
    return {
        "agent": row["agent"],
        "set": row["set"],
        "task": row["task"],
        "category": row["category"],
        "attack": row["attack"],
        "draw": row["draw"],
        "verdict": verdict(scores),
        "question": _cut(row["question"]),
        "answer": None if trajectory["answer"] is None else _cut(str(trajectory["answer"])),
        "expected_answer": "" if expected["answer"] is None else _cut(str(expected["answer"])),
        "stop": trajectory["stop"].replace("_", " "),
        "error": _cut(trajectory["error"]),
        "made": [written_call(call) for turn in trajectory["turns"] for call in turn["calls"]],
        "expected": [written_call(call) for call in expected["calls"]],
        "scores": _scores(scores),
        "turns": _turns(trajectory["turns"]),
    }


def _scores(scores: Row) -> list[tuple[str, str, str]]:
    """(title, number, meaning) of every metric that the row has and that has a title."""
    numbers = {name: _number(scores.get(name)) for name in titled()}
    return [
        (metric_title(name), compact(number), metric_note(name))
        for name, number in numbers.items()
        if number is not None
    ]


def _turns(turns: Sequence[Row]) -> list[dict[str, Any]]:
    """Turns as they are shown: of what the model read, only what the turn of the same part before it had not."""
    read_before: dict[str, str] = {}
    shown = []
    for turn in turns:
        prompt, before = turn["prompt"], read_before.get(turn["agent"], "")
        is_continued = bool(before) and prompt.startswith(before)
        read_before[turn["agent"]] = prompt
        calls = [
            {"written": written_call(call), "result": _cut(call["result"]), "failed": call["failed"]}
            for call in turn["calls"]
        ]
        cost = f", ${turn['cost_usd']:.4f}" if turn["cost_usd"] else ""
        numbers = f"{turn['input_tokens']} tokens in, {turn['output_tokens']} out{cost}"
        shown.append(
            {
                "agent": turn["agent"],
                "read": _cut(prompt.removeprefix(before) if is_continued else prompt),
                "continued": is_continued,
                "text": _cut(turn["text"]),
                "calls": calls,
                "numbers": f"{numbers}, from the store" if turn["stored"] else numbers,
            }
        )
    return shown


def written_call(call: Row) -> str:
    """A call on one line: `search(entity="Oslo", relation="population")`.

    Of a program, which stands in the turn that wrote it, the number of its lines.
    """
    arguments = call["arguments"]
    if call["name"] == TOOL and isinstance(arguments.get("code"), str):
        return f"the program, {len(arguments['code'].splitlines())} lines"
    named = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items()]
    return _cut(f"{call['name']}({', '.join(named)})")


def _filters(attempts: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[str, str]]]:
    """What a reader can choose from: name of the filter → (value, its words)."""
    filters: dict[str, list[tuple[str, str]]] = {}
    for name in ("agent", "set", "category", "attack"):
        values = list(dict.fromkeys(attempt[name] for attempt in attempts))
        if len(values) > 1:
            filters[name] = [(value or "none", value.replace("_", " ") or "none") for value in values]
    there = {attempt["verdict"] for attempt in attempts}
    if len(there) > 1:
        filters["verdict"] = [(name, words) for name, words in VERDICTS.items() if name in there]
    return filters


def success_dots(run: Run) -> Chart | None:
    """Success of every agent on every set of tasks; None for a run without agents."""
    levels = []
    for colour, policy in enumerate(run.policies):
        sets = {name.partition("/")[2]: value for name, value in policy.metrics.items() if name.startswith(ON_SET)}
        named = {f"{policy.name}, {name}": value for name, value in sets.items()}
        if not sets and "success" in policy.metrics:
            named = {policy.name: policy.metrics["success"]}
        levels += [Level(name, value, colour=colour) for name, value in named.items() if value.n]
    return dots(levels, title="Success of every agent", x_label="share of right answers") if levels else None


def _agents(run: Run) -> PageSection:
    """A row per agent, a column per metric with a title; then its success by category and by set of tasks."""
    measured = list(dict.fromkeys(name for policy in run.policies for name in policy.metrics))
    metrics = [name for name in titled() if name in measured]
    headings = ["agent", *(term(metric_title(name), metric_note(name)) for name in metrics)]
    by_category = [name for prefix in ("success/", ON_SET) for name in measured if name.startswith(prefix)]
    categories = ["agent", *(name.partition("/")[2].replace("_", " ") for name in by_category)]
    return PageSection(
        "Agents",
        "Mean with 95 % interval, clustered by the template of the task.",
        table=Table(headings, _rows(run, metrics)),
        template=f"{__package__}:agents.html.j2",
        values={
            "chart": success_dots(run),
            "categories": Table(categories, _rows(run, by_category)) if by_category else None,
        },
    )


def _rows(run: Run, metrics: Sequence[str]) -> list[tuple[str, ...]]:
    return [(policy.name, *(_cell(policy.metrics.get(name)) for name in metrics)) for policy in run.policies]


def _pair_rows(folder: Path) -> list[tuple[str, ...]]:
    """(metric, second, first, difference, p, detectable, tasks, test) of every comparison of two agents."""
    rows: list[tuple[str, ...]] = []
    for row in read_comparisons(folder):
        effect = row["minimum_detectable_effect"]
        rows.append(
            (
                metric_title(row["metric"]),
                f"{row['second']} − {row['first']}",
                signed(Estimate.from_dict(row["difference"])),
                p_text(math.nan if row["p_holm"] is None else row["p_holm"]),
                compact(effect) if effect else "–",
                str(row["tasks"]),
                row["test"],
            )
        )
    return rows


def _cell(value: Estimate | None) -> str:
    return "–" if value is None else compact(value)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _cut(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]} … ({len(text) - MAX_TEXT} more characters; see {FILE})"
