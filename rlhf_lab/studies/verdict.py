"""Verdicts on the claims of a study: confirmed, not confirmed, or not distinguishable.

A claim is one comparison of two levels that the recipe states before the study runs. All claims of a study are one
family, including claims about a panel and claims of equivalence: Holm's adjustment covers all of them together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_lab.config.overrides import level_name
from rlhf_lab.results.wording import metric_phrase, p_equals, signed, with_digits_of
from rlhf_lab.statistics.inference import Comparison, equivalence, holm, repetitions_to_decide
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.pairing import paired_jobs
from rlhf_lab.studies.replicates import level_difference
from rlhf_lab.studies.replication import list_in_words

CONFIRMED, REFUTED, UNCLEAR, UNTESTED = "confirmed", "not confirmed", "not distinguishable", "not tested"
NOT_SWEPT = "not in this sweep"
VERDICTS = (CONFIRMED, REFUTED, UNCLEAR, UNTESTED, NOT_SWEPT)
"""All verdicts, in the order in which a conclusion lists them."""
ALPHA = 0.05
"""Level of the tests after Holm's adjustment."""


@dataclass(frozen=True)
class ClaimVerdict:
    """One claim with its verdict.

    Attributes:
        claim: the claim in words, e.g. "verbose rate is lower with λ 0.5 than with λ 0".
        verdict: `confirmed`, `not confirmed` (the opposite is found, or a difference although equivalence was claimed),
            `not distinguishable`, `not tested` (fewer than two shared seeds) or `not in this sweep` (the command line
            narrowed the sweep, and no job has the level that the claim compares).
        sentence: the verdict in words, with the numbers behind it.
        comparison: level − versus, paired by seed; None if not tested.
        p_holm: p-value adjusted over all claims of the study; NaN if not tested.
        seeds: number of seeds that would decide an undecided claim if difference and standard deviation stay as
            observed; None if unknown, or above the search limit.
    """

    claim: str
    verdict: str
    sentence: str
    comparison: Comparison | None = None
    p_holm: float = math.nan
    seeds: int | None = None


def verdicts(study: Study) -> list[ClaimVerdict]:
    """Return one verdict per claim of the study, in its order."""
    comparisons = [_compare_levels(study, claim) for claim in study.predicts]
    claims_compared = zip(study.predicts, comparisons, strict=True)
    p_values = [claim_p(claim, comparison) for claim, comparison in claims_compared]
    # One family for all claims of the study.
    adjusted = holm(p_values)
    return [
        _judge_claim(study, claim, comparison, p_holm)
        for claim, comparison, p_holm in zip(study.predicts, comparisons, adjusted, strict=True)
    ]


def _judge_claim(study: Study, claim: Mapping[str, Any], comparison: Comparison | None, p_holm: float) -> ClaimVerdict:
    """Decide one claim and write its sentence."""
    words = claim_in_words(study, claim)
    # The command line may have removed the level from the sweep.
    if missing := missing_levels(study, claim):
        sentence = f"Not in this sweep, because no job has {list_in_words(missing)}: {words}."
        return ClaimVerdict(words, NOT_SWEPT, sentence)
    if comparison is None or math.isnan(p_holm):
        sentence = f"Not tested, because fewer than two seeds completed and were scored on both sides: {words}."
        return ClaimVerdict(words, UNTESTED, sentence, comparison)
    verdict = decide(claim, comparison, p_holm)
    seeds = None
    if verdict == UNCLEAR:
        # Only a claim of equivalence is decided by its margin.
        margin = claim["margin"] if claim["direction"] == "same" else None
        # α over the number of claims is the strictest level of Holm's adjustment.
        seeds = repetitions_to_decide(
            comparison,
            margin=margin,
            alpha=ALPHA / len(study.predicts),
        )
    sentence = _claim_sentence(study, claim, verdict, comparison, p_holm, seeds)
    return ClaimVerdict(words, verdict, sentence, comparison, p_holm, seeds)


