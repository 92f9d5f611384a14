"""Context of requests to a language model: the run or command that sends them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

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
