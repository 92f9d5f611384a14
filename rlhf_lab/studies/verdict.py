"""Verdicts on the claims of a study: confirmed, not confirmed, or not distinguishable.

A claim is one comparison of two levels that the recipe states before the study runs. All claims that are registered
together are one family, including claims about a panel and claims of equivalence: Holm's adjustment covers all of them.
Seeds that were looked at before a claim was registered do not count for it (`registration.py`).
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy import stats

from rlhf_lab.config.overrides import level_name
from rlhf_lab.core.metrics import scale_of
from rlhf_lab.results.wording import (
    compact,
    markdown_table,
    metric_phrase,
    p_equals,
    signed,
    two_digits,
    with_digits_of,
)
from rlhf_lab.statistics.inference import Comparison, at_level, equivalence, repetitions_to_decide
from rlhf_lab.statistics.sequential import FIRST, LAST
from rlhf_lab.studies.claims import (
    AFTER_LOOK,
    ALPHA,
    CONFIRMED,
    NOT_SWEPT,
    REFUTED,
    SMALLER,
    UNCLEAR,
    UNTESTED,
    VERDICTS,
    compared_levels,
    family_holm,
    family_of,
    missing_levels,
    panel_of_claim,
    registered,
    seen_seeds,
    withdrawn_in_family,
)
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.pairing import paired_jobs
from rlhf_lab.studies.replicates import OUTCOMES, level_difference, scaled_difference, shared_bound, within_rate_bounds
from rlhf_lab.studies.replication import list_in_words, seed_words
from rlhf_lab.studies.sequential import MAX_FAILED, ClaimState, claim_states

CLAIM_HEADINGS = ("claim", "here", "difference, p after Holm", "detectable")
FRESH_SEEDS = 12
"""Number of further seeds that the page of a stopped study proposes for a claim that has none left."""


@dataclass(frozen=True)
class ClaimVerdict:
    """One claim with its verdict.

    Attributes:
        claim: the claim in words, e.g. "verbose rate is lower with λ 0.5 than with λ 0".
        verdict: `confirmed`, `not confirmed` (the opposite is found, or a difference although equivalence was claimed),
            `smaller than published` (the effect in the published direction is smaller, perhaps none),
            `not distinguishable`, `not tested` (too few shared seeds), `written after the look` (all seeds had been
            seen when the claim was registered) or `not in this sweep` (the command line narrowed the sweep, and no job
            has the level that the claim compares).
        sentence: the verdict in words, with the numbers behind it.
        comparison: level − versus, paired by seed; None if not tested. If the study stops when its claims are decided,
            the interval is the sequential one.
        p_holm: p-value adjusted over the claims that were registered together; NaN if not tested.
        seeds: number of seeds that would decide an undecided claim if difference and standard deviation stay as
            observed; None if unknown, or above the search limit.
        notes: what else is known of the claim, as the end of a sentence: seeds that do not count, a metric at its
            ceiling or floor, and in a study that stops when decided the ratio, the number of seeds and limits of the
            test.
        detectable: difference that the test of the claim would have found, in words; empty for equivalence and for
            studies that stop when decided, whose power depends on the number of seeds to come.
    """

    claim: str
    verdict: str
    sentence: str
    comparison: Comparison | None = None
    p_holm: float = math.nan
    seeds: int | None = None
    notes: str = ""
    detectable: str = ""


def verdicts(study: Study) -> list[ClaimVerdict]:
    if study.log is not None:
        states = claim_states(study)
        return [_sequential_verdict(study, claim, state) for claim, state in zip(study.predicts, states, strict=True)]
    claims_compared = [(claim, _compare_levels(study, claim)) for claim in study.predicts]
    p_values = {}
    for index, (claim, comparison) in enumerate(claims_compared):
        p_values[index] = min(claim_p(claim, comparison), published_p(study, claim, comparison))
    adjusted = family_holm(study, p_values)
    rows = []
    for index, (claim, comparison) in enumerate(claims_compared):
        own_p = family_holm(study, {**p_values, index: claim_p(claim, comparison)})[index]
        rows.append(_judge_claim(study, claim, comparison, adjusted[index], own_p))
    return rows


def _judge_claim(
    study: Study, claim: Mapping[str, Any], comparison: Comparison | None, p_holm: float, own_p: float
) -> ClaimVerdict:
    """Decide one claim and write its sentence.

    `own_p` is its p-value after Holm, if the test against its published effect is left out.
    """
    words = claim_in_words(study, claim)
    if missing := missing_levels(study, claim):
        return ClaimVerdict(words, NOT_SWEPT, _not_swept_sentence(missing, words))
    if comparison is None or math.isnan(p_holm):
        if seen_seeds(study, claim):
            return _written_after_look(study, claim, words)
        sentence = f"Not tested, because fewer than two seeds completed and were scored on both sides: {words}."
        return ClaimVerdict(words, UNTESTED, sentence, comparison)
    # If the claim's own test does not decide it, only the test of its published effect can have.
    is_smaller = p_holm <= ALPHA < own_p
    verdict = SMALLER if is_smaller else decide(claim, comparison, p_holm)
    seeds, needed = None, ""
    if verdict == UNCLEAR:
        margin = claim["margin"] if claim["direction"] == "same" else None
        seeds = repetitions_to_decide(comparison, margin=margin, alpha=claim_level(study, claim))
        count = f"about {seeds} seeds" if seeds is not None else "no number of seeds up to 200"
        needed = f"; {count} would decide it if the difference stays as observed"
    numbers = _means_and_difference(study, claim, comparison, p_holm)
    notes = f"{_bound_note(study, claim)}{excluded_seeds(study, claim)}"
    sentence = _claim_sentence(study, claim, verdict, f"{numbers}{needed}{notes}")
    detectable = _detectable(study, claim, comparison)
    return ClaimVerdict(words, verdict, sentence, comparison, p_holm, seeds, notes, detectable)


def claim_level(study: Study, claim: Mapping[str, Any]) -> float:
    """Return the strictest level at which Holm's adjustment can decide a claim: 5 % over the size of its family."""
    family = [index for index in family_of(study, claim) if not missing_levels(study, study.predicts[index])]
    return ALPHA / (len(family) + withdrawn_in_family(study, claim))


