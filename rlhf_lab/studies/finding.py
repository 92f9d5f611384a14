"""Conclusion of a study, generated from its numbers alone: the answer to its question, and the limits of the answer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from rlhf_lab.results.answer import Conclusion
from rlhf_lab.results.wording import SMOKE_CAVEAT, compact, metric_phrase, signed
from rlhf_lab.studies.claims import NOT_SWEPT, VERDICTS
from rlhf_lab.studies.correlations import CorrelationVerdict, correlations_of
from rlhf_lab.studies.crossing import crossing_conclusion
from rlhf_lab.studies.curves import curve_conclusion
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.look_log import LookLog
from rlhf_lab.studies.pareto_front import pareto_conclusion
from rlhf_lab.studies.rates import RateVerdict, rates_of
from rlhf_lab.studies.replication import list_in_words
from rlhf_lab.studies.table import MetricSection, build_sections, rich_table
from rlhf_lab.studies.verdict import ClaimVerdict, verdict_summary, verdicts

SHOWN_CLAIMS = 4
"""Maximum number of claims written out in the conclusion; the table below it has all of them."""
EXPLORATORY = "This is exploratory: no claim is tested, and the 95 % intervals are not adjusted for their number."


def finding_blocks(study: Study) -> list[RenderableType]:
    sections = build_sections(study)
    conclusion = write_conclusion(study, sections)
    return [Text(conclusion.sentence), Text(conclusion.caveat, style="dim"), rich_table(study, sections)]


def write_conclusion(study: Study, sections: list[MetricSection]) -> Conclusion:
    """Return the study's answer to its question: its claims, or if it has none its primary metric level by level."""
    if not len(study.completed):
        return Conclusion(f"No finding: none of the {len(study.frame)} jobs completed.")
    rows = verdicts(study)
    others: list[RateVerdict | CorrelationVerdict] = [*rates_of(study), *correlations_of(study)]
    sentences = [verdict_summary([row.verdict for row in rows] + [row.verdict for row in others])]
    sentences += _claim_sentences(rows)
    # Without a claim to decide, the measurements are reported instead.
    if all(row.verdict == NOT_SWEPT for row in rows) and not others:
        shown = [section for section in sections if section.metric == study.primary]
        for section in shown:
            sentences += _section_sentences(study, section)
        if any(row.versus for section in shown for row in section.rows):
            sentences.append(EXPLORATORY)
    sentences += [row.sentence for row in others]
    sentences += [pareto_conclusion(study), crossing_conclusion(study), curve_conclusion(study)]
    return Conclusion(" ".join(filter(None, sentences)), " ".join(_limit_sentences(study)))


def _claim_sentences(rows: Sequence[ClaimVerdict]) -> list[str]:
    """Return each claim about a difference with its numbers, decided ones first; empty without claims."""
    shown = sorted(rows, key=lambda row: VERDICTS.index(row.verdict))[:SHOWN_CLAIMS]
    sentences = [row.sentence for row in shown]
    not_shown = len(rows) - len(shown)
    if not_shown:
        sentences.append(f"The other {f'{not_shown} are' if not_shown > 1 else 'one is'} in the table.")
    return sentences


def _limit_sentences(study: Study) -> list[str]:
    """Return what the intervals cover, where gold comes from, and which jobs are missing."""
    sentences = [SMOKE_CAVEAT] if study.size == "smoke" else []
    total, completed = len(study.frame), len(study.completed)
    seeds = seeds_of(study)
    if len(seeds) < 2:
        sentences.append("One seed cannot tell a difference from noise between seeds: use three or more.")
    else:
        sentences.append(study.replication.sentence(seeds))
    if study.log is not None:
        sentences.append(looks_sentence(study.log))
    if study.has_gold:
        sentences.append(f"Gold is {study.gold_source}.")
    if completed < total:
        counts = study.incomplete["status"].value_counts()
        causes = ", ".join(f"{count} {status}" for status, count in counts.items())
        sentences.append(f"{total - completed} of {total} jobs have no result ({causes}) and are left out.")
    if changed := len(study.changed):
        sentences.append(
            f"Files of {changed} of {total} jobs changed after completion; the numbers use their present content."
        )
    return sentences


def looks_sentence(log: LookLog) -> str:
    """Return when a study with `until=decided` was looked at, why it stopped, and what its tests account for."""
    counts = ", ".join(str(look.seeds) for look in log.looks)
    sentences = [f"The claims were looked at n = {counts}" if counts else "The claims were not looked at yet"]
    if log.stopped:
        sentences[0] += f"; {log.stopped}"
    if counts:
        sentences.append(
            "Their tests and intervals hold at every look (the smallest one-sided t p-value so far, calibrated; Holm "
            "at every look; amounts on a log scale, rates on a logit scale); the other numbers do not account for the "
            "looks"
        )
    return " ".join(f"{sentence}." for sentence in sentences)


def seeds_of(study: Study) -> list[int]:
    return sorted(study.completed["seed"].astype(int).unique()) if "seed" in study.completed else []


def _section_sentences(study: Study, section: MetricSection) -> list[str]:
    """Return the values of one section, level by level, without tests: no claim was made about them."""
    rows = {row.level: row for row in section.rows}
    baseline = study.label(study.baseline)
    phrase = metric_phrase(section.metric)
    title = f"{phrase} ({study.panel_label(section.by)})" if section.by else phrase
    row = rows.get(study.baseline)
    sentences = [f"No {title} was scored with {baseline}, so nothing is compared with it."]
    if row is not None and not math.isnan(row.mean.mean):
        sentences = [f"{title[0].upper()}{title[1:]} is {compact(row.mean)} with {baseline}."]
    compared = [row for row in section.rows if row.level != study.baseline]
    paired = [row for row in compared if row.versus]
    scored = [row for row in paired if row.versus and row.versus.difference.clusters]
    differences = [f"{signed(row.versus.difference)} with {study.label(row.level)}" for row in scored if row.versus]
    if differences:
        sentences.append(f"The difference from it is {list_in_words(differences)}.")
    if unscored := [study.label(row.level) for row in paired if row not in scored]:
        sentences.append(f"Not compared, because no seed has both sides scored: {list_in_words(unscored)}.")
    if without_pair := [study.label(row.level) for row in compared if row not in paired]:
        sentences.append(f"Not compared, because no seed is shared: {list_in_words(without_pair)}.")
    return sentences
