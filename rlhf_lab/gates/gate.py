"""The gate: reads a suite, a run and the run accepted last; decides every check; registers a run that passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.evaluations.suite.suite_file import Suite, read_suite
from rlhf_lab.gates import register
from rlhf_lab.gates.scores import RunReader, Scores, SuiteCheck, checks_of
from rlhf_lab.gates.verdicts import CheckVerdict, decide, require_directions


@dataclass(frozen=True)
class Decision:
    """The gate's decision on a run.

    Attributes:
        run: directory of the gated run.
        accepted: the run that it was compared with; "" if there is none.
        verdicts: one verdict per check.
        registered: the register that the run was added to; None if it was not added.
    """

    suite: Suite
    run: Path
    accepted: str
    verdicts: list[CheckVerdict]
    registered: Path | None = None

    @property
    def undecided(self) -> list[CheckVerdict]:
        return [verdict for verdict in self.verdicts if verdict.state == "undecided"]

    @property
    def passed(self) -> bool:
        failed = any(verdict.failed for verdict in self.verdicts)
        return not failed and not (self.undecided and self.suite.undecided == "fail")


def judge(suite_path: str, candidate: str, accepted: str | None = None, *, accept: bool = False) -> Decision:
    """Decide every check of a suite for a run.

    Args:
        accepted: the run to compare with; None is the run accepted last.
        accept: add the run to the register if it passes; only without `accepted`.

    Raises:
        ConfigError: the suite is invalid, or compares a metric without a known direction.
        DataError: a directory is not a complete run, or lacks a metric of the suite; the run used another version of a
            golden set; or another run was accepted meanwhile.
    """
    if accept and accepted is not None:
        raise ConfigError("accept=true compares with the run accepted last; leave out the other run")
    suite = read_suite(suite_path)
    checks = checks_of(suite)
    require_directions(checks)
    reader = RunReader(candidate)
    scores = [(check, reader.scores(check)) for check in checks]
    _require_versions(reader, scores)
    path = register.register_path(reader.directory, suite.suite)
    if accepted is None:
        accepted_run, before = register.last_accepted(path)
    else:
        accepted_run = accepted
        before = _scores_of_run(accepted, suite)
    decision = Decision(suite, reader.directory, accepted_run, decide(scores, before, suite.alpha))
    if not (accept and decision.passed):
        return decision
    values = {check.name: each for check, each in scores}
    register.accept_run(path, suite.suite, reader.directory, dict(reader.run.manifest), values, after=accepted_run)
    return replace(decision, registered=path)


def _require_versions(reader: RunReader, scores: Sequence[tuple[SuiteCheck, Scores]]) -> None:
    """Raise DataError if the run used another version of a golden set or task than the suite now has."""
    changed = [check.metric.replace("/", ".", 1) for check, each in scores if check.version != each.version]
    if changed:
        raise DataError(f"{reader.directory} used another version of {', '.join(changed)}; run eval_suite again")


def _scores_of_run(directory: str, suite: Suite) -> dict[str, Scores]:
    """Return the values of the run to compare with.

    Checks without a value are left out; at least one must have a value.
    """
    reader = RunReader(directory)
    scores: dict[str, Scores] = {}
    problems = []
    # an older run may lack checks that were added to the suite later
    for check in checks_of(suite):
        try:
            scores[check.name] = reader.scores(check)
        except DataError as error:
            problems.append(str(error))
    if not scores:
        raise DataError(f"{directory} has a value for none of the suite's checks: {problems[0]}")
    return scores
