"""Attempts of agents as text and tables: the content of the page attempts.html.

The size of a page is limited. It has the first attempts that fit, and states how many attempts are left out.
trajectories.jsonl contains all of them.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_lab.core.files import read_json
from rlhf_lab.core.metrics import titled
from rlhf_lab.figures.charts import Level, dot_chart
from rlhf_lab.figures.layers import Chart
from rlhf_lab.packs.agents.benchmarks.settings import AgentStage
from rlhf_lab.packs.agents.benchmarks.trajectory_log import FILE, read_trajectories
from rlhf_lab.packs.agents.harness.code_executor import TOOL
from rlhf_lab.reports.sections import PageSection, ReportPage, ReportTable
from rlhf_lab.results.glossary import term
from rlhf_lab.results.rundir import StoredRun
from rlhf_lab.results.wording import cell, compact, metric_note, metric_title, p_text, signed
from rlhf_lab.statistics.estimates import Estimate

BUDGET_BYTES = 3_000_000
"""Maximum size of the attempts on a page in bytes: some hundred attempts, and the page still opens quickly."""
MAX_TEXT = 4_000
"""Maximum number of displayed characters of one prompt, turn or result."""
VERDICTS = {
    "right": "right",
    "wrong_process": "right by a wrong process",
    "wrong": "wrong",
    "failed": "failed: no answer",
    "unscored": "not scored",
}
ON_SET = "success_on/"
Row = Mapping[str, Any]


def attempts(run: StoredRun) -> PageSection | None:
    """Write `attempts.html` and return a section that links to it; None for a run without trajectories."""
    page = attempts_page(run)
    if page is None:
        return None
    content = page.sections["attempts"].values
    return PageSection(
        "Attempts of agents",
        template=f"{__package__}:link.html.j2",
        values={"total": content["total"], "verdicts": content["verdicts"], "chart": success_dots(run)},
        files={"attempts.html": page},
    )


def attempts_page(run: StoredRun, *, budget: int = BUDGET_BYTES) -> ReportPage | None:
    """Return the page of attempts: agents, comparisons, attempts that fit; None for a run without trajectories."""
    trajectories = read_trajectories(run.path)
    if not trajectories:
        return None
    header = PageSection(template=f"{__package__}:header.html.j2", values={"run": run})
    sections = {"header": header}
    # An interrupted run has attempts but no result yet.
    if run.policies:
        sections["agents"] = _agents(run)
    if pairs := _pair_rows(run.path):
        note = (
            "Paired comparisons on the same tasks. p is adjusted by Holm's method over the pairs of one metric; "
            "“detectable” is the difference that would be detected with 80 % power at the strictest level of the "
            "adjustment."
        )
        headings = ("metric", "agents", "difference", term("p (Holm)"), term("detectable"), "tasks", "test")
        table = ReportTable(headings, pairs, "names")
        sections["pairs"] = PageSection("Agents against each other", note, table=table)
    sections["attempts"] = _attempts(run, trajectories, budget)
    files = f"{FILE}, evaluation.jsonl, comparisons.json, result.json"
    footer = f"Every number is measured in this run. Its files are next to this page: {files}."
    return ReportPage(f"{run.recipe} · attempts", sections, footer)


def _attempts(run: StoredRun, trajectories: Sequence[Row], budget: int) -> PageSection:
    scores: dict[str, Row] = {}
    # evaluation.jsonl is written after all attempts, so an interrupted run has no scores.
    if "key" in run.evaluation:
        for row in run.evaluation.to_dict("records"):
            scores[str(row["key"])] = {str(name): row[name] for name in row}
    values = {
        "attempts": _first_that_fit(trajectories, scores, budget),
        "total": len(trajectories),
        "verdicts": _count_verdicts(trajectories, scores),
        "file": FILE,
    }
    return PageSection("Attempts", template=f"{__package__}:attempts.html.j2", values=values)


def _count_verdicts(trajectories: Sequence[Row], scores: Mapping[str, Row]) -> list[tuple[str, int]]:
    """Return (words, number of attempts) of every verdict that occurs."""
    verdicts = [verdict(row["trajectory"], scores.get(row["key"], {})) for row in trajectories]
    counts = Counter(verdicts)
    return [(words, counts[name]) for name, words in VERDICTS.items() if counts[name]]


def _first_that_fit(trajectories: Sequence[Row], scores: Mapping[str, Row], budget: int) -> list[dict[str, Any]]:
    """Format the first attempts that fit on a page, at least one, in the order of the file."""
    entries: list[dict[str, Any]] = []
    used = 0
    for row in trajectories:
        entry = _entry(row, scores.get(row["key"], {}))
        used += len(json.dumps(entry))
        if used > budget and entries:
            break
        entries.append(entry)
    return entries


def verdict(trajectory: Row, scores: Row) -> str:
    """Return the verdict of an attempt, a key of VERDICTS."""
    success = _number(scores.get("success"))
    if success is None:
        return "unscored"
    if success < 1:
        # An attempt without an answer needs another remedy than one with a wrong answer.
        return "failed" if trajectory["answer"] is None else "wrong"
    is_wrong_process = _number(scores.get("right_by_wrong_process")) == 1
    return "wrong_process" if is_wrong_process else "right"


def _entry(row: Row, scores: Row) -> dict[str, Any]:
    trajectory, expected = row["trajectory"], row["expected"]
    answer, expected_answer = trajectory["answer"], expected["answer"]
    calls = [call for turn in trajectory["turns"] for call in turn["calls"]]
    return {
        **{name: row[name] for name in ("agent", "set", "task", "attack", "draw")},
        "verdict": verdict(trajectory, scores),
        "question": _cut(row["question"]),
        "answer": None if answer is None else _cut(str(answer)),
        "expected_answer": "" if expected_answer is None else _cut(str(expected_answer)),
        "stop": trajectory["stop"].replace("_", " "),
        "error": _cut(trajectory["error"]),
        "made": [written_call(call) for call in calls],
        "expected": [written_call(call) for call in expected["calls"]],
        "scores": _scores(scores),
        "turns": _turns(trajectory["turns"]),
    }


def _scores(scores: Row) -> list[tuple[str, str, str]]:
    """Return (title, number, meaning) of every metric that the row has and that has a title."""
    numbers = {name: _number(scores.get(name)) for name in titled()}
    return [(metric_title(name), compact(x), metric_note(name)) for name, x in numbers.items() if x is not None]


def _turns(turns: Sequence[Row]) -> list[dict[str, Any]]:
    """Format turns for display. A prompt that continues the part's previous prompt is shown without the repetition."""
    read_before: dict[str, str] = {}  # the previous prompt of each part: parts of an attempt take turns
    shown = []
    for turn in turns:
        prompt = turn["prompt"]
        before = read_before.get(turn["agent"], "")
        is_continued = bool(before) and prompt.startswith(before)
        read_before[turn["agent"]] = prompt
        shown.append(
            {
                "agent": turn["agent"],
                "read": _cut(prompt.removeprefix(before) if is_continued else prompt),
                "continued": is_continued,
                "text": _cut(turn["text"]),
                "calls": [
                    {"written": written_call(call), "result": _cut(call["result"]), "failed": call["failed"]}
                    for call in turn["calls"]
                ],
                "numbers": _tokens_and_cost(turn),
            }
        )
    return shown


