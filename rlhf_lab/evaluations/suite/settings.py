"""Settings of the stage that asks a policy the golden sets of a suite. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.evaluations.settings import EvaluationSettings
from rlhf_lab.evaluations.suite.suite_file import read_suite

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config


@register("algorithm", "eval_suite")
@dataclass(frozen=True)
class EvalSuite(EvaluationSettings):
    """The golden sets of a suite, asked of `needs.policy`, for `python -m rlhf_lab gate SUITE.yaml RUN`.

    Runs whose metrics the suite names stand in `needs` beside it: `safety` (a safety evaluation) and `comparison`.

    Args:
        suite: the suite's file, or `world` or `domain`, shipped suites of data=mini_hh.
    """

    required_needs: ClassVar[tuple[str, ...]] = ("policy",)
    optional_needs: ClassVar[tuple[str, ...]] = ("reward", "safety", "comparison")
    data_roles: ClassVar[tuple[str, ...]] = ("safety", "comparison")
    requires: ClassVar[Requirements] = (Capability.SINGLE_TURN,)
    answer: ClassVar[str] = "golden_sets"
    suite: str = "world"

    @property
    def asks_harness(self) -> bool:
        """Whether lm-evaluation-harness has to be installed."""
        return bool(read_suite(self.suite).harness)

    def contents(self) -> dict[str, str]:
        return {"suite": read_suite(self.suite).digest()}

    def contradictions(self, config: Config) -> list[str]:
        suite = read_suite(self.suite)
        problems = []
        for name, golden in suite.golden.items():
            if golden.check == "gold" and Capability.TRUE_REWARD not in config.data.capabilities:
                problems.append(f"{self.suite}: golden.{name} asks for gold, which these data do not know")
        for name, metric in suite.metrics.items():
            if metric.run and not config.needs.get(metric.run):
                problems.append(f"{self.suite}: metrics.{name} is of needs.{metric.run}, which is not set")
        return problems
