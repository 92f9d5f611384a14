"""Settings of the verifier of programs."""

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
    """Hidden tests of a program: a reply is run against the tests of its row, in the sandbox (section `sandbox`).

    A row without tests is unscored, and one whose tests pass functions or objects to the program. The part `runs` is 1
    where the program loads and ends by itself within its limits; `sandbox_lost` is 1 where its sandbox ended twice
    without a report, so that it counts as failed.

    Args:
        credit: `all` is 1 where every test passes, else 0; `share` is the share of tests that pass, of rows with a list
            of them.
        column: the column with the tests; empty takes the first of `test`, `tests` and `test_list` that a row has. Text
            is one test, a list is one test per entry; text that defines `check` (HumanEval) is called with the
            function that the column `entry_point` names.
    """

    runs_code: ClassVar[bool] = True
    credit: Literal["all", "share"] = "all"
    column: str = ""

    @property
    def outcome(self) -> bool:
        return True


CODE_CHECKS = ("used_imports", "used_names", "documented", "line_length", "named_errors", "reachable")
"""Checks that `code_quality` offers; see `packs/code/rewards/code_quality.py`."""


@register("reward", "code_quality")
@dataclass(frozen=True)
class CodeQuality(TermSettings):
    """Static quality of the Python code in a reply, after RLSQM (arXiv:2310.02368): 0 for code that does not parse,
    else the mean of `checks`, each a share in [0, 1]. The code is parsed and never run.

    Args:
        checks: some of used_imports, used_names, documented, line_length, named_errors, reachable.
        max_line: characters of a line that is not overlong.
        no_code: reward of a reply without a ``` block; None leaves it unscored.
    """

    checks: Annotated[tuple[str, ...], NotEmpty(hint="name at least one")] = CODE_CHECKS
    max_line: Annotated[int, Ge(1)] = 100
    no_code: Annotated[float, Finite()] | None = None

    def rules(self) -> tuple[Rule, ...]:
        return (*super().rules(), schema.only_known("checks", self.checks, CODE_CHECKS))
