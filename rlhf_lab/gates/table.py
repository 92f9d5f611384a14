"""The gate's decision on the console: a row per check, then what follows."""

from __future__ import annotations

import math

from rich.table import Table

from rlhf_lab.gates.gate import Decision
from rlhf_lab.gates.verdicts import Verdict, lower_is_better
from rlhf_lab.results.wording import compact, signed
from rlhf_lab.statistics.estimates import Estimate

COLUMNS = ("check", "value", "accepted", "difference", "verdict", "because")


def table(decision: Decision) -> Table:
    shown = Table()
    for column in COLUMNS:
        shown.add_column(column, overflow="fold")
    for verdict in decision.verdicts:
        accepted = "–" if verdict.accepted is None else compact(verdict.accepted)
        shown.add_row(
            verdict.check.name, compact(verdict.value), accepted, _difference(verdict), verdict.state, verdict.words
        )
    return shown


def _difference(verdict: Verdict) -> str:
    """Candidate minus accepted, in the metric's own direction."""
    if verdict.gain is None:
        return "–"
    gain = verdict.gain.difference
    if math.isnan(gain.mean):
        return "–"
    if lower_is_better(verdict.check):
        gain = Estimate(-gain.mean, -gain.high, -gain.low, gain.n, gain.clusters, gain.level)
    return signed(gain)


def lines(decision: Decision) -> list[str]:
    """What the decision is, against what, and what remains open."""
    failed = [verdict.check.name for verdict in decision.verdicts if verdict.failed]
    against = f"compared with {decision.accepted}" if decision.accepted else "no run was accepted yet: bounds alone"
    said = [f"suite {decision.suite.suite}, run {decision.run}; {against}; {_family(decision)}"]
    if decision.undecided:
        names = ", ".join(verdict.check.name for verdict in decision.undecided)
        fails = decision.suite.undecided == "fail"
        consequence = "which fails (undecided: fail)" if fails else "which is no proof that nothing got worse"
        said.append(f"undecided for lack of power: {names}, {consequence}")
    if failed:
        said.append(f"failed: {', '.join(failed)}")
    else:
        said.append("passed" if decision.passed else "failed: undecided checks")
    if decision.registered:
        said.append(f"accepted: {decision.registered}")
    return said


def _family(decision: Decision) -> str:
    tested = sum(not math.isnan(verdict.p_worse) for verdict in decision.verdicts)
    return f"{tested} comparisons, Holm at {decision.suite.alpha:g}"