def _tokens_and_cost(turn: Row) -> str:
    # A local model costs nothing, so a cost of 0 is not shown.
    cost = f", ${turn['cost_usd']:.4f}" if turn["cost_usd"] else ""
    numbers = f"{turn['input_tokens']} tokens in, {turn['output_tokens']} out{cost}"
    return f"{numbers}, from the store" if turn["stored"] else numbers


def written_call(call: Row) -> str:
    """Format a call as one line: `search(entity="Oslo", relation="population")`.

    A program is shown in the turn that wrote it, so here only its number of lines is stated.
    """
    arguments = call["arguments"]
    code = arguments.get("code")
    if call["name"] == TOOL and isinstance(code, str):
        return f"the program, {len(code.splitlines())} lines"
    named = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items()]
    return _cut(f"{call['name']}({', '.join(named)})")


def success_dots(run: StoredRun) -> Chart | None:
    """Plot the success of every agent on every set of tasks; None for a run without agents."""
    levels = []
    for colour, policy in enumerate(run.policies):
        on_sets = {name: value for name, value in policy.metrics.items() if name.startswith(ON_SET)}
        named = {f"{policy.name}, {name.removeprefix(ON_SET)}": value for name, value in on_sets.items()}
        # A run with one set of tasks has no metrics by set.
        if not named and "success" in policy.metrics:
            named = {policy.name: policy.metrics["success"]}
        units = AgentStage.evidence.clusters.plural
        levels += [Level(name, value, colour=colour, units=units) for name, value in named.items() if value.n]
    if not levels:
        return None
    return dot_chart(levels, title="Success of every agent", x_label="fraction of right answers")


def _agents(run: StoredRun) -> PageSection:
    """Return a table of agents and titled metrics, and one of success by category and by set of tasks."""
    measured = list(dict.fromkeys(name for policy in run.policies for name in policy.metrics))
    metrics = [name for name in titled() if name in measured]
    headings = ["agent"]
    headings += [term(metric_title(name), metric_note(name)) for name in metrics]
    # The second table has one column for each category, then one for each set.
    by_category = [name for name in measured if name.startswith("success/")]
    by_category += [name for name in measured if name.startswith(ON_SET)]
    categories = ["agent"]
    categories += [name.partition("/")[2].replace("_", " ") for name in by_category]
    category_table = ReportTable(categories, _rows(run, by_category)) if by_category else None
    return PageSection(
        "Agents",
        f"Mean with 95 % interval, clustered by {AgentStage.evidence.clusters.name}.",
        table=ReportTable(headings, _rows(run, metrics)),
        template=f"{__package__}:agents.html.j2",
        values={"chart": success_dots(run), "categories": category_table},
    )


def _rows(run: StoredRun, metrics: Sequence[str]) -> list[tuple[str, ...]]:
    return [(policy.name, *(cell(policy.metrics.get(name)) for name in metrics)) for policy in run.policies]


def _pair_rows(directory: Path) -> list[tuple[str, ...]]:
    """Return (metric, agents, difference, p, detectable, tasks, test) of every comparison of two agents."""
    rows: list[tuple[str, ...]] = []
    for row in read_json(directory / "comparisons.json") or ():
        effect = row["minimum_detectable_effect"]
        # JSON has no NaN, so a comparison without a p-value has null.
        p_holm = math.nan if row["p_holm"] is None else row["p_holm"]
        rows.append(
            (
                metric_title(row["metric"]),
                f"{row['second']} − {row['first']}",
                signed(Estimate.from_dict(row["difference"])),
                p_text(p_holm),
                compact(effect) if effect else "–",
                str(row["tasks"]),
                row["test"],
            )
        )
    return rows


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _cut(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    # The note says where the full text is.
    return f"{text[:MAX_TEXT]} … ({len(text) - MAX_TEXT} more characters; see {FILE})"