def _detectable(study: Study, claim: Mapping[str, Any], comparison: Comparison) -> str:
    """Return the minimum detectable effect at the level of a claim, with its bounds if few seeds leave it uncertain."""
    if claim["direction"] == "same":
        return ""
    comparison = at_level(comparison, claim_level(study, claim))
    if OUTCOMES.match(claim["metric"]):
        comparison = within_rate_bounds(comparison)
    effect = comparison.minimum_detectable_effect
    if math.isinf(effect):
        return "nothing"
    if not comparison.freedom < 30 or effect == 0:  # with many repetitions the bounds are close to the value
        return compact(effect)
    low, high = comparison.detectable_range()
    return f"{two_digits(effect)} ({two_digits(low)}–{two_digits(high)})"


def _bound_note(study: Study, claim: Mapping[str, Any]) -> str:
    panel = panel_of_claim(study, claim) or study
    bound = shared_bound(panel, claim["metric"], *compared_levels(study, claim))
    return f"; both are at the {bound} of the metric, which cannot show a difference there" if bound else ""


def _written_after_look(study: Study, claim: Mapping[str, Any], words: str) -> ClaimVerdict:
    notes = f"other seeds test it: `{setting_for_other_seeds(study)}`"
    return ClaimVerdict(words, AFTER_LOOK, after_look_sentence(study, claim, words), notes=notes)


def after_look_sentence(study: Study, claim: Mapping[str, Any], words: str) -> str:
    """Return a sentence on a claim that was registered after all seeds with results had been seen."""
    entry = registered(study, claim)
    assert entry is not None  # only registered claims have seen seeds
    setting = setting_for_other_seeds(study)
    key = setting.partition("=")[0]
    command = re.sub(rf"\s\+*{re.escape(key)}=\S+", "", study.command) + f" {setting}"
    return (
        f"Written after the look: {words}. It was registered on {entry.date[:10]}, after the results of "
        f"{seed_words(entry.seen)} had been seen, and no other seeds have enough results; "
        f"`{command}` tests it on other seeds."
    )


def setting_for_other_seeds(study: Study) -> str:
    """Return the override with which a study runs seeds that were not seen."""
    if study.log is not None:
        return f"study.max_seeds={min(LAST, len(study.log.seeds) + FRESH_SEEDS)}"
    first = max(study.registration.seen) + 1
    count = max(FIRST, len(study.frame["seed"].unique()) if "seed" in study.frame else 0)
    return f"seed={','.join(str(seed) for seed in range(first, first + count))}"


