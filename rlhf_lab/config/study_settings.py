"""Settings of a study: a sweep that composition expands into jobs. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from rlhf_lab.config.section import Section, section
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import CheckedSettings, Ge, NotEmpty


@dataclass(frozen=True)
class Prediction(CheckedSettings):
    """One claim that a study can decide: a metric of a level against another level.

    Args:
        metric: one of the study's metrics.
        level: of the compared key.
        direction: `higher` or `lower` than `versus`; or `same`, within `margin` of it.
        versus: the level it is compared with; None is the baseline.
        margin: largest difference that still counts as the same, in units of the metric.
        by: level of the study's `by`, where the claim is about one; None takes all together.
    """

    metric: str
    level: Any
    direction: Literal["higher", "lower", "same"]
    versus: Any = None
    margin: float = 0.0
    by: Any = None

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (self.direction != "same" or self.margin > 0, "direction=same needs a margin above 0"),
        )


@dataclass(frozen=True)
class FrontOf(CheckedSettings):
    """Two metrics by which no level of a study need be best.

    Args:
        metrics: both among the study's metrics, and each with a direction that is better.
        margin: by how much a level may be worse in one of them and still dominate another, in the metrics' unit.
    """

    metrics: list[str]
    margin: Annotated[float, Ge(0)] = 0.02

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (len(set(self.metrics)) == 2, f"metrics={self.metrics}; a front is of two metrics"),
        )


@section("study")
@dataclass(frozen=True)
class Study(Section):
    """A sweep that ends in one table and one plot.

    Args:
        question: what the study answers, one sentence.
        hypothesis: what the literature or the issue expects, labelled as published in the table; never a result.
        predicts: the hypothesis as claims that the numbers decide: confirmed, not confirmed, or not distinguishable.
        sweep: override key → values; all combinations run. A command-line value for a key replaces it.
        compare: the key whose levels are compared.
        by: another swept key; levels are then compared within each of its values, a table each. Empty: all together.
        baseline: the level that the others are compared with.
        metrics: reported metrics; the first is the primary one.
        labels: swept key → how its values are called in sentences, tables and figures: a text with "{}", such as
            "{} pairs", or value → text. Without one a value is called by its key and itself, "beta 0.1".
        curves: `overoptimization` adds gold and proxy against √KL along training, a fitted curve per level and where
            it turns (arXiv:2210.10760).
        fronts: pairs of metrics of which the table and the report say which levels are not dominated.
        processes: jobs that run at once on this machine.
        size: `full` is the recipe as written; `quick` is the same with the overrides in `quick`.
        quick: override → value; what makes the study small.
    """

    question: str = ""
    hypothesis: str | None = None
    predicts: list[Prediction] = field(default_factory=list)
    sweep: Annotated[dict[str, list[Any]], NotEmpty(hint="name at least the compared key and seed")] = field(
        default_factory=dict
    )
    compare: str = ""
    by: str = ""
    baseline: Any = None
    metrics: Annotated[list[str], NotEmpty(hint="the first one is the primary metric")] = field(default_factory=list)
    labels: dict[str, Any] = field(default_factory=dict)
    curves: Literal["overoptimization"] | None = None
    fronts: list[FrontOf] = field(default_factory=list)
    processes: int = 2
    size: Literal["full", "quick"] = "full"
    quick: dict[str, Any] = field(default_factory=dict)

    def rules(self) -> tuple[Rule, ...]:
        levels = self.sweep.get(self.compare, [])
        return (
            *super().rules(),
            (self.compare in self.sweep, f"compare={self.compare} is not a key of sweep: {', '.join(self.sweep)}"),
            (not levels or self.baseline in levels, f"baseline={self.baseline} is not one of {levels}"),
            (not self.by or self.by in self.sweep, f"by={self.by} is not a key of sweep: {', '.join(self.sweep)}"),
            (
                not self.by or self.by not in (self.compare, "seed"),
                f"by={self.by} must be a key besides compare and seed",
            ),
            (self.size == "full" or bool(self.quick), "size=quick: this study has no quick size"),
            *(
                (key in (self.compare, self.by), f"labels: {key} is neither compare={self.compare} nor by={self.by}")
                for key in self.labels
            ),
            *(
                (isinstance(names, dict) or "{}" in str(names), f"labels.{key}={names} has no {{}} for the value")
                for key, names in self.labels.items()
            ),
            (not (self.fronts and self.by), f"fronts are of all jobs together; leave out by={self.by}"),
            *(
                (name in self.metrics, f"fronts: {name} is not among metrics: {', '.join(self.metrics)}")
                for front in self.fronts
                for name in front.metrics
            ),
            *(
                (p.metric in self.metrics, f"predicts: {p.metric} is not among metrics: {', '.join(self.metrics)}")
                for p in self.predicts
            ),
            *(
                (not levels or p.level in levels, f"predicts: {p.level} is not a level of {self.compare}: {levels}")
                for p in self.predicts
            ),
        )
