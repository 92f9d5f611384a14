"""What a study says to the claims it was made to decide: confirmed, not confirmed, or not distinguishable.

A claim is one comparison of two levels, fixed in the recipe before the study ran. All claims of a study, those about
parts of it and those of sameness included, are one family: Holm's adjustment runs over all of them together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_lab.config.overrides import level_name
from rlhf_lab.results.wording import metric_phrase, p_equals, signed, with_digits_of
from rlhf_lab.statistics.inference import Comparison, equivalence, holm, repetitions_to_decide
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.pairing import paired_jobs
from rlhf_lab.studies.replicates import level_difference

CONFIRMED, REFUTED, UNCLEAR, UNTESTED = "confirmed", "not confirmed", "not distinguishable", "not tested"
ALPHA = 0.05


@dataclass(frozen=True)
class Verdict:
    """One claim and what the numbers say to it.

    Attributes:
        claim: in words, e.g. "verbose rate is lower with λ 0.5 than with λ 0".
        verdict: `confirmed`, `not confirmed` (the opposite is found, or a difference where none was claimed),
            `not distinguishable` or `not tested` (fewer than two shared seeds).
        sentence: the outcome in words, with the numbers behind it.
        comparison: level − versus, paired by seed; None when not tested.
        p_holm: adjusted over all claims of the study; NaN when not tested.
        seeds: how many would decide an undecided claim if spread and difference are what they look like; None if that
            is not known, or many.
    """

    claim: str
    verdict: str
    sentence: str
    comparison: Comparison | None = None
    p_holm: float = math.nan
    seeds: int | None = None


def verdicts(study: Study) -> list[Verdict]:
    """One per claim of the study, in its order."""
    comparisons = [_compare_levels(study, claim) for claim in study.predicts]
    claims_compared = zip(study.predicts, comparisons, strict=True)
    p_values = [claim_p(claim, comparison) for claim, comparison in claims_compared]
    adjusted = holm(p_values)
    return [
        _judge_claim(study, claim, comparison, p_holm)
        for claim, comparison, p_holm in zip(study.predicts, comparisons, adjusted, strict=True)
    ]


def _judge_claim(study: Study, claim: Mapping[str, Any], comparison: Comparison | None, p_holm: float) -> Verdict:
    words = claim_in_words(study, claim)
    if comparison is None or math.isnan(p_holm):
        sentence = f"Not tested, for want of two seeds that both sides completed and scored: {words}."
        return Verdict(words, UNTESTED, sentence, comparison)
    verdict = decide(claim, comparison, p_holm)
    seeds = None
    if verdict == UNCLEAR:
        margin = claim["margin"] if claim["direction"] == "same" else None
        seeds = repetitions_to_decide(comparison, margin=margin, alpha=ALPHA / len(study.predicts))
    sentence = _claim_sentence(study, claim, verdict, comparison, p_holm, seeds)
    return Verdict(words, verdict, sentence, comparison, p_holm, seeds)


def _compare_levels(study: Study, claim: Mapping[str, Any]) -> Comparison | None:
    """Level − versus of a claim; None where fewer than two seeds have both."""
    panel = _panel_of_claim(study, claim)
    if panel is None:
        return None
    comparison = level_difference(panel, claim["metric"], level_name(claim["level"]), _versus_level(study, claim))
    if comparison is None or comparison.difference.clusters < 2:
        return None
    return comparison


def _panel_of_claim(study: Study, claim: Mapping[str, Any]) -> Study | None:
    """The jobs that a claim is about: those with one value of the study's `by`, or all; None where there are none."""
    if claim.get("by") is None:
        return study
    if study.by not in study.factors:  # the command line gave it one value, and left the claims about that value
        return study
    return dict(study.panels()).get(level_name(claim["by"]))


def _versus_level(study: Study, claim: Mapping[str, Any]) -> str:
    return study.baseline if claim.get("versus") is None else level_name(claim["versus"])


def claim_p(claim: Mapping[str, Any], comparison: Comparison | None) -> float:
    """The p-value with which a claim joins the study's family; NaN when it is not tested.

    Of a difference: that of the two-sided test, which can find the claimed direction or the other one. Of sameness: the
    smaller one of those for a difference within and outside the margin, which cannot both be wrong.
    """
    if comparison is None:
        return math.nan
    if claim["direction"] != "same":
        return comparison.p_value
    return min(equivalence(comparison, claim["margin"]))


