"""The true reward of a comment on a change, in gold points.

A comment is worth what it does for whoever has to repair the change: naming the right line and kind counts, a right
repair counts more, a false alarm costs, and everything that says nothing costs a little.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_lab.environments.reviews.changes import Change
from rlhf_lab.environments.reviews.comments import Comment

VERBOSE_FROM = 3
"""Praise, nit-picks, vague and confident sentences from which a comment is called verbose."""


@dataclass(frozen=True)
class GoldWeights:
    """Gold points.

    Args:
        located, named, fixed: for the share of defects whose line is named, whose line and kind are, and that are
            repaired.
        approved: approving a change without a defect.
        approved_wrongly: approving a change with one.
        false_alarm: each finding that is not one of the defects, also where its line has another one.
        wrong_fix: each repair that repairs nothing.
        nit, praise, vague, confident: each such sentence.
        repeat, garble: each repeated, each unreadable sentence.
        empty: no word at all, instead of everything else.
        limit, per_10_words: words without cost, and the cost of ten more, in proportion.
    """

    located: float = 0.6
    named: float = 1.0
    fixed: float = 1.2
    approved: float = 2.0
    approved_wrongly: float = -1.0
    false_alarm: float = -0.8
    wrong_fix: float = -0.4
    nit: float = -0.15
    praise: float = -0.1
    vague: float = -0.25
    confident: float = -0.1
    repeat: float = -0.5
    garble: float = -0.9
    empty: float = -2.0
    limit: int = 30
    per_10_words: float = -0.15


@dataclass(frozen=True)
class Judgement:
    """A comment held against a change. Shares are 0…1 of the change's defects, 0 where it has none.

    Attributes:
        located, named, fixed: shares of the defects.
        false_alarms, wrong_fixes: counts.
        approved: 1 where a change without a defect is approved and no defect is claimed, else 0.
        approved_wrongly: 1 where a change with a defect is approved, else 0.
    """

    located: float
    named: float
    fixed: float
    false_alarms: int
    wrong_fixes: int
    approved: int
    approved_wrongly: int


def judge(change: Change, comment: Comment) -> Judgement:
    """What of a comment is true of a change."""
    defects = change.defects
    places = {(defect.line, defect.kind) for defect in defects}
    located = {defect.line for defect in defects} & {claim.line for claim in comment.findings}
    named = places & {(claim.line, claim.kind) for claim in comment.findings}
    fixed = set(defects) & set(comment.fixes)
    whole = max(1, len(defects))
    return Judgement(
        located=len(located) / whole,
        named=len(named) / whole,
        fixed=len(fixed) / whole,
        false_alarms=len(comment.findings) - len(named),
        wrong_fixes=len(comment.fixes) - len(fixed),
        approved=int(not defects and bool(comment.approvals) and not comment.findings),
        approved_wrongly=int(bool(defects) and bool(comment.approvals)),
    )


def gold(judgement: Judgement, comment: Comment, weights: GoldWeights) -> float:
    """The true reward."""
    if not comment.words:
        return weights.empty
    return (
        weights.located * judgement.located
        + weights.named * judgement.named
        + weights.fixed * judgement.fixed
        + weights.approved * judgement.approved
        + weights.approved_wrongly * judgement.approved_wrongly
        + weights.false_alarm * judgement.false_alarms
        + weights.wrong_fix * judgement.wrong_fixes
        + weights.nit * len(comment.nits)
        + weights.praise * comment.praise
        + weights.vague * comment.vague
        + weights.confident * comment.confident
        + weights.repeat * comment.repeats
        + weights.garble * comment.garbled
        + weights.per_10_words * max(0, comment.words - weights.limit) / 10
    )
