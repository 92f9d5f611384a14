"""The finding of a study in one paragraph, generated from its numbers and from nothing else."""

from __future__ import annotations

import math

from rlhf_lab.studies.curves import curve_finding
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.table import Row, Section, section_title
from rlhf_lab.studies.verdict import verdict_finding
from rlhf_lab.studies.wording import SMOKE_CAVEAT, compact, p_text, signed


def write_finding(study: Study, sections: list[Section]) -> str:
    """What the primary metric shows, level by level, and what it could not have shown."""
    total, done = len(study.frame), len(study.completed)
    if not done:
        return f"No finding: none of the {total} jobs completed."
    primary = [section for section in sections if section.metric == study.primary]
    sentences = [sentence for section in primary for sentence in _section(study, section)]
    sentences.append(verdict_finding(study))
    sentences.append(curve_finding(study))
    if study.size == "smoke":
        sentences.insert(0, SMOKE_CAVEAT)
    if done < total:
        counts = study.incomplete["status"].value_counts()
        causes = ", ".join(f"{count} {status}" for status, count in counts.items())
        sentences.append(f"{total - done} of {total} jobs have no result ({causes}) and are left out.")
    if count := len(study.changed):
        sentences.append(f"Files of {count} of {total} jobs changed after completion; they count as they are now.")
    return " ".join(sentence for sentence in sentences if sentence)


def _section(study: Study, section: Section) -> list[str]:
    """What one section shows, level by level."""
    rows = {row.level: row for row in section.rows}
    sentences = [_baseline(rows.get(study.baseline), section_title(study, section), study)]
    compared = [row for row in section.rows if row.level != study.baseline and row.versus]
    others = [row for row in compared if row.versus and row.versus.difference.clusters]
    sentences += [told_apart(row) for row in others if row.distinguishable]
    unclear = [row for row in others if not row.distinguishable]
    if unclear:
        sentences.append(not_told_apart(unclear, study.baseline))
    if unscored := [row.level for row in compared if row not in others]:
        sentences.append(f"{_names(unscored)}: no seed has it scored on both sides, so not compared.")
    if lonely := [row.level for row in section.rows if row.level != study.baseline and row.versus is None]:
        sentences.append(f"{_names(lonely)}: no completed seed shared with the baseline, so not compared.")
    return sentences


def _baseline(row: Row | None, title: str, study: Study) -> str:
    if row is None or math.isnan(row.mean.mean):
        return f"The baseline `{study.baseline}` has no scored {title}, so nothing is compared with it."
    count = row.mean.clusters
    return f"Over {count} seed{'s' * (count != 1)}, the {title} of `{study.baseline}` is {compact(row.mean)}."


def told_apart(row: Row) -> str:
    """A level that differs from the baseline, and by how much."""
    assert row.versus is not None and row.p_holm is not None
    direction = "higher" if row.versus.difference.mean > 0 else "lower"
    gap = f"{signed(row.versus.difference)}, p = {p_text(row.p_holm)} after Holm"
    return f"`{row.level}` is {direction} ({gap.replace('= <', '<')})."


def not_told_apart(rows: list[Row], baseline: str, *, unit: str = "seed") -> str:
    """Levels that the data cannot tell from the baseline, with the smallest difference it could have found.

    Args:
        unit: what the pairs share: "seed" or "prompt".
    """
    parts = [f"`{row.level}` ({_reach(row)})" for row in rows]
    verb = "is" if len(rows) == 1 else "are"
    sentence = f"{_names(parts, quote=False)} {verb} not distinguishable from `{baseline}`"
    if any(row.versus.difference.clusters == 1 for row in rows if row.versus):
        return f"{sentence}: one shared {unit} cannot tell a difference from noise between {unit}s. Take 3 or more."
    return f"{sentence}; a detectable difference is one that would be found with 80 % power."


def _reach(row: Row) -> str:
    """The difference, and the smallest one that could have been found."""
    assert row.versus is not None
    effect = row.versus.minimum_detectable_effect
    return signed(row.versus.difference) + (f", detectable from {compact(effect)}" if math.isfinite(effect) else "")


def _names(names: list[str], *, quote: bool = True) -> str:
    names = [f"`{name}`" for name in names] if quote else names
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
