"""The campaign's page: what was run, what happened by stage and fault."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version

import cases
import kinds
import scenarios

from rlhf_lab.stages.manifest import git_sha

INTRO = """# Faults

Each case draws a stage, a fault and a moment, runs the command at a tiny size, injects the fault, gives the same
command again until it completes, and compares with an uninterrupted run: model tensors bit by bit, results and logs
value by value (times aside), stages before untouched, no process and no half-written file left.
"""
COLUMNS = """
- **equal**: nothing but the same command again was needed.
- **refused**: the command ended with status 1 or 2 and named file, reason and remedy; equal once the fault was lifted
  or the remedy followed.
- **wrong**: another result; **lost**: complete or saved work was done again, or the command did not complete;
  **unexplained**: a traceback, another exit status, or a message without file, reason or remedy; **left behind**: a
  process or file.
"""
ENDS = (cases.EQUAL, cases.REFUSED, cases.WRONG, cases.LOST, cases.UNEXPLAINED, cases.LEFT)


def render(outcomes: Sequence[cases.Outcome], notes: Sequence[str], seconds: float, options: str, workers: int) -> str:
    """The page as Markdown."""
    finished = Counter(outcome.finished for outcome in outcomes)
    totals = ", ".join(f"{finished[end]} {end}" for end in ENDS)
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "safetensors", "filelock"))
    metadata = [
        f"- **{len(outcomes)} faults: {totals}.**",
        f"- `python tests/campaign/faults.py {options} --out docs/results/faults.md` (`make faults`)",
        f"- {time.strftime('%Y-%m-%d')}, commit {(git_sha() or 'unknown')[:7]}, Python {platform.python_version()}, "
        f"{versions}, {platform.system()}, {workers} cases at a time, {seconds / 60:.0f} min",
        *("", "What is done, all of it for real:", ""),
        *(f"- {kind}: {how}" for kind, how in kinds.HOW.items() if any(o.case.kind == kind for o in outcomes)),
        *(f"- Left out: {note}" for note in notes),
    ]
    bad = [f"- case {o.case.number}: {o.line()}" for o in outcomes if o.finished not in cases.GOOD]
    problems = ["", "## What went wrong", "", *bad] if bad else []
    suffered = [(o.case.kind, o.finished) for o in outcomes]
    stages = [(o.case.stage, o.finished) for o in outcomes]
    tables = [
        *("", "## By fault", "", *_table("fault", list(kinds.FAULTS), suffered)),
        *("", "## By stage", "", *_table("stage", list(scenarios.COMMANDS), stages)),
        *("", "## Faults of each stage", "", "Cases; in brackets those that were refused.", "", *_cross(outcomes)),
    ]
    return "\n".join([INTRO, *metadata, COLUMNS.rstrip(), *problems, *tables]) + "\n"


def _table(title: str, names: Sequence[str], found: Sequence[tuple[str, str]]) -> list[str]:
    """One row per name: number of cases and how they ended."""
    count, total = Counter(found), Counter(name for name, _ in found)
    rows = [[name, total[name], *(count[name, end] for end in ENDS)] for name in names if total[name]]
    return [_row([title, "n", *ENDS]), _row(["---", *["---:"] * (1 + len(ENDS))]), *map(_row, rows)]


def _cross(outcomes: Sequence[cases.Outcome]) -> list[str]:
    stages = [name for name in scenarios.COMMANDS if any(o.case.stage == name for o in outcomes)]
    total = Counter((o.case.kind, o.case.stage) for o in outcomes)
    refused = Counter((o.case.kind, o.case.stage) for o in outcomes if o.finished == cases.REFUSED)

    def cell(kind: str, stage: str) -> str:
        n, r = total[kind, stage], refused[kind, stage]
        return f"{n} ({r})" if r else str(n or "")

    found = [kind for kind in kinds.FAULTS if any(total[kind, stage] for stage in stages)]
    rows = [[kind, *(cell(kind, stage) for stage in stages)] for kind in found]
    return [_row(["fault", *stages]), _row(["---", *["---:"] * len(stages)]), *map(_row, rows)]


def _row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"
