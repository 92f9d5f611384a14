"""Verifier that runs the hidden tests of a row: from metadata and a response to a score, for reward and metric."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.data.transcript import parse
from rlhf_lab.packs.code.rewards.extraction import needed_name, program_of, prompt_code
from rlhf_lab.packs.code.rewards.settings import CodeTests
from rlhf_lab.packs.code.sandbox.grader import HiddenTestResult, HiddenTests, ProgramGrader
from rlhf_lab.packs.code.sandbox.sandbox import Sandbox
from rlhf_lab.packs.code.sandbox.settings import Sandboxing
from rlhf_lab.rewards.verifiers.verifier import ABSTAINS, GradedTriple, VerifierTermReward, VerifierVerdict, verifier_of
from rlhf_lab.training.run import Run

COLUMNS = ("test", "tests", "test_list")
"""Default columns of tests, in order of preference."""
SETUPS = ("test_setup_code", "test_imports")
"""Columns with code that runs before the tests, in MBPP and in its sanitized version, as text or a list of texts."""
KEPT = 4096
"""Maximum number of cached grades. The cache avoids running the same program for both reward and metric."""


class CodeVerifier:
    """Verifier that runs responses against the hidden tests of their rows."""

    def __init__(self, settings: CodeTests, sandbox: Sandbox):
        self.settings = settings
        self.grader = ProgramGrader(sandbox)
        self._grades: dict[tuple[str, HiddenTests], HiddenTestResult] = {}

    def score(self, metadata: Mapping[str, Any], prompt: str, response: str) -> float:
        """Return the score of a response, 0…1; NaN if the row has no tests or its tests are unsupported."""
        return self.verdicts([(metadata, prompt, response)])[0].score

    def verdicts(self, responses: Sequence[GradedTriple]) -> list[VerifierVerdict]:
        """Return the verdicts of responses; several programs run at the same time."""
        return [ABSTAINS if grade is None else self._verdict(grade) for grade in self.grades(responses)]

    def _verdict(self, grade: HiddenTestResult) -> VerifierVerdict:
        parts = {"runs": float(grade.status in ("passed", "failed")), "sandbox_lost": float(grade.lost)}
        return VerifierVerdict(self._credit(grade), parts)

    def grades(self, responses: Sequence[GradedTriple]) -> list[HiddenTestResult | None]:
        """Return the grade of each response; None if its row has no tests."""
        jobs = [self.job(*response) for response in responses]
        new = [job for job in dict.fromkeys(jobs) if job is not None and job not in self._grades]
        for job, grade in zip(new, self.grader.grade_many(new), strict=True):
            self._grades[job] = grade
        grades = [None if job is None else self._grades[job] for job in jobs]
        # dropped after all grades are collected, so that none of this call's grades is missing
        while len(self._grades) > KEPT:
            self._grades.pop(next(iter(self._grades)))
        return grades

    def job(self, metadata: Mapping[str, Any], prompt: str, response: str) -> tuple[str, HiddenTests] | None:
        """Return the program of a response and its tests; None if the row has no tests."""
        entry_point = str(metadata.get("entry_point") or "")
        provided = prompt_code(_question(prompt), entry_point) if entry_point else ""
        tests = hidden_tests(metadata, provided, self.settings.column)
        if tests is None:
            return None
        # rows of MBPP name no entry point, but their tests only call one function
        called = entry_point or needed_name("\n".join([tests.setup, *tests.tests]))
        return program_of(response, provided, called), tests

    def _credit(self, grade: HiddenTestResult) -> float:
        if grade.status == "unsupported":  # a fault of the tests must not be a penalty for the response
            return math.nan
        if self.settings.credit == "share":
            return grade.passed / grade.total
        return float(grade.status == "passed")


def hidden_tests(metadata: Mapping[str, Any], provided: str, column: str = "") -> HiddenTests | None:
    """Return the hidden tests of a row; None if it has none. Raises DataError unless they are text or a list of texts.

    Args:
        provided: code of the prompt, which runs before the tests.
        column: column of the tests; "" takes the first of `COLUMNS` that is there.
    """
    name = column or next((name for name in COLUMNS if metadata.get(name)), "")
    value = metadata.get(name)
    if not value:
        return None
    entry_point = str(metadata.get("entry_point") or "")
    texts = _texts(name, value)
    preamble = [provided] if provided else []
    for setup in SETUPS:
        if metadata.get(setup):
            preamble += _texts(setup, metadata[setup])
    if entry_point:  # tests in the format of HumanEval define `check` and do not call it
        texts = [f"{text}\ncheck({entry_point})\n" if "def check(" in text else text for text in texts]
    return HiddenTests(tuple(texts), entry_point, "\n".join(preamble))


def _texts(name: str, value: Any) -> list[str]:
    """Return the programs in a column. Raises DataError unless the value is text or a list of texts."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
        raise DataError(
            f"column {name} is {value!r:.80}; expected Python code as text, or a list of texts, for reward=code_tests"
        )
    return list(texts)


def _question(prompt: str) -> str:
    """Return the content of the last message of a prompt, including its white space."""
    messages = parse(prompt.removesuffix("\n\nAssistant:")).messages
    return messages[-1]["content"] if messages else ""


def make(settings: CodeTests, sandbox: Sandboxing) -> CodeVerifier:
    return CodeVerifier(settings, Sandbox(sandbox))


def build(settings: CodeTests, run: Run) -> VerifierTermReward:
    rows = run.corpus.metadata.values()
    # the tasks of an environment bring their own metadata
    needs_tests = run.corpus.environment is None
    if needs_tests and not any(hidden_tests(metadata, "", settings.column) for metadata in rows):
        columns = settings.column or ", ".join(COLUMNS)
        raise ConfigError(
            f"reward=code_tests: no row of data={run.corpus.name} has tests (column {columns}); use data=humaneval, or "
            "set the column with reward.terms.code_tests.column"
        )
    verifier = verifier_of(settings, settings.runs_in(run.config))
    assert isinstance(verifier, CodeVerifier)
    run.note(f"isolation of programs and of their tests: {verifier.grader.sandbox.level}")
    return VerifierTermReward(verifier)
