"""One case: a store, a command, what happens to it, and whether everything is as it should be in the end."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import processes
import verdicts
from processes import Moment
from scenarios import Scenario

from rlhf_lab.core.files import read_json

EQUAL, REFUSED, WRONG, LOST, UNEXPLAINED, LEFT = "equal", "refused", "wrong", "lost", "unexplained", "left behind"
GOOD = (EQUAL, REFUSED)
ATTEMPTS = 3


@dataclass(frozen=True)
class Case:
    """A fault to happen: of a kind, to a stage, everything else chosen by seed and number."""

    number: int
    stage: str
    kind: str
    seed: int


@dataclass
class Outcome:
    """Result of a case.

    Attributes:
        finished: `equal` after nothing but the same command again, or `refused` with an explanation and equal once the
            fault was lifted; else what went wrong.
        remarks: notes: the actions, then the errors.
    """

    case: Case
    finished: str
    remarks: list[str] = field(default_factory=list)

    def line(self) -> str:
        remarks = "; ".join(self.remarks)
        return f"{self.case.number:4} {self.case.stage:18} {self.case.kind:34} {self.finished:12} {remarks}"


class Failure(Exception):
    """A case went wrong: how, and what was seen."""

    def __init__(self, finished: str, seen: str):
        super().__init__(seen)
        self.finished = finished


class Play:
    """One running case in `directory`; the command runs in `directory`/run."""

    def __init__(self, case: Case, scenario: Scenario, reference: Path, directory: Path):
        self.case, self.scenario, self.reference, self.directory = case, scenario, reference, directory
        self.rng = random.Random(f"{case.seed}/{case.number}")
        self.cwd = directory / "run"
        self.remarks: list[str] = []
        self.refused = False
        self.kept: dict[Path, tuple[int, int]] = {}

    @property
    def outputs(self) -> Path:
        return self.cwd / "outputs"

    def prepare(self, *, complete: bool = False, cache: bool = False) -> None:
        """A store with the stages before, whose results must not be touched from now on."""
        self.scenario.prepare(self.reference, self.cwd, complete=complete)
        if cache:
            shutil.copytree(self.reference / "outputs" / "cache", self.outputs / "cache")
        self.kept = {path: identity(self.cwd / path) for path in self.scenario.before}

    def run(
        self,
        *,
        at: int | None = None,
        action: Callable[[Moment], None] | None = None,
        after: tuple[float, int] | None = None,
        twice: bool = False,
        largest_file: int | None = None,
    ) -> tuple[int, str]:
        """The command once. Returns its exit status and what it printed.

        Args:
            at: moment at which `action` happens.
            after: (seconds, signal to send then).
            twice: send it again shortly after.
        """
        log = self.directory / "log.txt"
        run = processes.start(self.scenario.command, self.cwd, log, at=at, action=action, largest_file=largest_file)
        if after:
            time.sleep(after[0])
            for _ in range(2 if twice else 1):
                run.send(after[1])
                time.sleep(0.05)
        status = run.wait()
        if left := run.orphans():
            raise Failure(LEFT, f"processes {left} outlive the command")
        return status, run.text()

    def refusal(self, status: int, text: str) -> None:
        """The command had to end with an explanation."""
        self.refused = True
        if lacks := verdicts.unexplained(text, status):
            raise Failure(UNEXPLAINED, f"{lacks}:\n{text[-3000:]}")
        self.remarks.append(next((line.strip()[:160] for line in text.splitlines() if "failed:" in line), "refused"))

    def interrupt(self, at: int | None = None, number: int = signal.SIGKILL) -> bool:
        """Run up to a moment. False when the command completed before it."""
        status, text = self.run(at=at, action=lambda _: os.kill(os.getpid(), number))
        return self.interrupted(status, text, number)

    def interrupted(self, status: int, text: str, number: int) -> bool:
        """Return True if the command was stopped by a signal, as expected."""
        if status not in (0, -number if number == signal.SIGKILL else 130):
            raise Failure(UNEXPLAINED, f"exit status {status} after {signal.Signals(number).name}:\n{text[-3000:]}")
        if "Traceback" in text:
            raise Failure(UNEXPLAINED, f"a traceback:\n{text[-3000:]}")
        if found := verdicts.half_written(self.outputs):
            raise Failure(WRONG, "; ".join(found))
        return status != 0

    def moment(self, *, of: str | None = None) -> int:
        """Return the random index of a call of an uninterrupted run, among those at which `of` is complete."""
        calls = self.scenario.moments
        expected = [i for i, m in enumerate(calls) if of is None or (m.name == of and m.what.startswith("after"))]
        found = self.rng.choice(expected)
        self.remarks.append(f"{calls[found].what} of {calls[found].name}")
        return found

    def unfinished(self) -> Path:
        """Kill the run where it has a checkpoint; returns the directory of the stage."""
        self.interrupt(self.moment(of="checkpoint.pt" if self.scenario.trains else "policies.jsonl"))
        return next(self.cwd / path for path in reversed(self.scenario.own) if (self.cwd / path).exists())

    def keep(self, directory: Path) -> None:
        """A damaged stage that was complete is as it was again: from now on its result.json is this one."""
        path = directory.relative_to(self.cwd)
        if path in self.kept:
            self.kept[path] = identity(directory)

    def outcome(self) -> Outcome:
        """Return the outcome of a case in which nothing went wrong."""
        return Outcome(self.case, REFUSED if self.refused else EQUAL, self.remarks)

    def finish(self) -> None:
        """The same command until it is done, then everything is compared."""
        for _ in range(ATTEMPTS):
            resumable = [
                path
                for path in self.scenario.own
                if (self.cwd / path / "checkpoint.pt").exists() and not completed(self.cwd / path)
            ]
            status, text = self.run()
            if status == 0:
                break
            self.remarks.append(f"again: {status}")
        else:
            raise Failure(LOST, f"the same command ends with {status}:\n{text[-3000:]}")
        self.compare(resumable)

    def compare(self, resumable: list[Path]) -> None:
        """Every stage with that of the uninterrupted run; the `resumable` must have gone on from their checkpoints."""
        for path in [*self.scenario.before, *self.scenario.own]:
            if found := verdicts.differences(self.reference / path, self.cwd / path):
                raise Failure(WRONG, "; ".join(found))
        for path, before in self.kept.items():
            if identity(self.cwd / path) != before:
                raise Failure(LOST, f"{path} was complete and has been built again")
        for path in resumable:
            notes = (read_json(self.cwd / path / "result.json") or {}).get("notes", [])
            if not any(note.startswith(("resumed", "started over")) for note in notes):
                raise Failure(LOST, f"{path} did not go on from its checkpoint")
        if found := verdicts.leftovers(self.outputs):
            raise Failure(LEFT, "; ".join(found))


def identity(directory: Path) -> tuple[int, int]:
    """Return the identity of result.json, which changes when the file is written again."""
    found = (directory / "result.json").stat()
    return found.st_ino, found.st_mtime_ns


def completed(directory: Path) -> bool:
    return (read_json(directory / "result.json") or {}).get("status") == "completed"
