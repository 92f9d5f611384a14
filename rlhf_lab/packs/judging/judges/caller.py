"""Who asks a language model: a run, or a command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_lab.config import registry
from rlhf_lab.config.groups import JudgeSource
from rlhf_lab.core.types import Oracle, Rubric
from rlhf_lab.packs.judging.judges.requests import Completer

if TYPE_CHECKING:  # it imports torch, which a judge behind a service does not need
    from rlhf_lab.training.run import Run


@dataclass(frozen=True)
class Caller:
    """What a backend has to know of who asks.

    Attributes:
        account: what is spent is counted under this name, over all restarts; `judge.budget_usd` bounds it.
        outputs: folder of the default store.
        oracle: the truth that a simulated judge answers from; None where there is none.
        device: of a local model.
        rubric: what that truth is graded on, where it is.
        only_counts: nothing will be sent (`--dry-run`): a service takes no key and creates no store.
        note: called with remarks for the person who reads the result.
    """

    account: str
    outputs: Path
    oracle: Oracle | None = None
    device: str = "cpu"
    note: Callable[[str], None] = field(default=lambda text: None)
    rubric: Rubric | None = None
    only_counts: bool = False


def open_judge(settings: JudgeSource, caller: Caller) -> Completer:
    """Who answers, ready to be asked. Raises ConfigError or MissingDependency where it cannot be."""
    completer: Completer = registry.build("judge", settings, caller)
    return completer


def judge_of(run: Run) -> Completer:
    """The judge of a run (`judge=…`)."""
    config = run.config
    corpus = run.corpus
    caller = Caller(run.folder.name, Path(config.outputs), corpus.oracle, run.device, run.note, corpus.rubric)
    return open_judge(config.judge, caller)
