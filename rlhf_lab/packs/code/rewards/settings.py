"""Settings of the reward terms for programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from rlhf_lab.config import schema
from rlhf_lab.config.registry import register
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import Finite, Ge, NotEmpty
from rlhf_lab.rewards.term import TermSettings
from rlhf_lab.rewards.verifiers.settings import VerifierSettings


@register("reward", "code_tests")
@dataclass(frozen=True)
class CodeTests(VerifierSettings):
    """Hidden tests: a response is run against the tests of its row in the sandbox (section `sandbox`).

    A row is unscored if it has no tests, or if its tests pass functions or objects to the program. The part `runs` is 1
    if the program loads and finishes within its limits. The part `sandbox_lost` is 1 if its sandbox exited twice
    without a report; such a program counts as failed.

    Args:
        credit: `all` scores 1 if all tests pass, else 0. `share` scores the fraction of tests that pass, for rows with
            a list of tests.
        column: column of the tests; if empty, the first of `test`, `tests` and `test_list` that a row has. Text is one
            test, a list is one test per entry. If the text defines `check` (HumanEval), `check` is called with the
            function named in the column `entry_point`.
    """

    runs_code: ClassVar[bool] = True
    credit: Literal["all", "share"] = "all"
    column: str = ""

    @property
    def outcome(self) -> bool:
        return True


CODE_CHECKS = ("used_imports", "used_names", "documented", "line_length", "named_errors", "reachable")
"""Checks of `code_quality`; see `packs/code/rewards/code_quality.py`."""


@register("reward", "code_quality")
@dataclass(frozen=True)
class CodeQuality(TermSettings):
    """Static quality of the Python code in a response, after RLSQM (arXiv:2310.02368).

    The score is 0 if the code does not parse, else the mean of `checks`, each a fraction in [0, 1]. The code is never
    run.

    Args:
        checks: checks to average: used_imports, used_names, documented, line_length, named_errors, reachable.
        max_line: maximum number of characters in a line.
        no_code: reward of a response without a ``` block; None leaves it unscored.
    """

    checks: Annotated[tuple[str, ...], NotEmpty(hint="name at least one")] = CODE_CHECKS
    max_line: Annotated[int, Ge(1)] = 100
    no_code: Annotated[float, Finite()] | None = None

    def rules(self) -> tuple[Rule, ...]:
        return (*super().rules(), schema.only_known("checks", self.checks, CODE_CHECKS))
