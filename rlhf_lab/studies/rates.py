"""Claims of a study that the rate of an outcome over its runs lies above or below a number.

The outcome is a metric that is 0 or 1 in every run, such as `in_time/warning` or `false/warning`; runs without a value
do not count, and their number is printed. All levels are taken together. Runs of the same seed share data and upstream
stages, so the Wilson interval is clustered by seed (`statistics.inference.clustered_rate`). Its level is 95 % after
Bonferroni's adjustment for the number of rates that the study claims or has withdrawn after a look. A claim is decided
if the interval excludes the number. It is registered when the study first runs, and seeds that were seen before do not
count for it (`registration.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_lab.results.wording import compact, markdown_section, metric_phrase
from rlhf_lab.statistics.estimates import Estimate
from rlhf_lab.statistics.inference import clustered_rate
from rlhf_lab.studies.claims import AFTER_LOOK, ALPHA, CONFIRMED, REFUTED, UNCLEAR, UNTESTED, seen_seeds, without_seeds
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.pairing import seeds
from rlhf_lab.studies.registration import kind_of
from rlhf_lab.studies.verdict import after_look_sentence, excluded_seeds, setting_for_other_seeds

HEADINGS = ("claim", "here", "runs that count", "runs that do not", "rate")
NOTE = (
    "Rates over all runs that have the outcome, with intervals clustered by seed and adjusted for the number of claims "
    "in this table and of those withdrawn after a look. A claim is decided if its interval excludes the stated number."
)


@dataclass(frozen=True)
class RateVerdict:
    """A claim on a rate in words, its verdict, a sentence with the numbers, and the rate with its adjusted interval."""

    claim: str
    verdict: str
    sentence: str
    rate: Estimate


def rates_of(study: Study) -> list[RateVerdict]:
    return [_judge(study, claim) for claim in study.rates]


def _judge(study: Study, claim: Mapping[str, Any]) -> RateVerdict:
    jobs = without_seeds(study, seen_seeds(study, claim)).completed
    # A rate that was withdrawn after a look still counts, or dropping hopeless ones would make the others easier.
    withdrawn = sum(kind_of(entry.meaning) == "rate" for entry in study.registration.withdrawn)
    level = 1 - ALPHA / (len(study.rates) + withdrawn)
    rate = clustered_rate(jobs[claim["metric"]].to_numpy(dtype=float), seeds(jobs), level=level)
    words = rate_in_words(claim)
    if rate.clusters < 2:
        if seen_seeds(study, claim):
            return RateVerdict(words, AFTER_LOOK, after_look_sentence(study, claim, words), rate)
        sentence = f"Not tested, because fewer than two seeds have runs with this outcome: {words}."
        return RateVerdict(words, UNTESTED, sentence, rate)
    verdict = decide_rate(claim, rate)
    start = {CONFIRMED: "Confirmed", REFUTED: "Not confirmed", UNCLEAR: "Undecided"}[verdict]
    uncounted = f", {rate.unscored} runs do not count" if rate.unscored else ""
    numbers = f"{compact(rate)} over {rate.n} runs of {rate.clusters} seeds{uncounted}"
    return RateVerdict(words, verdict, f"{start}: {words}: {numbers}{excluded_seeds(study, claim)}.", rate)


def decide_rate(claim: Mapping[str, Any], rate: Estimate) -> str:
    """Return the verdict on a claim: confirmed or not if the interval excludes its number, else undecided."""
    is_above, is_below = rate.low > claim["than"], rate.high < claim["than"]
    if not (is_above or is_below):
        return UNCLEAR
    return CONFIRMED if is_above == (claim["direction"] == "higher") else REFUTED


def rate_in_words(claim: Mapping[str, Any]) -> str:
    """Return a claim in words, for example "false warnings: lower than 20% of runs"."""
    return f"{metric_phrase(claim['metric'])}: {claim['direction']} than {100 * claim['than']:g}% of runs"


def rate_cells(study: Study, verdict: RateVerdict) -> tuple[str, ...]:
    if verdict.verdict == AFTER_LOOK:
        return (verdict.claim, verdict.verdict, "0", "", f"other seeds test it: `{setting_for_other_seeds(study)}`")
    rate = verdict.rate
    return (verdict.claim, verdict.verdict, str(rate.n), str(rate.unscored), compact(rate))


def rate_markdown(study: Study) -> str:
    rows = [rate_cells(study, verdict) for verdict in rates_of(study)]
    return markdown_section("Rates over runs", NOTE, HEADINGS, rows, "llrrr")
