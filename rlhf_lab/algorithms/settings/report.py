"""Settings of stages that judge a reward: its report card, and public benchmarks of reward models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rlhf_lab.algorithms.settings.evaluation import EvaluationSettings
from rlhf_lab.registry import register
from rlhf_lab.train.settings import Rule

Benchmark = Literal["reward_bench", "reward_bench_2", "reward_math", "process_bench"]


@register("algorithm", "rm_report")
@dataclass(frozen=True)
class RewardReport(EvaluationSettings):
    """The report card of a reward: on held-out pairs (`evaluation.pairs`) and on replies of `needs.policy`.

    Args:
        bins: of the reliability diagram, with equally many pairs each; at least 8 pairs stay in a bin.
    """

    reads_reward: ClassVar[bool] = True
    required_needs: ClassVar[tuple[str, ...]] = ("policy",)
    optional_needs: ClassVar[tuple[str, ...]] = ("reward",)
    bins: int = 10

    def rules(self) -> tuple[Rule, ...]:
        return (*super().rules(), (self.bins >= 1, f"bins={self.bins} must be at least 1"))


@register("algorithm", "rm_bench")
@dataclass(frozen=True)
class RewardBenchmark(EvaluationSettings):
    """A public benchmark of reward models, scored by its own rule (`analysis/reward_bench.py`).

    Args:
        benchmark: `reward_bench` (arXiv:2403.13787), `reward_bench_2` (arXiv:2506.01937), `reward_math`
            (arXiv:2410.01729) or `process_bench` (arXiv:2412.06559).
        path: the benchmark's rows in its own columns: a local file, folder or glob, or a hub data set as for
            `data.path`. Empty, for `reward_bench` only: the held-out pairs of `data`, in the order of the true reward
            where it is known; that exercises the rule and is not the benchmark.
        max_rows: rows read at most, of RewardMATH problems; 0 reads all.
        threshold: `process_bench` calls the first step wrong at which the reward of the solution so far is below this.
            ½ suits a reward that is a probability.
    """

    reads_reward: ClassVar[bool] = True
    optional_needs: ClassVar[tuple[str, ...]] = ("reward",)
    smoke: ClassVar[dict[str, float]] = {"max_rows": 100}
    smoke_real: ClassVar[dict[str, float]] = {"max_rows": 16}
    benchmark: Benchmark = "reward_bench"
    path: str = ""
    max_rows: int = 0
    threshold: float = 0.5

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                bool(self.path) or self.benchmark == "reward_bench",
                f"path is not set; benchmark={self.benchmark} needs its rows: a file or a hub data set",
            ),
            (self.max_rows >= 0, f"max_rows={self.max_rows} must be 0 (all) or above"),
        )
