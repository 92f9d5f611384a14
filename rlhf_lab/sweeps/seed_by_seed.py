"""Run of a study seed by seed, until its claims are decided or a limit is reached (`study.until=decided`).

Hydra's sweeper runs the jobs in batches, one batch per seed. After a batch, all levels have a run of this seed, so the
claims are looked at. The look is written to study.json before the next seed starts: an interrupted study continues
after it, and its page shows it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from hydra._internal.core_plugins import basic_sweeper

from rlhf_lab.config.study_settings import StudySettings
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import read_object, write_json
from rlhf_lab.results.wording import duration
from rlhf_lab.statistics.sequential import FIRST
from rlhf_lab.studies.claims import NOT_SWEPT, OPEN
from rlhf_lab.studies.frame import Study, read_study
from rlhf_lab.studies.look_log import LookLog
from rlhf_lab.studies.registration import record_look
from rlhf_lab.studies.replication import Replication
from rlhf_lab.studies.sequential import ClaimState, look_at
from rlhf_lab.studies.table import build_sections, rich_table
from rlhf_lab.studies.verdict import verdict_numbers, verdicts


def check_prompts(replication: Replication) -> None:
    """Raise ConfigError if all seeds are tested on the same prompts.

    Their error is then common to all seeds, and a study that stops when decided reports differences that do not exist
    in up to 60 % of cases.
    """
    if replication.shares_prompts:
        raise ConfigError(
            "study.until=decided needs test prompts of their own for every seed, but here all seeds are tested on the "
            "same prompts; use data of a simulated world without data.test_seed, or a fixed list of seeds"
        )


@contextmanager
def stopping_when_decided(directory: Path, study: StudySettings) -> Iterator[None]:
    """Let Hydra's sweeper stop between two seeds once all claims are decided or a limit is reached."""
    # Hydra executes the module again when it looks for plugins, so the class must not be imported by name.
    sweeper_class = basic_sweeper.BasicSweeper
    original = sweeper_class.is_done
    progress = StudyProgress(directory, study)

    def is_done(sweeper: basic_sweeper.BasicSweeper) -> bool:
        # The sweeper asks before each batch, so `batch_index` seeds are complete.
        is_stopped = sweeper.batch_index > 0 and progress.finish_seed(sweeper.batch_index)
        return is_stopped or original(sweeper)

    # The sweeper has no hook between batches.
    sweeper_class.is_done = is_done  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        sweeper_class.is_done = original  # type: ignore[method-assign]


@dataclass
class StudyProgress:
    """Looks and limits of a running study.

    Attributes:
        started, seed_started: start of the command's first job, and of the present seed (`time.monotonic`).
        longest: seconds of the longest seed of this command; seeds that are only reused take none.
    """

    directory: Path
    settings: StudySettings
    started: float = field(default_factory=time.monotonic)
    seed_started: float = field(default_factory=time.monotonic)
    longest: float = 0.0

    def finish_seed(self, seeds: int) -> bool:
        """Look at the claims after a number of complete seeds and print their state. Return True if the study stops."""
        now = time.monotonic()
        self.longest = max(self.longest, now - self.seed_started)
        self.seed_started = now
        study = read_study(self.directory)
        assert study.log is not None
        log, expected = study.log, None
        if seeds >= FIRST:
            log, states = look_at(study, seeds)
            open_states = [state for state in states if state.verdict in OPEN]
            expected = max((state.seeds or len(log.seeds) for state in open_states), default=seeds)
            log = replace(log, stopped=self._reason_to_stop(log, seeds, states))
            study = replace(study, registration=record_look(self.directory, study.completed["index"]))
        elif self._is_out_of_time():
            log = replace(log, stopped=self._time_limit())
        path = self.directory / "study.json"
        write_json(path, read_object(path) | {"looks": log.to_dict()})
        self._print(replace(study, log=log), seeds, expected)
        return bool(log.stopped)

    def _reason_to_stop(self, log: LookLog, seeds: int, states: Sequence[ClaimState]) -> str:
        if states and all(state.verdict == NOT_SWEPT for state in states):
            return "no claim is about the levels of this sweep"
        if not log.looks[-1].levels:
            return "every claim is decided"
        if seeds == len(log.seeds):
            return f"the limit of {seeds} seeds is reached"
        return self._time_limit() if self._is_out_of_time() else ""

    def _is_out_of_time(self) -> bool:
        """Return True if another seed would probably end after the limit."""
        limit = self.settings.max_minutes
        return limit is not None and time.monotonic() - self.started + self.longest > 60 * limit

    def _time_limit(self) -> str:
        return f"the limit of {self.settings.max_minutes:g} minutes is reached"

    def _print(self, study: Study, seeds: int, expected: int | None) -> None:
        assert study.log is not None
        spent = f"{seeds} of at most {len(study.log.seeds)} seeds done, {duration(time.monotonic() - self.started)}"
        if expected is None:
            outlook = study.log.stopped or f"the first look is after {FIRST} seeds"
            console.inform(f"  {spent}; {outlook}")
            return
        sections = [section for section in build_sections(study) if section.metric == study.primary]
        console.inform(rich_table(study, sections))
        rows = verdicts(study)
        open_count = sum(row.verdict in OPEN for row in rows)
        outlook = study.log.stopped
        if not outlook:
            further = max(1, min(expected, len(study.log.seeds)) - seeds)
            left = further * self.longest
            if self.settings.max_minutes is not None:
                left = min(left, 60 * self.settings.max_minutes - (time.monotonic() - self.started))
            outlook = f"about {further} more seed{'s' * (further > 1)}, {duration(left)} left"
        console.inform(f"  {spent}; {open_count} of {len(rows)} claims open; {outlook}")
        for row in rows:
            state = "open" if row.verdict in OPEN else row.verdict
            numbers = "" if row.verdict == NOT_SWEPT else f": {verdict_numbers(row)}"
            console.inform(f"    {state:<13} {row.claim}{numbers}")
