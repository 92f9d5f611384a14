"""The finding of a study, generated from its numbers and from nothing else: its answer, and what limits it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlhf_lab.results.answer import Answer
from rlhf_lab.results.wording import SMOKE_CAVEAT, compact, metric_phrase, p_equals, signed
from rlhf_lab.statistics.inference import repetitions_to_decide
from rlhf_lab.studies.curves import curve_finding
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.table import Row, Section
from rlhf_lab.studies.verdict import ALPHA, CONFIRMED, REFUTED, UNCLEAR, UNTESTED, verdict_summary, verdicts

SHOWN_CLAIMS = 4
"""Claims that are told in full; a table of them all stands below."""


def write_finding(study: Study, sections: list[Section]) -> Answer:
    """What the study says to its question: its claims, or else its primary metric level by level."""
    total, done = len(study.frame), len(study.completed)
    if not done:
        return Answer(f"No finding: none of the {total} jobs completed.")
    if study.predicts:
        sentences = _claims(study)
    else:
        primary = [section for section in sections if section.metric == study.primary]
        sentences = [sentence for section in primary for sentence in _section(study, section)]
    sentences.append(curve_finding(study))
    return Answer(" ".join(filter(None, sentences)), " ".join(_limits(study)))


def _claims(study: Study) -> list[str]:
    """How many claims hold, then each with its numbers, the decided ones first."""
    rows = verdicts(study)
    order = [CONFIRMED, REFUTED, UNCLEAR, UNTESTED]
    told = sorted(rows, key=lambda row: order.index(row.verdict))[:SHOWN_CLAIMS]
    more = len(rows) - len(told)
    rest = [f"The other {f'{more} are' if more > 1 else 'one is'} in the table."] if more else []
    return [verdict_summary(rows), *(row.sentence for row in told), *rest]


def _limits(study: Study) -> list[str]:
    """What the intervals speak for, where the truth comes from, and what is missing."""
    sentences = [SMOKE_CAVEAT] if study.size == "smoke" else []
    total, done, seeds = len(study.frame), len(study.completed), seeds_of(study)
    if len(seeds) < 2:
        sentences.append("One seed cannot tell a difference from noise between seeds: take three or more.")
    else:
        sentences.append(study.replication.sentence(seeds))
    if study.has_gold:
        sentences.append("Gold is the true reward of a simulated world.")
    if done < total:
        counts = study.incomplete["status"].value_counts()
        causes = ", ".join(f"{count} {status}" for status, count in counts.items())
        sentences.append(f"{total - done} of {total} jobs have no result ({causes}) and are left out.")
    if count := len(study.changed):
        sentences.append(f"Files of {count} of {total} jobs changed after completion; they count as they are now.")
    return sentences


def seeds_of(study: Study) -> list[int]:
    """Seeds of the completed jobs; none for a study that sets none."""
    return sorted(study.completed["seed"].astype(int).unique()) if "seed" in study.completed else []


def _section(study: Study, section: Section) -> list[str]:
    """What one section shows, level by level."""
    rows = {row.level: row for row in section.rows}
    baseline = study.label(study.baseline)
    sentences = [_baseline(rows.get(study.baseline), _phrase(study, section), baseline)]
    compared = [row for row in section.rows if row.level != study.baseline and row.versus]
    others = [row for row in compared if row.versus and row.versus.difference.clusters]
    sentences += [told_apart(study.label(row.level), row) for row in others if row.distinguishable]
    unclear = {study.label(row.level): row for row in others if not row.distinguishable}
    if unclear:
        sentences.append(not_told_apart(unclear, baseline, family=len(compared) * len(study.panels())))
    if unscored := [study.label(row.level) for row in compared if row not in others]:
        sentences.append(f"Not compared, because no seed has both sides scored: {_listed(unscored)}.")
    lonely = [study.label(row.level) for row in section.rows if row.level != study.baseline and row.versus is None]
    if lonely:
        sentences.append(f"Not compared, for want of a shared seed: {_listed(lonely)}.")
    return sentences


def _phrase(study: Study, section: Section) -> str:
    """The metric, and which jobs it is of."""
    phrase = metric_phrase(section.metric)
    return f"{phrase} ({study.panel_label(section.by)})" if section.by else phrase


def _baseline(row: Row | None, title: str, baseline: str) -> str:
    if row is None or math.isnan(row.mean.mean):
        return f"No {title} was scored with {baseline}, so nothing is compared with it."
    return f"{title[0].upper()}{title[1:]} is {compact(row.mean)} with {baseline}."


def told_apart(level: str, row: Row) -> str:
    """A level that differs from the baseline, and by how much."""
    assert row.versus is not None and row.p_holm is not None
    direction = "higher" if row.versus.difference.mean > 0 else "lower"
    return f"It is {direction} with {level} ({signed(row.versus.difference)}, {p_equals(row.p_holm)} after Holm)."


def not_told_apart(rows: dict[str, Row], baseline: str, *, unit: str = "seed", family: int = 1) -> str:
    """Levels, by what they are called, that the data cannot tell from the baseline, and what would decide it.

    Args:
        unit: what the pairs share: "seed" or "prompt".
        family: comparisons that are adjusted together.
    """
    tested = {level: row for level, row in rows.items() if row.versus and row.versus.difference.clusters > 1}
    sentences = []
    if tested:
        parts = [f"{level} ({_reach(row, unit, family)})" for level, row in tested.items()]
        sentences.append(f"Not distinguishable from {baseline}: {_listed(parts)}.")
    if single := [level for level in rows if level not in tested]:
        sentences.append(
            f"Not tested against {baseline}: {_listed(single)}. One shared {unit} cannot tell a difference from noise "
            f"between {unit}s; take three or more."
        )
    return " ".join(sentences)


def _reach(row: Row, unit: str, family: int) -> str:
    """The difference, the smallest one that would be found with 80 % power, and how many seeds would find this one."""
    assert row.versus is not None
    effect = row.versus.minimum_detectable_effect
    parts = [signed(row.versus.difference)]
    if math.isfinite(effect) and effect > 0:
        parts.append(f"detectable from {compact(effect)}")
    if unit == "seed" and (needed := repetitions_to_decide(row.versus, alpha=ALPHA / family)):
        parts.append(f"about {needed} seeds would find it")
    return ", ".join(parts)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
