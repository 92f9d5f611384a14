"""The gate's decision on the console: one row per check, then the consequences."""

from __future__ import annotations

import math

from rich.table import Table

from rlhf_lab.core.files import short_path
from rlhf_lab.gates.gate import Decision
from rlhf_lab.gates.verdicts import CheckVerdict, direction
from rlhf_lab.results.wording import compact, signed

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


def _difference(verdict: CheckVerdict) -> str:
    """Return the difference candidate minus accepted, not negated for metrics whose lower values are better."""
    if verdict.gain is None:
        return "–"
    gain = verdict.gain.difference
    if math.isnan(gain.mean):
        return "–"
    if direction(verdict.check) == "lower":
        # the gain is positive if the candidate is better; swap the bounds together with the sign
        gain = gain.negated()
    return signed(gain)


def lines(decision: Decision) -> list[str]:
    """Return the decision, the run that the new one is compared with, and the undecided checks."""
    failed = [verdict.check.name for verdict in decision.verdicts if verdict.failed]
    against = f"compared with {decision.accepted}" if decision.accepted else "no run was accepted yet: bounds only"
    subject = f"suite {decision.suite.suite}, run {decision.run}"
    tested = sum(not math.isnan(verdict.p_worse) for verdict in decision.verdicts)
    parts = [f"{subject}; {against}; {tested} comparisons, Holm at {decision.suite.alpha:g}"]
    fails = decision.suite.undecided == "fail"
    consequence = "which fails (undecided: fail)" if fails else "so it is not proved that nothing got worse"
    incomparable = [verdict.check.name for verdict in decision.undecided if verdict.incomparable]
    powerless = [verdict.check.name for verdict in decision.undecided if not verdict.incomparable]
    for names, reason in ((powerless, "for lack of power"), (incomparable, "because the scales differ")):
        if names:
            parts.append(f"undecided {reason}: {', '.join(names)}, {consequence}")
    # a run without failed checks may still fail, because of undecided ones
    if failed:
        parts.append(f"failed: {', '.join(failed)}")
    else:
        parts.append("passed" if decision.passed else "failed: undecided checks")
    if decision.registered:
        parts.append(f"accepted: {short_path(decision.registered)}")
    return parts
