"""Context of requests to a language model: the run or command that sends them, and what it has paid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_lab.config import registry
from rlhf_lab.config.groups import JudgeSource
from rlhf_lab.core.types import Oracle, Rubric
from rlhf_lab.packs.judging.judges.requests import Completer

if TYPE_CHECKING:  # this module imports torch, which a judge behind a service does not need
    from rlhf_lab.training.run import Run


@dataclass(frozen=True)
class JudgeContext:
    """Information that a backend needs about the run or command.

    Attributes:
        account: name under which spending is counted, over all restarts; `judge.budget_usd` limits it.
        outputs: directory of the default store.
        oracle: truth for a simulated judge; None if there is none.
        device: device of a local model.
        note: receives notes for the reader of the result.
        rubric: scale and attributes of the oracle's grades; None if it gives no grades.
        only_counts: True if nothing will be sent (`--dry-run`): a service then reads no key and creates no store.
    """

    account: str
    outputs: Path
    oracle: Oracle | None = None
    device: str = "cpu"
    note: Callable[[str], None] = field(default=lambda text: None)
    rubric: Rubric | None = None
    only_counts: bool = False


def open_judge(settings: JudgeSource, caller: JudgeContext) -> Completer:
    """Open the judge of a `judge` section. Raises ConfigError or MissingDependency if it cannot be used."""
    completer: Completer = registry.build("judge", settings, caller)
    return completer


def judge_of(run: Run) -> Completer:
    """Return the judge of a run (`judge=…`)."""
    # the name of the run directory is the account, so the budget survives restarts
    config = run.config
    corpus = run.corpus
    caller = JudgeContext(run.directory.name, Path(config.outputs), corpus.oracle, run.device, run.note, corpus.rubric)
    return open_judge(config.judge, caller)


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
