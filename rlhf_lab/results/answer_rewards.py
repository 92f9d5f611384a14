"""Answers of runs that train or evaluate a reward, or that only imitate, based on the run's own numbers."""

from __future__ import annotations

import math

from rlhf_lab.results.rundir import StoredRun
from rlhf_lab.results.wording import compact, metric_title
from rlhf_lab.statistics.estimates import largest_first
from rlhf_lab.statistics.inference import Estimate, unpaired_from_intervals

NOT_RESULTS = ("data/", "encoding/", "selection/", "parameters", "checkpoint_mib", "alarm", "monitor/")
"""Prefixes of metrics that describe the data, the model or the monitor, and answer no question."""


def heldout_loss(run: StoredRun) -> str | None:
    """Return the held-out loss per token of imitation, and its perplexity."""
    loss = run.results.get("heldout_nll")
    if loss is None or math.isnan(loss.mean):
        return None
    size = f"{compact(loss)} nats per token, a perplexity of {compact(math.exp(loss.mean))}"
    return f"The model that imitates the chosen responses predicts held-out ones at {size}."


def pair_ranking(run: StoredRun) -> str | None:
    """Return the accuracy of a reward model on held-out pairs, next to that of preferring the longer response.

    The effect of filler and the disagreement of members follow if they were measured.
    """
    sentence = _ranking_clause(run)
    if sentence is None:
        return None
    if (shift := run.results.get("filler_shift")) is not None:
        effect = "raises" if shift.mean > 0 else "lowers"
        effect = effect if shift.excludes_zero else "does not clearly change"
        sentence += f"; filler {effect} its score ({compact(shift)})"
    if (spread := run.results.get("disagreement")) is not None:
        sentence += f"; its members disagree by {compact(spread)} sd per response"
    return f"{sentence}."


def _ranking_clause(run: StoredRun) -> str | None:
    """Return the accuracy on held-out pairs and whether length alone does as well, without a full stop."""
    accuracy, baseline = run.results.get("accuracy"), run.results.get("longer_wins")
    if accuracy is None or math.isnan(accuracy.mean):
        return None
    sentence = f"The reward orders {compact(accuracy)} of held-out pairs as labelled"
    if baseline is None:
        return sentence
    return f"{sentence}, {_against_baseline(accuracy, baseline)} “the longer response wins” ({compact(baseline)})"


def _against_baseline(value: Estimate, baseline: Estimate) -> str:
    """Return "… more than", "… fewer than", or "which is not distinguishable from", for an accuracy and its baseline.

    Both are rates over the same pairs, but only their intervals are stored. The unpaired test is conservative.
    """
    _, p_value = unpaired_from_intervals(baseline, value)
    if math.isnan(p_value) or p_value > 0.05:
        return "which is not distinguishable from"
    size = compact(abs(value.mean - baseline.mean))
    return f"{size} {'more' if value.mean > baseline.mean else 'fewer'} than"


def report_card(run: StoredRun) -> str | None:
    """Return the accuracy of a reward, its correlation with length, and whether its confidence is calibrated."""
    sentence = _ranking_clause(run)
    if sentence is None:
        return None
    results = run.results
    controlled = results.get("length_correlation/given_gold")
    length = results.get("length_correlation") if controlled is None else controlled
    if length is not None:
        condition = "" if controlled is None else " at equal gold reward"
        sentence += f"; its correlation with length{condition} is {compact(length)}"
    # With a finite number of pairs, the error of a calibrated model is not 0 either.
    error, perfect = results.get("ece"), results.get("ece_perfect")
    if error is not None and perfect is not None:
        verdict = "is miscalibrated" if error.mean > perfect.high else "shows no miscalibration"
        sentence += f"; its confidence {verdict} (calibration error {compact(error)}, {compact(perfect)} if perfect)"
    return f"{sentence}."


def probed(run: StoredRun) -> str | None:
    """Return how well gold can be read from the reward model and the policy before it, and what the score pays for."""
    effects = _with_prefix(run, "effect/")
    represented, before = run.results.get("probe/gold"), run.results.get("probe_before/gold")
    clauses = []
    if represented is not None and before is not None:
        clauses.append(
            f"A linear probe reads gold from the reward model with correlation {compact(represented)}, and from the "
            f"policy that it was trained from with {compact(before)}"
        )
    if (gold := effects.pop("gold", None)) is not None:
        clauses.append(f"the score rises by {compact(gold)} standard deviations per standard deviation of gold")
    clear = [name for name, effect in effects.items() if effect.excludes_zero]
    largest = max(clear, key=lambda name: abs(effects[name].mean), default=None)
    if largest is not None:
        condition = " at equal gold" if gold is not None else ""
        clauses.append(f"the attribute with the largest effect{condition} is {largest} ({compact(effects[largest])})")
    return "; ".join(clauses) + "." if clauses else None


