"""How numbers and metric names read in tables, figures and findings."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from rlhf_lab.core.metrics import metric
from rlhf_lab.statistics.inference import Estimate, format_estimate


def metric_phrase(name: str) -> str:
    """A metric within a sentence: "KL is lower with …", without its unit."""
    return metric(name).in_words


def metric_title(name: str) -> str:
    return metric(name).heading


def judged_title(name: str, has_gold: bool) -> str:
    """The title of a metric; of a win rate also who judges it: gold where it is known, else what was trained on."""
    if name != "win_rate":
        return metric_title(name)
    return f"{metric_title(name)} by {'gold' if has_gold else 'the training reward'}"


def metric_note(name: str) -> str:
    return metric(name).meaning


def digits_for(size: float) -> int:
    """Decimals that show three significant digits of `size`, at most 4."""
    if not math.isfinite(size) or size == 0:
        return 2
    return min(4, max(0, 2 - math.floor(math.log10(abs(size)))))


def _digits_for_error(half: float) -> int:
    """Decimals of an estimate: those that show two digits of its uncertainty, at most 4."""
    return min(4, max(0, 1 - math.floor(math.log10(half))))


SMOKE_CAVEAT = "Smoke size: it ran; its numbers mean nothing."
"""Stands where the limits of a result would, or before its finding."""


def compact(value: Estimate | float) -> str:
    """A number with a sensible count of decimals; an estimate with its interval, when it has one."""
    if not isinstance(value, Estimate):
        return "–" if math.isnan(value) else _typographic_minus(f"{value:.{digits_for(value)}f}")
    if value.n == 0 and not math.isnan(value.mean):  # a bare number: nothing is known about its uncertainty
        return compact(value.mean)
    half = (value.high - value.low) / 2 if value.bounded else 0.0
    digits = _digits_for_error(half) if half > 0 else digits_for(value.mean)
    return _typographic_minus(format_estimate(value, digits=digits))


def with_digits_of(value: float, gap: Estimate) -> str:
    """A number with as many decimals as a difference that it is part of."""
    half = (gap.high - gap.low) / 2 if gap.bounded else 0.0
    digits = _digits_for_error(half) if half > 0 else digits_for(gap.mean)
    return "–" if math.isnan(value) else _typographic_minus(f"{value:.{digits}f}")


def rough(value: float) -> str:
    """A number to two significant digits, never in powers of ten."""
    if not math.isfinite(value) or value == 0:
        return compact(value)
    digits = min(4, max(0, 1 - math.floor(math.log10(abs(value)))))
    return f"{value:.{digits}f}"


def _typographic_minus(text: str) -> str:
    """A typographic minus, and none before a number that rounds to zero."""
    return re.sub(r"-(?=0(\.0*)?( |$))", "", text).replace("-", "−")


def signed(value: Estimate) -> str:
    """A difference: compact, with an explicit plus."""
    return ("+" if value.mean > 0 else "") + compact(value)


def p_text(p: float) -> str:
    if math.isnan(p):
        return "–"
    if p < 0.001:
        return "< 0.001"
    return f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def p_equals(p: float) -> str:
    """A p-value with its name; no-break spaces keep it on one line."""
    text = p_text(p)
    if text.startswith("<"):
        return f"p {text}".replace(" ", "\u00a0")
    return f"p\u00a0=\u00a0{text}"


def markdown_row(cells: Iterable[object]) -> str:
    """A line of a table in Markdown."""
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def duration(seconds: float | None) -> str:
    if seconds is None or not math.isfinite(seconds):
        return "unknown"
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
