"""The finding of a study, generated from its numbers and from nothing else: its answer, and what limits it."""

from __future__ import annotations

import math

from rlhf_lab.results.answer import Answer
from rlhf_lab.results.wording import SMOKE_CAVEAT, compact, metric_phrase, p_equals, signed
from rlhf_lab.statistics.inference import repetitions_to_decide
from rlhf_lab.studies.curves import curve_finding
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.front import front_finding
from rlhf_lab.studies.replication import list_in_words
from rlhf_lab.studies.table import MetricSection, Row
from rlhf_lab.studies.verdict import ALPHA, CONFIRMED, REFUTED, UNCLEAR, UNTESTED, verdict_summary, verdicts

SHOWN_CLAIMS = 4
"""Claims written out in the finding; the table below it has all of them."""


def write_finding(study: Study, sections: list[MetricSection]) -> Answer:
    """What the study says to its question: its claims, or else its primary metric level by level."""
    if not len(study.completed):
        return Answer(f"No finding: none of the {len(study.frame)} jobs completed.")
    if study.predicts:
        sentences = _claim_sentences(study)
    else:
        primary = [section for section in sections if section.metric == study.primary]
        sentences = [sentence for section in primary for sentence in _section_sentences(study, section)]
    sentences += [front_finding(study), curve_finding(study)]
    return Answer(" ".join(filter(None, sentences)), " ".join(_limit_sentences(study)))


def _claim_sentences(study: Study) -> list[str]:
    """How many claims hold, then each with its numbers, the decided ones first."""
    rows = verdicts(study)
    order = [CONFIRMED, REFUTED, UNCLEAR, UNTESTED]
    shown = sorted(rows, key=lambda row: order.index(row.verdict))[:SHOWN_CLAIMS]
    sentences = [verdict_summary(rows), *(row.sentence for row in shown)]
    not_shown = len(rows) - len(shown)
    if not_shown:
        sentences.append(f"The other {f'{not_shown} are' if not_shown > 1 else 'one is'} in the table.")
    return sentences


def _limit_sentences(study: Study) -> list[str]:
    """What the intervals speak for, where the truth comes from, and what is missing."""
    sentences = [SMOKE_CAVEAT] if study.size == "smoke" else []
    total = len(study.frame)
    completed = len(study.completed)
    seeds = seeds_of(study)
    if len(seeds) < 2:
        sentences.append("One seed cannot tell a difference from noise between seeds: take three or more.")
    else:
        sentences.append(study.replication.sentence(seeds))
    if study.has_gold:
        sentences.append(f"Gold is {study.gold_source}.")
    if completed < total:
        counts = study.incomplete["status"].value_counts()
        causes = ", ".join(f"{count} {status}" for status, count in counts.items())
        sentences.append(f"{total - completed} of {total} jobs have no result ({causes}) and are left out.")
    if changed := len(study.changed):
        sentences.append(f"Files of {changed} of {total} jobs changed after completion; they count as they are now.")
    return sentences


def seeds_of(study: Study) -> list[int]:
    """Seeds of the completed jobs; none for a study that sets none."""
    return sorted(study.completed["seed"].astype(int).unique()) if "seed" in study.completed else []


def _section_sentences(study: Study, section: MetricSection) -> list[str]:
    """What one section shows, level by level."""
    rows = {row.level: row for row in section.rows}
    baseline = study.label(study.baseline)
    sentences = [_baseline_sentence(rows.get(study.baseline), _metric_and_panel(study, section), baseline)]
    paired = [row for row in section.rows if row.level != study.baseline and row.versus]
    scored = [row for row in paired if row.versus and row.versus.difference.clusters]
    sentences += [told_apart(study.label(row.level), row) for row in scored if row.distinguishable]
    unclear = {study.label(row.level): row for row in scored if not row.distinguishable}
    if unclear:
        # Holm's adjustment runs over the comparisons of all panels.
        sentences.append(not_told_apart(unclear, baseline, family=len(paired) * len(study.panels())))
    if unscored := [study.label(row.level) for row in paired if row not in scored]:
        sentences.append(f"Not compared, because no seed has both sides scored: {list_in_words(unscored)}.")
    without_pair = [row for row in section.rows if row.level != study.baseline and row.versus is None]
    if without_pair:
        names = [study.label(row.level) for row in without_pair]
        sentences.append(f"Not compared, for want of a shared seed: {list_in_words(names)}.")
    return sentences


def _metric_and_panel(study: Study, section: MetricSection) -> str:
    """The metric, and which jobs it is of."""
    phrase = metric_phrase(section.metric)
    return f"{phrase} ({study.panel_label(section.by)})" if section.by else phrase


def _baseline_sentence(row: Row | None, title: str, baseline: str) -> str:
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
        levels = [f"{level} ({_detectable_clause(row, unit, family)})" for level, row in tested.items()]
        sentences.append(f"Not distinguishable from {baseline}: {list_in_words(levels)}.")
    if untested := [level for level in rows if level not in tested]:
        sentences.append(
            f"Not tested against {baseline}: {list_in_words(untested)}. "
            f"One shared {unit} cannot tell a difference from noise between {unit}s; take three or more."
        )
    return " ".join(sentences)


def _detectable_clause(row: Row, unit: str, family: int) -> str:
    """The difference, the smallest one that would be found with 80 % power, and how many seeds would find this one."""
    assert row.versus is not None
    effect = row.versus.minimum_detectable_effect
    phrases = [signed(row.versus.difference)]
    if math.isfinite(effect) and effect > 0:
        phrases.append(f"detectable from {compact(effect)}")
    # α / family is the strictest level of Holm's adjustment, so the count of seeds is rather too large.
    if unit == "seed" and (needed := repetitions_to_decide(row.versus, alpha=ALPHA / family)):
        phrases.append(f"about {needed} seeds would find it")
    return ", ".join(phrases)
