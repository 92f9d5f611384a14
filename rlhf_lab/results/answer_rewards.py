"""Answers of runs that train or judge a reward, or that only imitate: read from the run's own numbers."""

from __future__ import annotations

import math

from rlhf_lab.results.rundir import Run
from rlhf_lab.results.wording import compact, metric_title
from rlhf_lab.statistics.inference import Estimate, unpaired_from_intervals

NOT_RESULTS = ("data/", "encoding/", "selection/", "parameters", "checkpoint_mib", "alarm", "monitor/")
"""How metrics begin that describe the data, the model or the monitor, and answer no question."""


def held_out_loss(run: Run) -> str | None:
    """Imitation: what a held-out reply token costs."""
    loss = run.results.get("heldout_nll")
    if loss is None or math.isnan(loss.mean):
        return None
    size = f"{compact(loss)} nats per token, a perplexity of {compact(math.exp(loss.mean))}"
    return f"The model that imitates the chosen replies predicts held-out ones at {size}."


def pair_ranking(run: Run) -> str | None:
    """Reward models: held-out pairs ordered as labelled, next to length alone; then filler and disagreement."""
    sentence = _ranking_clause(run)
    if sentence is None:
        return None
    if (shift := run.results.get("filler_shift")) is not None:
        effect = "does not clearly change"
        if shift.excludes_zero:
            effect = "raises" if shift.mean > 0 else "lowers"
        sentence += f"; filler {effect} its score ({compact(shift)})"
    if (spread := run.results.get("disagreement")) is not None:
        sentence += f"; its members disagree by {compact(spread)} sd per reply"
    return f"{sentence}."


def _ranking_clause(run: Run) -> str | None:
    """How many held-out pairs the reward orders as labelled, and whether length alone does as well; no full stop."""
    accuracy = run.results.get("accuracy")
    baseline = run.results.get("longer_wins")
    if accuracy is None or math.isnan(accuracy.mean):
        return None
    sentence = f"The reward orders {compact(accuracy)} of held-out pairs as labelled"
    if baseline is None:
        return sentence
    return f"{sentence}, {_against_baseline(accuracy, baseline)} “the longer reply wins” ({compact(baseline)})"


def _against_baseline(value: Estimate, baseline: Estimate) -> str:
    """More than, fewer than, or not distinguishable from.

    Both rates are of the same pairs, but only their intervals are stored: the unpaired test errs on the careful side.
    """
    _, p_value = unpaired_from_intervals(baseline, value)
    if math.isnan(p_value) or p_value > 0.05:
        return "which is not distinguishable from"
    size = compact(abs(value.mean - baseline.mean))
    return f"{size} {'more' if value.mean > baseline.mean else 'fewer'} than"


def report_card(run: Run) -> str | None:
    """What a reward is worth: how often right, how much of it length, and whether its confidence can be believed."""
    sentence = _ranking_clause(run)
    if sentence is None:
        return None
    results = run.results
    if (length := results.get("length_correlation/given_gold", results.get("length_correlation"))) is not None:
        condition = " with the truth held fixed" if "length_correlation/given_gold" in results else ""
        sentence += f"; its correlation with length{condition} is {compact(length)}"
    error = results.get("ece")
    perfect = results.get("ece_perfect")  # a calibrated model's error on as many pairs is not 0 either
    if error is not None and perfect is not None:
        verdict = "cannot be believed as it is" if error.mean > perfect.high else "shows no miscalibration"
        sentence += f"; its confidence {verdict} (calibration error {compact(error)}, {compact(perfect)} if perfect)"
    return f"{sentence}."


def benchmark(run: Run) -> str | None:
    """The benchmark's one number, or its first."""
    measured = [name for name, value in run.results.items() if value.n]
    name = "score" if "score" in run.results else next(iter(measured), None)
    if name is None or math.isnan(run.results[name].mean):
        return None
    metric_clause = "" if name == "score" else f" on {metric_title(name)}"
    items = run.results.get("items")
    count = f" over {items.mean:.0f} items" if items is not None else ""
    return f"This reward scores {compact(run.results[name])}{metric_clause} by the benchmark's own rule{count}."


def cross_fitted(run: Run) -> str | None:
    """Margins of models that have not seen the pair, against those of models that have."""
    unseen, seen = run.results.get("accuracy"), run.results.get("accuracy/in_sample")
    if unseen is None:
        return None
    sentence = f"Models that have not seen a pair order {compact(unseen)} of the pairs as labelled"
    if seen is not None:
        sentence += f", models that were trained on it {compact(seen)}"
    if (surest := run.results.get("accuracy/top_half")) is not None:
        sentence += f"; of the half they are surest of, {compact(surest)}"
    return f"{sentence}."


def steps(run: Run) -> str | None:
    """Heads on steps or answers: right on held-out planted solutions, and on all positions."""
    accuracy = run.results.get("accuracy/planted", run.results.get("accuracy"))
    if accuracy is None:
        return None
    judged = "labels"
    if "accuracy/planted" in run.results:
        judged = "held-out solutions with and without a planted mistake"
    sentence = f"The head is right on {compact(accuracy)} of what it judges in {judged}"
    if (ranking := run.results.get("auroc/planted")) is not None:
        sentence += f"; a right position scores above a wrong one with probability {compact(ranking)}"
    return f"{sentence}."


def step_judge(run: Run) -> str | None:
    """Wrong steps behind right answers that are caught, and what choosing by the judge gains over voting."""
    results = run.results
    caught = results.get("caught_5", results.get("planted_caught_5"))
    if caught is None:
        return None
    planted = " planted" if "caught_5" not in results else ""
    sentence = f"The judge catches {compact(caught)} of{planted} wrong steps behind right answers at 5 % false alarms"
    chosen = results.get("best_of_n")
    vote = results.get("majority")
    if chosen is not None and vote is not None:
        sentence += f"; the sample it likes best is right in {compact(chosen)}, a majority vote in {compact(vote)}"
    return f"{sentence}."


def primary_numbers(run: Run) -> str | None:
    """The first estimates of a run whose algorithm has no sentence of its own."""
    last_policy = run.policies[-1].metrics if run.policies else {}
    metrics = (*run.results.items(), *last_policy.items())
    scored = {name: value for name, value in metrics if not math.isnan(value.mean)}
    shown = [name for name in scored if not name.startswith(NOT_RESULTS)][:3]
    if not shown:
        return None
    numbers = ", ".join(f"{metric_title(name)} {compact(scored[name])}" for name in shown)
    return f"Measured: {numbers}."
