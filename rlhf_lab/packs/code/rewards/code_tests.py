"""The tests of a row as a verifier: facts and a reply in, a score out, for reward and metric alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.data.transcript import parse
from rlhf_lab.packs.code.rewards.extraction import program_of, prompt_code
from rlhf_lab.packs.code.rewards.settings import CodeTests
from rlhf_lab.packs.code.sandbox.grader import Grade, Grader, HiddenTests
from rlhf_lab.packs.code.sandbox.sandbox import Sandbox
from rlhf_lab.packs.code.sandbox.settings import Sandboxing
from rlhf_lab.rewards.verifiers.verifier import ABSTAINS, Reply, Verdict, VerifierReward, verifier_of
from rlhf_lab.training.run import Run

COLUMNS = ("test", "tests", "test_list")
KEPT = 4096
"""Grades that are kept, so that the metric does not run again what the reward has run."""


class CodeVerifier:
    """Runs replies against the tests of their rows."""

    def __init__(self, settings: CodeTests, sandbox: Sandbox):
        self.settings = settings
        self.grader = Grader(sandbox)
        self._grades: dict[tuple[str, HiddenTests], Grade] = {}

    def score(self, facts: Mapping[str, Any], prompt: str, response: str) -> float:
        """0…1; NaN where the row has no tests, or its tests cannot be run across processes."""
        return self.verdicts([(facts, prompt, response)])[0].score

    def verdicts(self, replies: Sequence[Reply]) -> list[Verdict]:
        """Of many replies, some at a time."""
        return [ABSTAINS if grade is None else self._verdict(grade) for grade in self.grades(replies)]

    def _verdict(self, grade: Grade) -> Verdict:
        parts = {"runs": float(grade.status in ("passed", "failed")), "sandbox_lost": float(grade.lost)}
        return Verdict(self._credit(grade), parts)

    def grades(self, replies: Sequence[Reply]) -> list[Grade | None]:
        """The grade of each reply; None where its row has no tests."""
        jobs = [self.job(*reply) for reply in replies]
        new = [job for job in dict.fromkeys(jobs) if job is not None and job not in self._grades]
        for job, grade in zip(new, self.grader.grade_many(new), strict=True):
            self._grades[job] = grade
        grades = [None if job is None else self._grades[job] for job in jobs]
        while len(self._grades) > KEPT:
            self._grades.pop(next(iter(self._grades)))
        return grades

    def job(self, facts: Mapping[str, Any], prompt: str, response: str) -> tuple[str, HiddenTests] | None:
        """The program of a reply and its tests; None where the row has none."""
        entry_point = str(facts.get("entry_point") or "")
        given = prompt_code(_question(prompt), entry_point) if entry_point else ""
        tests = hidden_tests(facts, given, self.settings.column)
        if tests is None:
            return None
        return program_of(response, given, entry_point), tests

    def _credit(self, grade: Grade) -> float:
        if grade.status == "unsupported":
            return math.nan
        if self.settings.credit == "share":
            return grade.passed / grade.total
        return float(grade.status == "passed")


def hidden_tests(facts: Mapping[str, Any], given: str, column: str = "") -> HiddenTests | None:
    """The hidden tests of a row; None where it has none. Raises DataError for what is no text and no list of texts."""
    name = column or next((name for name in COLUMNS if facts.get(name)), "")
    value = facts.get(name)
    if not value:
        return None
    entry_point = str(facts.get("entry_point") or "")
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
        raise DataError(f"column {name} is {value!r:.80}; expected Python text, or a list of it, for reward=code_tests")
    if entry_point:
        texts = [f"{text}\ncheck({entry_point})\n" if "def check(" in text else text for text in texts]
    return HiddenTests(tuple(texts), entry_point, given)


def _question(prompt: str) -> str:
    """What the last message of a prompt says, with its spaces."""
    messages = parse(prompt.removesuffix("\n\nAssistant:")).messages
    return messages[-1]["content"] if messages else ""


def make(settings: CodeTests, sandbox: Sandboxing) -> CodeVerifier:
    return CodeVerifier(settings, Sandbox(sandbox))


def build(settings: CodeTests, run: Run) -> VerifierReward:
    rows = run.corpus.facts.values()
    if run.corpus.environment is None and not any(hidden_tests(facts, "", settings.column) for facts in rows):
        columns = settings.column or ", ".join(COLUMNS)
        raise ConfigError(
            f"reward=code_tests: no row of data={run.corpus.name} has tests (column {columns}); use data=humaneval, or "
            "name the column in reward.terms.code_tests.column"
        )
    return VerifierReward(verifier_of(settings, settings.runs_in(run.config)))
