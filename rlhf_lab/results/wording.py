"""Format of numbers and metric names in tables, figures and conclusions."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from rlhf_lab.core.metrics import metric
from rlhf_lab.statistics.estimates import Estimate, format_estimate


def metric_phrase(name: str) -> str:
    """Return a metric for use in a sentence, without its unit: "KL is lower with …"."""
    return metric(name).in_words


def metric_title(name: str) -> str:
    """Return the heading of a metric."""
    return metric(name).heading


def judged_title(name: str, has_gold: bool) -> str:
    """Return the title of a metric; a win rate also names the judge: gold if known, else the training reward."""
    if name != "win_rate":
        return metric_title(name)
    return f"{metric_title(name)} by {'gold' if has_gold else 'the training reward'}"


def metric_note(name: str) -> str:
    """Return the meaning of a metric in words."""
    return metric(name).meaning


def _decimals(size: float, significant: int = 3) -> int:
    """Return the number of decimals that shows so many significant digits of `size`, up to 4; 2 for 0 and infinity."""
    if not math.isfinite(size) or size == 0:
        return 2
    # The exponent after rounding: 0.9996 is shown as 1.00, not as 1.000.
    exponent = int(f"{abs(size):.{significant - 1}e}".partition("e")[2])
    return min(4, max(0, significant - 1 - exponent))


SMOKE_CAVEAT = "Smoke size: this only tests that the recipe runs; its numbers mean nothing."
"""Sentence shown with a smoke-size result instead of the usual sentence on the limits of a result."""


def compact(value: Estimate | float) -> str:
    """Return a number with a suitable number of decimals; an estimate with its interval, if it has one."""
    if not isinstance(value, Estimate):
        return "–" if math.isnan(value) else _typographic_minus(f"{value:.{_decimals(value)}f}")
    if value.n == 0 and not math.isnan(value.mean):  # a bare number, whose uncertainty is unknown
        return compact(value.mean)
    return _typographic_minus(format_estimate(value, digits=_estimate_decimals(value)))


def _estimate_decimals(value: Estimate) -> int:
    """Return the number of decimals of an estimate: two digits of its uncertainty, or three of its mean."""
    half = (value.high - value.low) / 2 if value.bounded else 0.0
    return _decimals(half, significant=2) if half > 0 else _decimals(value.mean)


def cell(value: Estimate | None) -> str:
    """Return an estimate as a table cell; "–" if there is none."""
    return "–" if value is None else compact(value)


def usual_size(values: Iterable[Estimate | None]) -> tuple[int, int] | None:
    """Return the most frequent (n, clusters) of a table's estimates, the first one if tied; None without any."""
    sizes = Counter((value.n, value.clusters) for value in values if value and value.n)
    return sizes.most_common(1)[0][0] if sizes else None


def with_own_size(text: str, value: Estimate, usual: tuple[int, int] | None) -> str:
    """Append n and clusters to the text of an estimate if they differ from the usual ones of its table."""
    if not value.n or (value.n, value.clusters) == usual:
        return text
    return f"{text} ({value.n} / {value.clusters})"


def with_digits_of(value: float, gap: Estimate) -> str:
    """Return a number with as many decimals as a difference that it belongs to."""
    return "–" if math.isnan(value) else _typographic_minus(f"{value:.{_estimate_decimals(gap)}f}")


def two_digits(value: float) -> str:
    """Return a number with two significant digits, never in powers of ten."""
    if not math.isfinite(value) or value == 0:
        return compact(value)
    return f"{value:.{_decimals(value, significant=2)}f}"


def _typographic_minus(text: str) -> str:
    """Use a typographic minus, and none before a number that rounds to zero."""
    return re.sub(r"-(?=0(\.0*)?( |$))", "", text).replace("-", "−")


def signed(value: Estimate) -> str:
    """Return a difference in compact form, with an explicit plus."""
    return ("+" if value.mean > 0 else "") + compact(value)


def p_text(p: float) -> str:
    """Return a p-value as text; "–" for NaN."""
    if math.isnan(p):
        return "–"
    if p < 0.001:
        return "< 0.001"
    return f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def p_equals(p: float) -> str:
    """Return a p-value with its name; no-break spaces keep it on one line."""
    text = p_text(p)
    if text.startswith("<"):
        return f"p {text}".replace(" ", "\u00a0")
    return f"p\u00a0=\u00a0{text}"


def markdown_table(headings: Sequence[object], rows: Iterable[Iterable[object]], align: str) -> str:
    """Return a Markdown table without a final newline; `align` has l (left) or r (right) for each column."""
    rule = ["---" if side == "l" else "---:" for side in align]
    lines = [" | ".join(str(cell).replace("|", "\\|") for cell in row) for row in (headings, rule, *rows)]
    return "\n".join(f"| {line} |" for line in lines)


def markdown_section(
    title: str, note: str, headings: Sequence[object], rows: Iterable[Iterable[object]], align: str
) -> str:
    """Return a section of a Markdown page with a table; empty without rows."""
    shown = list(rows)
    return f"\n## {title}\n\n{note}\n\n{markdown_table(headings, shown, align)}\n" if shown else ""


def duration(seconds: float | None) -> str:
    """Return a duration in the largest suitable unit; "unknown" for None."""
    if seconds is None or not math.isfinite(seconds):
        return "unknown"
    # The limits keep two or three significant digits.
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