def _compare_levels(study: Study, claim: Mapping[str, Any]) -> Comparison | None:
    """Return level − versus of a claim; None if fewer than two seeds have both."""
    panel = _panel_of_claim(study, claim)
    if panel is None:
        return None
    level, versus = level_name(claim["level"]), _versus_level(study, claim)
    comparison = level_difference(panel, claim["metric"], level, versus)
    if comparison is None or comparison.difference.clusters < 2:
        return None
    return comparison


def _panel_of_claim(study: Study, claim: Mapping[str, Any]) -> Study | None:
    """Return the jobs that a claim is about: all, or those with one value of `by`; None if there are none."""
    if claim.get("by") is None:
        return study
    if study.by not in study.factors:  # the command line set `by` to one value; the claims left are about that value
        return study
    return dict(study.panels()).get(level_name(claim["by"]))


def missing_levels(study: Study, claim: Mapping[str, Any]) -> list[str]:
    """Return labels of the levels that a claim compares but no job of the study has, finished or not."""
    compared = (level_name(claim["level"]), _versus_level(study, claim))
    missing = [study.label(level) for level in compared if level not in study.levels]
    if _panel_of_claim(study, claim) is None:
        missing.append(study.panel_label(level_name(claim["by"])))
    return missing


def _versus_level(study: Study, claim: Mapping[str, Any]) -> str:
    """Return the level that a claim compares with; the baseline by default."""
    return study.baseline if claim.get("versus") is None else level_name(claim["versus"])


def claim_p(claim: Mapping[str, Any], comparison: Comparison | None) -> float:
    """Return the p-value of a claim for the study's family; NaN if the claim is not tested.

    For a difference it is that of the two-sided test, which can find the claimed direction or the opposite one. For
    equivalence it is the smaller of the p-values for a difference inside and outside the margin. These two statements
    cannot both be false.
    """
    if comparison is None:
        return math.nan
    if claim["direction"] != "same":
        return comparison.p_value
    return min(equivalence(comparison, claim["margin"]))


def decide(claim: Mapping[str, Any], comparison: Comparison, p_holm: float) -> str:
    """Return the verdict on one claim, at 5 % after Holm's adjustment over the claims of the study."""
    if not p_holm <= ALPHA:  # also for NaN
        return UNCLEAR
    gap = comparison.difference.mean
    if claim["direction"] == "same":
        return CONFIRMED if abs(gap) < claim["margin"] else REFUTED
    return CONFIRMED if (gap > 0) == (claim["direction"] == "higher") else REFUTED


def claim_in_words(study: Study, claim: Mapping[str, Any]) -> str:
    """Return the claim in words, for example "verbose rate is lower with λ 0.5 than with λ 0"."""
    level = study.label(level_name(claim["level"]))
    versus = study.label(_versus_level(study, claim))
    metric = metric_phrase(claim["metric"])
    panel = ""
    if claim.get("by") is not None:
        panel = f" ({study.panel_label(level_name(claim['by']))})"
    if claim["direction"] == "same":
        return f"{metric} with {level} is within {claim['margin']:g} of that with {versus}{panel}"
    return f"{metric} is {claim['direction']} with {level} than with {versus}{panel}"


def _claim_sentence(
    study: Study, claim: Mapping[str, Any], verdict: str, comparison: Comparison, p_holm: float, seeds: int | None
) -> str:
    """Return a claim with its verdict and numbers, as a sentence.

    For example "Undecided: gold reward, λ = 0.5 against λ = 0: −0.23 against −0.24 (difference +0.01 ±0.54, p = 1.00)".
    """
    metric = metric_phrase(claim["metric"])
    claimed = claim["direction"]
    expected = f"equal within {claim['margin']:g}" if claimed == "same" else claimed
    if verdict == CONFIRMED:
        statement = f"Confirmed: {metric} is {expected}"
    elif verdict == REFUTED:
        opposite = {
            "same": "the difference is larger",
            "higher": "it is lower",
            "lower": "it is higher",
        }[claimed]
        statement = f"Not confirmed: {metric} was expected to be {expected}, but {opposite}"
    else:
        statement = f"Undecided: {metric}"
        if claimed == "same":
            statement += f", {expected}"
    numbers = _means_and_difference(study, claim, comparison, p_holm)
    needed = more_seeds(seeds) if verdict == UNCLEAR else ""
    return f"{statement}, {_sides_in_words(study, claim)}: {numbers}{needed}."


