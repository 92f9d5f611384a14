"""Settings of the verifier of programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rlhf_lab.config.registry import register
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
