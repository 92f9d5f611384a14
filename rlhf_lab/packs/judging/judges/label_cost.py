"""Cost of a label: what a run has paid its judge, and the same divided by the labels that it got for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlhf_lab.packs.judging.judges.requests import Completer

if TYPE_CHECKING:  # this module imports torch, which the command `judge` does not need
    from rlhf_lab.training.run import Run


def label_cost(run: Run, judge: Completer, labels: int) -> dict[str, Any]:
    """Return the metrics of what a run paid, and note them; empty for a judge without a ledger, which charges nothing.

    Args:
        labels: number of labels (grades, pairs or other rows) that were made from the answers.
    """
    ledger = getattr(judge, "ledger", None)
    if ledger is None:
        return {}
    usd = float(ledger.spent_usd)
    run.note(f"cost: {describe_cost(usd, labels)}; over all attempts of this run, without answers that others paid for")
    metrics: dict[str, Any] = {"judge/usd": usd}
    if labels:
        metrics["judge/usd_per_label"] = usd / labels
    return metrics


def describe_cost(usd: float, labels: int) -> str:
    """Return a cost in total and per label, such as `$0.0123 in total, $0.00012 for each of 100 labels`."""
    if not labels:
        return f"${usd:.4f} in total, no label"
    return f"${usd:.4f} in total, ${usd / labels:.2g} for each of {labels} labels"