def excluded_seeds(study: Study, claim: Mapping[str, Any]) -> str:
    """Return which seeds of the study do not count for a claim, as the end of a sentence; empty if all of them do."""
    entry = registered(study, claim)
    excluded = set(entry.seen) & set(study.frame.get("seed", ())) if entry else ()
    if entry is None or not excluded:
        return ""
    seeds = seed_words(sorted(excluded))
    return f"; without {seeds}, which had been seen when the claim was registered on {entry.date[:10]}"


def _sequential_verdict(study: Study, claim: Mapping[str, Any], state: ClaimState) -> ClaimVerdict:
    """Write the sentence of a claim of a study that stops when its claims are decided."""
    words = claim_in_words(study, claim)
    if study.log is not None and study.log.looks:
        # An interrupted seed may have some of its jobs; the look did not see them.
        looked_at = study.log.seeds[: study.log.looks[-1].seeds]
        study = dataclasses.replace(study, frame=study.frame[study.frame["seed"].isin(looked_at)])
    if state.verdict == NOT_SWEPT:
        return ClaimVerdict(words, NOT_SWEPT, _not_swept_sentence(missing_levels(study, claim), words))
    if state.comparison is None:
        # An unfinished study has seeds left that were not seen.
        is_stopped = study.log is not None and bool(study.log.stopped)
        if seen_seeds(study, claim) and is_stopped and state.decided_at is None:
            return _written_after_look(study, claim, words)
        reason = f"fewer than three seeds completed and were scored on both sides{excluded_seeds(study, claim)}"
        return ClaimVerdict(words, state.verdict, f"Not tested, because {reason}: {words}.", p_holm=state.p_holm)
    notes = f"{sequential_notes(claim, state)}{_bound_note(study, claim)}{excluded_seeds(study, claim)}"
    numbers = _means_and_difference(study, claim, state.comparison, state.p_holm)
    sentence = _claim_sentence(study, claim, state.verdict, f"{numbers}{notes}")
    return ClaimVerdict(words, state.verdict, sentence, state.comparison, state.p_holm, state.seeds, notes)


def sequential_notes(claim: Mapping[str, Any], state: ClaimState) -> str:
    """Return what else is known of a claim after a look, as the end of a sentence."""
    notes = []
    if state.ratio is not None:
        kind = "ratio" if scale_of(claim["metric"]) == "log" else "odds ratio"
        notes.append(f"{kind} {compact(state.ratio)}")
    if state.smaller:
        notes.append(f"smaller than the published {published_in_words(claim)}")
    if state.decided_at is not None:
        notes.append(f"decided at {state.decided_at} seeds")
    elif state.failed > MAX_FAILED:
        notes.append(f"no verdict, because {state.failed:.0%} of its seeds have no result on both sides")
    elif state.seeds is not None:
        notes.append(f"about {state.seeds} seeds would decide it if the difference stays as observed")
    if state.skewed:
        notes.append("the differences are skewed, so the test may be wrong more often than it says")
    return "".join(f"; {note}" for note in notes)


def _not_swept_sentence(missing: Sequence[str], words: str) -> str:
    return f"Not in this sweep, because no job has {list_in_words(missing)}: {words}."


def _compare_levels(study: Study, claim: Mapping[str, Any]) -> Comparison | None:
    """Return the difference of a claim's levels (`level` − `versus`); None if fewer than two seeds have both."""
    panel = panel_of_claim(study, claim)
    if panel is None:
        return None
    comparison = level_difference(panel, claim["metric"], *compared_levels(study, claim))
    return None if comparison is None or comparison.difference.clusters < 2 else comparison


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


def published_p(study: Study, claim: Mapping[str, Any], comparison: Comparison | None) -> float:
    """Return the one-sided p-value of "the effect is at least the published one"; inf without a published effect.

    The published effect is a difference in the metric's unit; for a metric on a log scale it is a ratio.
    """
    published = claim.get("published")
    if published is None or comparison is None:
        return math.inf
    panel = panel_of_claim(study, claim)
    if panel is not None and scale_of(claim["metric"]) == "log":
        comparison = scaled_difference(panel, claim["metric"], *compared_levels(study, claim))
        published = math.log(published)
    if comparison is None or not comparison.standard_error > 0:
        return math.inf
    # Positive if the difference falls short of the published one, whichever sign that has.
    distance = math.copysign(1, published) * (published - comparison.difference.mean)
    return float(stats.t.sf(distance / comparison.standard_error, comparison.freedom))


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
    level, versus = map(study.label, compared_levels(study, claim))
    metric = metric_phrase(claim["metric"])
    panel = _panel_in_words(study, claim)
    if claim["direction"] == "same":
        return f"{metric} with {level} is within {claim['margin']:g} of that with {versus}{panel}"
    return f"{metric} is {claim['direction']} with {level} than with {versus}{panel}"