def decide(claim: Mapping[str, Any], comparison: Comparison, p_holm: float) -> str:
    """The verdict on one claim, at 5 % after Holm's adjustment over the claims of the study."""
    if not p_holm <= ALPHA:  # also for NaN
        return UNCLEAR
    gap = comparison.difference.mean
    if claim["direction"] == "same":
        return CONFIRMED if abs(gap) < claim["margin"] else REFUTED
    return CONFIRMED if (gap > 0) == (claim["direction"] == "higher") else REFUTED


def claim_in_words(study: Study, claim: Mapping[str, Any]) -> str:
    """For example "verbose rate is lower with λ 0.5 than with λ 0"."""
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
    """A decided or undecided claim with its numbers, as a sentence."""
    words = claim_in_words(study, claim)
    numbers = _means_and_difference(study, claim, comparison, p_holm)
    if verdict == CONFIRMED:
        return f"{words[0].upper()}{words[1:]}: {numbers}."
    if verdict == REFUTED:
        contrary = "the difference is larger" if claim["direction"] == "same" else "the opposite is found"
        return f"It was claimed that {words}; {contrary}: {numbers}."
    return f"Not decided whether {words}: {numbers}{more_seeds(seeds)}."


def more_seeds(seeds: int | None) -> str:
    """What would decide an undecided comparison, as the end of a sentence."""
    if seeds is None:
        return "; no number of seeds up to 200 would decide it if the difference is what it looks like"
    return f"; about {seeds} seeds would decide it if the difference is what it looks like"


def _means_and_difference(study: Study, claim: Mapping[str, Any], comparison: Comparison, p_holm: float) -> str:
    """The means of the paired jobs on both sides, their difference and its p."""
    panel = _panel_of_claim(study, claim) or study
    pairs = paired_jobs(panel, claim["metric"], level_name(claim["level"]), _versus_level(study, claim)).dropna()
    gap = comparison.difference
    level_mean = with_digits_of(float(pairs["a"].mean()), gap)
    versus_mean = with_digits_of(float(pairs["b"].mean()), gap)
    return f"{level_mean} against {versus_mean} ({signed(gap)}, {p_equals(p_holm)})"


def verdict_numbers(verdict: Verdict) -> str:
    """The difference and its p-value as text."""
    if verdict.comparison is None:
        return "fewer than two shared seeds"
    return f"{signed(verdict.comparison.difference)}, {p_equals(verdict.p_holm)}"


def verdict_summary(rows: list[Verdict]) -> str:
    """How many claims hold, in one sentence; empty without claims."""
    if not rows:
        return ""
    counts = {name: sum(row.verdict == name for row in rows) for name in (CONFIRMED, REFUTED, UNCLEAR, UNTESTED)}
    if len(rows) in counts.values():
        subject = "The claim is" if len(rows) == 1 else f"All {len(rows)} claims are"
        return f"{subject} {_in_words(rows[0].verdict)}."
    phrases = [f"{count} {_in_words(name)}" for name, count in counts.items() if count]
    verb = "is" if phrases[0].startswith("1 ") else "are"
    phrases[0] = phrases[0].replace(" ", f" {verb} ", 1)  # "2 confirmed" → "2 are confirmed"
    return f"Of {len(rows)} claims, {', '.join(phrases[:-1])} and {phrases[-1]}."


def _in_words(verdict: str) -> str:
    """What a claim is: levels are not distinguishable, claims are undecided."""
    return "undecided" if verdict == UNCLEAR else verdict


def verdict_markdown(study: Study) -> str:
    """The claims as a table of Markdown; empty for a study without claims."""
    rows = verdicts(study)
    if not rows:
        return ""
    lines = ["| claim | here | difference, p after Holm |", "| --- | --- | --- |"]
    for row in rows:
        claim = row.claim.replace("|", "\\|")
        lines.append(f"| {claim} | **{row.verdict}** | {verdict_numbers(row)} |")
    return "\n".join(lines) + "\n\n"
