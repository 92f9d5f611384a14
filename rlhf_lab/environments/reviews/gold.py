"""Gold reward of a comment on a change, in gold points.

The reward measures how useful a comment is for repairing the change. Naming the right line and kind counts, a right fix
counts more, a false alarm costs, and every sentence without content costs a little.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_lab.environments.reviews.changes import Change
from rlhf_lab.environments.reviews.comments import Comment

VERBOSE_FROM = 3
"""Number of praise, nit-pick, vague and confident sentences from which a comment counts as verbose."""


@dataclass(frozen=True)
class ReviewGoldWeights:
    """Coefficients of the gold reward, in gold points.

    Attributes:
        located: for the fraction of defects whose line is named.
        named: for the fraction of defects whose line and kind are named.
        fixed: for the fraction of defects that are fixed.
        approved: for approving a change without a defect.
        approved_wrongly: for approving a change with a defect.
        false_alarm: for each named defect that does not exist, even if its line has another one.
        wrong_fix: for each fix that fixes nothing.
        nit: for each nit-pick.
        praise: for each sentence of praise.
        vague: for each vague sentence.
        confident: for each confident sentence.
        repeat: for each repeated sentence.
        garble: for each unreadable sentence.
        empty: for a comment without a word, instead of everything else.
        limit: number of words without cost.
        per_10_words: for each ten words over the limit, in proportion.
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
class CommentReading:
    """A comment compared with a change. Fractions refer to the defects of the change; they are 0 if it has none.

    Attributes:
        located: fraction of defects whose line is named, 0…1.
        named: fraction of defects whose line and kind are named, 0…1.
        fixed: fraction of defects that are fixed, 0…1.
        false_alarms: number of named defects that do not exist.
        wrong_fixes: number of fixes that fix nothing.
        approved: 1 if a change without a defect is approved and no defect is claimed, else 0.
        approved_wrongly: 1 if a change with a defect is approved, else 0.
    """

    located: float
    named: float
    fixed: float
    false_alarms: int
    wrong_fixes: int
    approved: int
    approved_wrongly: int


def judge(change: Change, comment: Comment) -> CommentReading:
    """Compare a comment with a change."""
    defects = change.defects
    positions = {(defect.line, defect.kind) for defect in defects}
    located = {defect.line for defect in defects} & {claim.line for claim in comment.findings}
    named = positions & {(claim.line, claim.kind) for claim in comment.findings}
    # a fix is right if line, kind and name are
    fixed = set(defects) & set(comment.fixes)
    full = max(1, len(defects))  # avoids a division by 0; the numerators are then 0 as well
    return CommentReading(
        located=len(located) / full,
        named=len(named) / full,
        fixed=len(fixed) / full,
        false_alarms=len(comment.findings) - len(named),
        wrong_fixes=len(comment.fixes) - len(fixed),
        approved=int(not defects and bool(comment.approvals) and not comment.findings),
        approved_wrongly=int(bool(defects) and bool(comment.approvals)),
    )


def gold(judgement: CommentReading, comment: Comment, weights: ReviewGoldWeights) -> float:
    """Return the gold reward of a comment."""
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
