"""The gate: reads a suite, a run, and the run that was accepted last; decides every check; registers what passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.evaluations.suite.suite_file import Suite, read_suite
from rlhf_lab.gates import register
from rlhf_lab.gates.scores import Check, RunReader, Scores, checks_of
from rlhf_lab.gates.verdicts import Verdict, decide, require_directions


@dataclass(frozen=True)
class Decision:
    """What the gate says of a run.

    Attributes:
        accepted: the run that it was compared with; empty where there is none.
        registered: the register that the run was added to; None where it was not.
    """

    suite: Suite
    run: Path
    accepted: str
    verdicts: list[Verdict]
    registered: Path | None = None

    @property
    def undecided(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.state == "undecided"]

    @property
    def passed(self) -> bool:
        failed = any(verdict.failed for verdict in self.verdicts)
        return not failed and not (self.undecided and self.suite.undecided == "fail")


def judge(suite_path: str, candidate: str, accepted: str | None = None, *, accept: bool = False) -> Decision:
    """Decide every check of a suite for a run.

    Args:
        accepted: the run to compare with; None takes the one that was accepted last.
        accept: add the run to the register if it passes; without `accepted`.
    Raises:
        ConfigError: the suite is wrong, or compares a metric of which nobody said whether more is better.
        DataError: a folder is no complete run, or lacks a metric that the suite names; it was asked another
            version of a golden set; another run was accepted meanwhile.
    """
    if accept and accepted is not None:
        raise ConfigError("accept=true goes with the comparison with the run accepted last; leave out the other run")
    suite = read_suite(suite_path)
    checks = checks_of(suite)
    require_directions(checks)
    reader = RunReader(candidate)
    scores = [(check, reader.scores(check)) for check in checks]
    _require_versions(reader, scores)
    path = register.register_path(reader.folder, suite.suite)
    if accepted is None:
        accepted_run, before = register.last_accepted(path)
    else:
        accepted_run, before = accepted, _scores_of_run(accepted, suite)
    decision = Decision(suite, reader.folder, accepted_run, decide(scores, before, suite.alpha))
    if not (accept and decision.passed):
        return decision
    values: dict[str, Scores] = {check.name: each for check, each in scores}
    register.accept(path, suite.suite, reader.folder, dict(reader.run.manifest), values, after=accepted_run)
    return Decision(suite, reader.folder, accepted_run, decision.verdicts, path)


def _require_versions(reader: RunReader, scores: Sequence[tuple[Check, Scores]]) -> None:
    """Raises DataError where the run was asked another golden set or task than the suite now has."""
    changed = [check.metric.replace("/", ".", 1) for check, each in scores if check.version != each.version]
    if changed:
        raise DataError(f"{reader.folder} was asked another version of {', '.join(changed)}; run eval_suite again")


def _scores_of_run(folder: str, suite: Suite) -> dict[str, Scores]:
    """The checks that another run has; one that it lacks is not compared, but it has to have some."""
    reader = RunReader(folder)
    scores: dict[str, Scores] = {}
    problems = []
    for check in checks_of(suite):
        try:
            scores[check.name] = reader.scores(check)
        except DataError as error:
            problems.append(str(error))
    if not scores:
        raise DataError(f"{folder} has none of the suite's checks: {problems[0]}")
    return scores