def _panel_in_words(study: Study, claim: Mapping[str, Any]) -> str:
    return "" if claim.get("by") is None else f" ({study.panel_label(level_name(claim['by']))})"


def published_in_words(claim: Mapping[str, Any]) -> str:
    """Return the published effect of a claim: a signed difference, or a ratio."""
    if scale_of(claim["metric"]) == "log":
        return f"ratio of {claim['published']:g}"
    return f"{claim['published']:+g}".replace("-", "−")


def _claim_sentence(study: Study, claim: Mapping[str, Any], verdict: str, numbers: str) -> str:
    """Return a claim with its verdict and numbers, as a sentence.

    For example "Undecided: gold reward, λ = 0.5 against λ = 0: −0.23 against −0.24 (difference +0.01 ±0.54, p = 1.00)".
    """
    metric = metric_phrase(claim["metric"])
    claimed = claim["direction"]
    expected = f"equal within {claim['margin']:g}" if claimed == "same" else claimed
    if verdict == CONFIRMED:
        statement = f"Confirmed: {metric} is {expected}"
    elif verdict == REFUTED:
        opposite = {"same": "the difference is larger", "higher": "it is lower", "lower": "it is higher"}[claimed]
        statement = f"Not confirmed: {metric} was expected to be {expected}, but {opposite}"
    elif verdict == SMALLER:
        statement = f"Smaller than published ({published_in_words(claim)}): {metric}"
    else:
        statement = f"Undecided: {metric}"
        if claimed == "same":
            statement += f", {expected}"
    level, versus = map(study.label, compared_levels(study, claim))
    return f"{statement}, {level} against {versus}{_panel_in_words(study, claim)}: {numbers}."


def _means_and_difference(study: Study, claim: Mapping[str, Any], comparison: Comparison, p_holm: float) -> str:
    panel = panel_of_claim(study, claim) or study
    pairs = paired_jobs(panel, claim["metric"], *compared_levels(study, claim)).dropna()
    gap = comparison.difference
    level_mean = with_digits_of(float(pairs["a"].mean()), gap)
    versus_mean = with_digits_of(float(pairs["b"].mean()), gap)
    return f"{level_mean} against {versus_mean} (difference {signed(gap)}, {p_equals(p_holm)})"


def verdict_numbers(verdict: ClaimVerdict) -> str:
    if verdict.verdict == NOT_SWEPT:
        return "no job with this level"
    if verdict.verdict == AFTER_LOOK:
        return verdict.notes
    if verdict.comparison is None:
        return "too few shared seeds"
    return f"{signed(verdict.comparison.difference)}, {p_equals(verdict.p_holm)}{verdict.notes}"


def verdict_summary(names: Sequence[str]) -> str:
    """Return how many claims hold, given the verdict of each, in one sentence; empty without claims."""
    if not names:
        return ""
    counts = {name: names.count(name) for name in VERDICTS}
    if len(names) in counts.values():
        subject = "The claim is" if len(names) == 1 else f"All {len(names)} claims are"
        return f"{subject} {_in_words(names[0])}."
    phrases = [f"{count} {_in_words(name)}" for name, count in counts.items() if count]
    verb = "is" if phrases[0].startswith("1 ") else "are"
    phrases[0] = phrases[0].replace(" ", f" {verb} ", 1)  # "2 confirmed" → "2 are confirmed"
    return f"Of {len(names)} claims, {list_in_words(phrases)}."


def _in_words(verdict: str) -> str:
    return {UNCLEAR: "undecided", NOT_SWEPT: "about levels outside this sweep"}.get(verdict, verdict)


def verdict_markdown(study: Study) -> str:
    rows = verdicts(study)
    if not rows:
        return ""
    cells = [(row.claim, f"**{row.verdict}**", verdict_numbers(row), row.detectable) for row in rows]
    return markdown_table(CLAIM_HEADINGS, cells, "llll") + "\n\n"
