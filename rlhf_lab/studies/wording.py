"""How numbers and metric names read in tables, figures and findings."""

from __future__ import annotations

import math
import re

from rlhf_lab.analysis.statistics import Estimate, format_estimate

TITLES = {
    "gold": ("gold reward", "the true reward of the simulated world, per response"),
    "proxy": ("proxy reward", "the reward that training maximises, per response"),
    "gold_sd": ("gold sd", "standard deviation of the gold reward across responses"),
    "proxy_sd": ("proxy sd", "standard deviation of the proxy reward across responses"),
    "win_rate": ("win rate", "share of responses preferred over those of the starting policy"),
    "kl": ("KL, nats", "divergence from the reference policy, nats per response"),
    "reward_per_nat": ("proxy per nat", "proxy reward gained over the starting policy per nat of KL"),
    "tokens": ("tokens", "response length"),
    "verbose": ("verbose", "share of responses padded with filler"),
    "garble": ("garbled", "share of responses that are not language"),
    "correct": ("accuracy of samples", "share of sampled responses whose final answer is right"),
    "correct_greedy": ("greedy accuracy", "share of prompts whose most likely response has the right answer"),
    "peak_gib": ("peak memory, GiB", "most memory the stage held: resident set on a CPU, allocated on a GPU"),
    "generated_tokens": ("generated tokens", "response tokens sampled for training"),
    "wasted_groups": ("wasted groups", "share of groups whose responses all have the same score"),
    "ended": ("ended", "share of responses that end by themselves within the token limit"),
    "chosen_logp_drift": ("chosen log-prob drift, nats", "change of the log-probability of preferred replies"),
    "seconds": ("training time, s", "wall time of the stage that made the policy, its own evaluation included"),
    "ranking_accuracy": ("ranking accuracy", "share of held-out pairs whose chosen reply is more likely"),
    "accuracy": ("accuracy", "share of held-out pairs ordered as labelled"),
    "implicit_accuracy": ("implicit accuracy", "share of held-out pairs that the implicit reward orders as labelled"),
    "parameters/trained": ("trained parameters", "parameters that training changes"),
    "checkpoint_mib": ("checkpoint, MiB", "what restores the policy: all its weights, or the adapter on its base"),
    "staleness": ("staleness", "rounds between sampling a pair and training on it"),
}


def metric_title(name: str) -> str:
    return TITLES[name][0] if name in TITLES else name.replace("_", " ")


def metric_note(name: str) -> str:
    return TITLES[name][1] if name in TITLES else ""


def digits_for(size: float) -> int:
    """Decimals that show three significant digits of `size`, at most 4."""
    if not math.isfinite(size) or size == 0:
        return 2
    return min(4, max(0, 2 - math.floor(math.log10(abs(size)))))


def _digits_for_error(half: float) -> int:
    """Decimals of an estimate: those that show two digits of its uncertainty, at most 4."""
    return min(4, max(0, 1 - math.floor(math.log10(half))))


def compact(value: Estimate | float) -> str:
    """A number with a sensible count of decimals; an estimate with its interval, when it has one."""
    if not isinstance(value, Estimate):
        return "–" if math.isnan(value) else _minus(f"{value:.{digits_for(value)}f}")
    if value.n == 0 and not math.isnan(value.mean):  # a bare number: nothing is known about its uncertainty
        return compact(value.mean)
    half = (value.high - value.low) / 2 if value.bounded else 0.0
    digits = _digits_for_error(half) if half > 0 else digits_for(value.mean)
    return _minus(format_estimate(value, digits=digits))


def _minus(text: str) -> str:
    """A typographic minus, and none before a zero."""
    return re.sub(r"-(?=0(\.0*)?( |$))", "", text).replace("-", "−")


def signed(value: Estimate) -> str:
    """A difference: compact, with an explicit plus."""
    return ("+" if value.mean > 0 else "") + compact(value)


def p_text(p: float) -> str:
    if math.isnan(p):
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def duration(seconds: float | None) -> str:
    if seconds is None or not math.isfinite(seconds):
        return "unknown"
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