def _with_prefix(run: StoredRun, prefix: str) -> dict[str, Estimate]:
    return {name.removeprefix(prefix): value for name, value in run.results.items() if name.startswith(prefix)}


def attacked(run: StoredRun) -> str | None:
    """Return what the search gained, what gold did, and the fixed exploit that gains most."""
    gain, gold = run.results.get("attack_gain"), run.results.get("attack_gold")
    if gain is None:
        return None
    if math.isnan(gain.mean):
        return "No gain of the search is known; `card.md` says why."
    # the found responses are scored anew, so the gain of a noisy reward may vanish
    raises = "raises the reward by" if gain.low > 0 else "does not clearly raise the reward:"
    sentence = f"The search {raises} {compact(gain)} standard deviations of ordinary responses"
    if gold is not None:
        direction = "rises" if gold.mean > 0 else "falls"
        if not gold.excludes_zero:
            sentence += f", and gold does not clearly change ({compact(gold)})"
        else:
            sentence += f", while gold {direction} by {compact(abs(gold.mean))}"
    exploits = _with_prefix(run, "exploit_gain/")
    exploits.pop("best_of_n", None)  # samples of the policy are no exploit by construction
    best = next(iter(largest_first(exploits)), None)
    if best is not None and not math.isnan(exploits[best].mean):
        sentence += f"; of the fixed exploits, {best.replace('_', ' ')} gains most ({compact(exploits[best])})"
    return f"{sentence}."


def benchmark(run: StoredRun) -> str | None:
    """Return the benchmark's single number, or its first one."""
    measured = [name for name, value in run.results.items() if value.n]
    name = "score" if "score" in run.results else next(iter(measured), None)
    if name is None or math.isnan(run.results[name].mean):
        return None
    metric_clause = "" if name == "score" else f" on {metric_title(name)}"
    items = run.results.get("items")
    count = f" over {items.mean:.0f} items" if items is not None else ""
    return f"This reward scores {compact(run.results[name])}{metric_clause} by the benchmark's own rule{count}."


def cross_fitted(run: StoredRun) -> str | None:
    """Return the accuracy of models that were not trained on the pair, and of models that were."""
    unseen, seen = run.results.get("accuracy"), run.results.get("accuracy/in_sample")
    if unseen is None:
        return None
    sentence = f"Models that were not trained on a pair order {compact(unseen)} of the pairs as labelled"
    if seen is not None:
        sentence += f", models that were trained on it {compact(seen)}"
    if (surest := run.results.get("accuracy/top_half")) is not None:
        sentence += f"; of the half with the highest confidence, {compact(surest)}"
    return f"{sentence}."


def steps(run: StoredRun) -> str | None:
    """Return the accuracy of a head that judges steps or answers, and how well it ranks right and wrong positions.

    Both are measured on held-out solutions with and without a planted mistake, if there are any.
    """
    accuracy = run.results.get("accuracy/planted", run.results.get("accuracy"))
    if accuracy is None:
        return None
    planted = "accuracy/planted" in run.results
    judged = "held-out solutions with and without a planted mistake" if planted else "labels"
    sentence = f"The head is right on {compact(accuracy)} of what it judges in {judged}"
    if (ranking := run.results.get("auroc/planted")) is not None:
        sentence += f"; a right position scores above a wrong one with probability {compact(ranking)}"
    return f"{sentence}."


def step_judge(run: StoredRun) -> str | None:
    """Return how many wrong steps behind right answers are caught, and what the judge gains over a majority vote."""
    results = run.results
    caught = results.get("caught_5", results.get("planted_caught_5"))
    if caught is None:
        return None
    # Without labels of real mistakes, only planted ones are known.
    planted = " planted" if "caught_5" not in results else ""
    sentence = f"The judge catches {compact(caught)} of{planted} wrong steps behind right answers at 5 % false alarms"
    chosen, vote = results.get("best_of_n"), results.get("majority")
    if chosen is not None and vote is not None:
        sentence += f"; its highest-scoring sample is right in {compact(chosen)}, a majority vote in {compact(vote)}"
    return f"{sentence}."


def primary_numbers(run: StoredRun) -> str | None:
    """Return the first estimates of a run whose algorithm has no answer of its own."""
    last_policy = run.policies[-1].metrics if run.policies else {}
    metrics = (*run.results.items(), *last_policy.items())
    scored = {name: value for name, value in metrics if not math.isnan(value.mean)}
    shown = [name for name in scored if not name.startswith(NOT_RESULTS)][:3]
    if not shown:
        return None
    numbers = ", ".join(f"{metric_title(name)} {compact(scored[name])}" for name in shown)
    return f"Measured: {numbers}."
