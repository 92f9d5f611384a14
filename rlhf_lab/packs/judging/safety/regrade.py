"""The sub-command `safety`: grades the responses of a stored safety run with a judge, after an estimate of the cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlhf_lab.config import command_line, registry
from rlhf_lab.config.schema import whole_numbers
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.files import check_outputs, fingerprint, json_lines, make_dir, read_jsonl, write_text
from rlhf_lab.core.types import SafetyPrompt
from rlhf_lab.packs.judging.judges.command import (
    DRY_RUN,
    context_of,
    print_estimate,
    selected,
    sort_words,
    stored_config,
)
from rlhf_lab.packs.judging.judges.context import open_judge
from rlhf_lab.packs.judging.judges.judgement import RESULT
from rlhf_lab.packs.judging.safety.asking import Rows, refused, succeeded
from rlhf_lab.packs.judging.safety.classify import QUESTIONS, SafetyGrade, grade_columns, question, read_grade
from rlhf_lab.packs.judging.statistics.win_rates import win_rate
from rlhf_lab.reports.comparison.report import outputs_dir
from rlhf_lab.results.folders import find_run
from rlhf_lab.statistics.estimates import floats, format_estimate
from rlhf_lab.statistics.inference import clustered_rate
from rlhf_lab.statistics.rows import column

OPTIONS = ("items", "seed", "to")
PARTS = ("unsafe", "safe")
"""Parts of a safety run whose responses are graded."""


def run(words: Sequence[str]) -> None:
    """Grade the responses, print the rates by the judge, and write grades.jsonl."""
    problems: list[str] = []
    dry_run = DRY_RUN in words
    others = [word for word in words if word != DRY_RUN]
    paths, options, overrides = sort_words(others, "safety", OPTIONS, ("judge",), problems)
    if len(paths) != 1:
        problems.append("safety takes one run directory: safety outputs/runs/RUN judge=anthropic --dry-run")
    numbers = whole_numbers(options, {"items": 0, "seed": 0}, problems)
    config = command_line.config_of(overrides, problems)
    directory = find_run(Path(paths[0]))
    rows = selected(read_responses(directory), numbers["items"], numbers["seed"])
    requests = [question(_prompt_of(row), str(row["response"])) for row in rows]
    outputs = outputs_dir(directory) or Path("outputs")
    settings = config.judge
    corpus = registry.build("data", stored_config(directory).data) if settings.reads_truth else None
    requested = fingerprint([registry.kind_of("judge", settings), dict(settings.identity())])
    account = f"safety {directory.name} ({requested[:8]})"
    context = context_of(account, outputs, corpus, config, dry_run=dry_run)
    if dry_run:
        print_estimate(settings, context, requests, f"{len(rows)} responses")
        return
    # before the judge is paid
    of_this_draw = fingerprint([requested, *numbers.values()])
    to = Path(options.get("to", outputs / "judgements" / f"safety-{directory.name}-{of_this_draw[:6]}"))
    if (to / RESULT).is_file():
        raise ConfigError(f"to={to} has a run or a judgement, whose grades would be replaced; name another directory")
    check_outputs(to)
    make_dir(to)
    completions = open_judge(settings, context).complete_many(requests, title="safety")
    graded = []
    for row, completion in zip(rows, completions, strict=True):
        # metrics of the run are those of its classifier
        row = {name: value for name, value in row.items() if not name.startswith("safety/")}
        # outcome and score are now the judge's, None without a grade; those of the run are kept for the comparison
        of_run = {"outcome_of_run": row["outcome"], "on_topic_of_run": row.get("on_topic")}
        graded.append({**row, "score": None, **of_run, **grade_columns(read_grade(completion))})
    write_text(to / "grades.jsonl", json_lines(graded, ensure_ascii=False))
    for line in summary_lines(graded):
        console.print(line)
    console.print(f"safety: {to / 'grades.jsonl'}")


def read_responses(directory: Path) -> Rows:
    """Return the rows of a safety run with responses to unsafe and safe prompts. Raises DataError if it has none."""
    path = directory / "evaluation.jsonl"
    stored = read_jsonl(path) if path.is_file() else []
    rows = [row for row in stored if row.get("part") in PARTS]
    if not rows:
        raise DataError(f"{directory} has no responses to unsafe or safe prompts; name a run of +recipe=safety_eval")
    return rows


def _prompt_of(row: dict[str, Any]) -> SafetyPrompt:
    base, undisguised = row.get("base") or "", row.get("undisguised") or ""
    return SafetyPrompt(row["prompt"], row["part"] == "unsafe", row["category"], base, undisguised)


def summary_lines(graded: Rows) -> list[str]:
    """Return the rates of each policy by the judge, and the agreement of the three questions with the run."""
    lines = []
    for policy in dict.fromkeys(row["policy"] for row in graded):
        unsafe = [row for row in graded if row["policy"] == policy and row["part"] == "unsafe"]
        safe = [row for row in graded if row["policy"] == policy and row["part"] == "safe"]
        parts = []
        if unsafe:
            prompts = [row["prompt"] for row in unsafe]
            successes: list[Any] = [succeeded(row["outcome"]) for row in unsafe]
            success = clustered_rate(floats(successes), prompts)
            score = win_rate(column(unsafe, "score"), prompts)  # as safety.py, with the interval of scores from 0 to 1
            parts += [f"attack success {format_estimate(success)}", f"harm score {format_estimate(score)}"]
        if safe:
            refusals: list[Any] = [refused(row["outcome"]) for row in safe]
            over_refusal = clustered_rate(floats(refusals), [row["prompt"] for row in safe])
            parts.append(f"over-refusal {format_estimate(over_refusal)}")
        lines.append(f"{policy}: {', '.join(parts)}")
    both = [row for row in graded if row["outcome"] and row["outcome_of_run"]]
    agreed = []
    for name in QUESTIONS:
        same = sum(_answers_of_run(row)[name] == row[name] for row in both)
        agreed.append(f"{name.replace('_', ' ')} {same} of {len(both)}")
    unscored = sum(row["outcome"] is None for row in graded)
    return [*lines, f"agreement with the run: {', '.join(agreed)}; {unscored} responses without a grade"]


def _answers_of_run(row: dict[str, Any]) -> dict[str, bool]:
    """Return the run's answers to the three questions. A judge may call a response on topic that evades the request."""
    reading = SafetyGrade.from_outcome(row["outcome_of_run"]).reading
    answers = {name: getattr(reading, name) for name in QUESTIONS}
    if row.get("on_topic_of_run") is not None:
        answers["on_topic"] = bool(row["on_topic_of_run"])
    return answers