def _sides_in_words(study: Study, claim: Mapping[str, Any]) -> str:
    """Return the two levels that a claim compares, for example "λ 0.5 against λ 0 (small)"."""
    level = study.label(level_name(claim["level"]))
    versus = study.label(_versus_level(study, claim))
    panel = ""
    if claim.get("by") is not None:
        panel = f" ({study.panel_label(level_name(claim['by']))})"
    return f"{level} against {versus}{panel}"


def more_seeds(seeds: int | None) -> str:
    """Return how many seeds would decide an undecided comparison, as the end of a sentence."""
    if seeds is None:
        return "; no number of seeds up to 200 would decide it if the difference stays as observed"
    return f"; about {seeds} seeds would decide it if the difference stays as observed"


def _means_and_difference(study: Study, claim: Mapping[str, Any], comparison: Comparison, p_holm: float) -> str:
    """Return the means of the paired jobs on both sides, their difference and its adjusted p-value."""
    panel = _panel_of_claim(study, claim) or study
    level = level_name(claim["level"])
    pairs = paired_jobs(panel, claim["metric"], level, _versus_level(study, claim)).dropna()
    gap = comparison.difference
    level_mean = with_digits_of(float(pairs["a"].mean()), gap)
    versus_mean = with_digits_of(float(pairs["b"].mean()), gap)
    return f"{level_mean} against {versus_mean} (difference {signed(gap)}, {p_equals(p_holm)})"


def verdict_numbers(verdict: ClaimVerdict) -> str:
    """Return the difference and its p-value as text."""
    if verdict.verdict == NOT_SWEPT:
        return "no job with this level"
    if verdict.comparison is None:
        return "fewer than two shared seeds"
    return f"{signed(verdict.comparison.difference)}, {p_equals(verdict.p_holm)}"


def verdict_summary(rows: Sequence[ClaimVerdict]) -> str:
    """Return how many claims hold, in one sentence; empty without claims."""
    if not rows:
        return ""
    # If all verdicts are equal, one short sentence is enough.
    counts = {name: sum(row.verdict == name for row in rows) for name in VERDICTS}
    if len(rows) in counts.values():
        subject = "The claim is" if len(rows) == 1 else f"All {len(rows)} claims are"
        return f"{subject} {_in_words(rows[0].verdict)}."
    phrases = [f"{count} {_in_words(name)}" for name, count in counts.items() if count]
    verb = "is" if phrases[0].startswith("1 ") else "are"
    phrases[0] = phrases[0].replace(" ", f" {verb} ", 1)  # "2 confirmed" → "2 are confirmed"
    return f"Of {len(rows)} claims, {list_in_words(phrases)}."


def _in_words(verdict: str) -> str:
    """Return a verdict as the predicate of "the claim is …"."""
    predicates = {UNCLEAR: "undecided", NOT_SWEPT: "about levels outside this sweep"}
    return predicates.get(verdict, verdict)


def verdict_markdown(study: Study) -> str:
    """Return the claims as a Markdown table; empty for a study without claims."""
    rows = verdicts(study)
    if not rows:
        return ""
    lines = ["| claim | here | difference, p after Holm |", "| --- | --- | --- |"]
    for row in rows:
        # A vertical bar would end the cell.
        claim = row.claim.replace("|", "\\|")
        lines.append(f"| {claim} | **{row.verdict}** | {verdict_numbers(row)} |")
    return "\n".join(lines) + "\n\n"
