"""Settings of the stage that evaluates a policy on the golden sets of a suite. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
    """Evaluation of `needs.policy` on the golden sets of a suite, for `python -m rlhf_lab gate SUITE.yaml RUN`.

    Runs whose metrics the suite names are further entries of `needs`: `safety` (a safety evaluation) and `comparison`.

    Args:
        suite: file of the suite, or `world` or `domain`, the built-in suites for data=mini_hh.
    """

    inputs = replace(
        EvaluationSettings.inputs,
        needs=("policy",),
        optional=("reward", "safety", "comparison"),
        directories=("safety", "comparison"),
    )
    evidence = replace(EvaluationSettings.evidence, answer="golden_sets")
    requires: ClassVar[Requirements] = (Capability.SINGLE_TURN,)
    suite: str = "world"

    @property
    def asks_harness(self) -> bool:
        """True if lm-evaluation-harness has to be installed."""
        return bool(read_suite(self.suite).harness)

    def contents(self) -> dict[str, str]:
        return {"suite": read_suite(self.suite).digest()}

    def contradictions(self, config: Config) -> list[str]:
        suite = read_suite(self.suite)
        problems = []
        for name, golden in suite.golden.items():
            if golden.check == "gold" and Capability.TRUE_REWARD not in config.data.capabilities:
                problems.append(
                    f"{self.suite}: golden.{name} has check=gold, but these data have no gold reward; use another check"
                )
        for name, metric in suite.metrics.items():
            if metric.run and not config.needs.get(metric.run):
                problems.append(
                    f"{self.suite}: metrics.{name} reads the run needs.{metric.run}, which is not set; name the run"
                )
        return problems
