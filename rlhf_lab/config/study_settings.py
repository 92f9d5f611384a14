"""Settings of a study: a sweep that is expanded into jobs. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, Literal

from rlhf_lab.config.overrides import is_choice
from rlhf_lab.config.search_space import SearchGoal, problem_of
from rlhf_lab.config.section import Section, section
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import CheckedSettings, Ge, Gt, Le, Lt


@dataclass(frozen=True)
class Prediction(CheckedSettings):
    """Claim that a study can decide: a metric of one level compared with another level.

    Args:
        metric: one of the study's metrics.
        level: level of the compared key.
        direction: `higher` or `lower` than `versus`, or `same` within `margin`.
        versus: level to compare with; None is the baseline.
        margin: largest difference that still counts as the same, in units of the metric.
        by: level of the study's `by` if the claim is about one of them; None uses all together.
        published: published difference in the claimed direction, in units of the metric; for amounts such as KL, tokens
            and seconds the published ratio. The claim is then also tested for being smaller than published.
    """

    metric: str
    level: Any
    direction: Literal["higher", "lower", "same"]
    versus: Any = None
    margin: float = 0.0
    by: Any = None
    published: float | None = None

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (self.direction != "same" or self.margin > 0, "direction=same needs a margin above 0"),
            (
                self.direction != "same" or self.published is None,
                "direction=same has no published effect; use a margin",
            ),
        )


@dataclass(frozen=True)
class ParetoSettings(CheckedSettings):
    """Two metrics with a trade-off. Their Pareto front has the levels of the study that no other level dominates.

    Args:
        metrics: two of the study's metrics, each with a direction of improvement.
        margin: difference, in the metrics' unit, by which a level may be worse in one metric and still dominate.
    """

    metrics: list[str]
    margin: Annotated[float, Ge(0)] = 0.02

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (len(set(self.metrics)) == 2, f"metrics={self.metrics}; a Pareto front has two different metrics"),
        )


@dataclass(frozen=True)
class CorrelationSettings(CheckedSettings):
    """Claim that a metric is correlated with another one over the settings of a study.

    A setting is one combination of the swept values other than the seed, for example one reward function.

    Args:
        metric: one of the study's metrics, the predictor.
        outcome: another one, which is predicted.
        direction: sign of the claimed rank correlation.
        stronger_than: another metric that is claimed to be correlated less with the outcome; null claims nothing.
    """

    metric: str
    outcome: str
    direction: Literal["positive", "negative"]
    stronger_than: str | None = None

    @property
    def metrics(self) -> list[str]:
        """Metrics that the claim reads."""
        return [name for name in (self.metric, self.outcome, self.stronger_than) if name is not None]

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (len(set(self.metrics)) == len(self.metrics), "metric, outcome and stronger_than are different metrics"),
        )


@dataclass(frozen=True)
class RateSettings(CheckedSettings):
    """Claim that an outcome, which is 0 or 1 in every run, is more or less frequent than a number, over all runs.

    Args:
        metric: one of the study's metrics.
        direction: `higher` or `lower` than the number.
        than: the number, a fraction of the runs that have the outcome.
    """

    metric: str
    direction: Literal["higher", "lower"]
    than: Annotated[float, Gt(0), Lt(1)]

    @property
    def metrics(self) -> list[str]:
        """Metrics that the claim reads."""
        return [self.metric]


@dataclass(frozen=True)
class CrossingSettings(CheckedSettings):
    """Metrics at ascending positions, such as success by number of hops, to find where a level overtakes the baseline.

    Args:
        metrics: metrics of the study, one per position.
        at: the positions, in ascending order.
        unit: unit of the positions, in plural.
    """

    metrics: list[str]
    at: list[float]
    unit: str = "steps"

    def rules(self) -> tuple[Rule, ...]:
        ascending = all(first < second for first, second in pairwise(self.at))
        return (
            *super().rules(),
            (
                len(self.metrics) == len(self.at) >= 2,
                f"metrics={self.metrics} and at={self.at} need the same length, at least 2",
            ),
            (ascending, f"at={self.at} is not in ascending order"),
        )


OF_SWEEPS = (
    "sweep",
    "arms",
    "compare",
    "by",
    "baseline",
    "predicts",
    "seen_seeds",
    "labels",
    "curves",
    "fronts",
    "correlations",
    "rates",
    "crossings",
)
"""Settings that describe the levels of a sweep; a search has none."""
ARM = "study.arm"
"""Key of a sweep over the arms of a study."""
METRIC_PARTS = ("fronts", "crossings", "correlations", "rates")
"""Settings of a study that list objects with the names of some of its metrics."""


@section("study")
@dataclass(frozen=True)
class StudySettings(Section):
    """Sweep, or search over settings, that ends in one table and one plot.

    Args:
        question: question that the study answers, one sentence.
        hypothesis: expectation from the literature or the issue. The table labels it as published; it is not a result.
        predicts: the hypothesis as claims that the numbers decide: confirmed, not confirmed, or not distinguishable.
            They are registered when the study first runs. A claim that is added or changed after a look counts only
            seeds that were not seen.
        seen_seeds: seeds whose results were known when the claims were written, such as those of a pilot in another
            store. They do not count for the claims, and the page names them.
        sweep: override key → values; all combinations run. A command-line value for a key replaces it.
        arms: name → settings of an arm, such as `{strict: {algorithm.beta: 0.3, reward.temperature: 2}}`, for levels
            that differ in several settings. `sweep: {study.arm: [strict, …]}` runs them. An arm without settings is the
            recipe itself.
        arm: arm of a job; the sweep sets it.
        compare: key whose levels are compared.
        by: another swept key; levels are compared within each of its values, in one table each. Empty: all together.
        baseline: level with which the others are compared.
        metrics: reported metrics; the first is the primary one.
        labels: swept key → names of its values in sentences, tables and figures: a text with "{}", such as
            "{} pairs", or value → text. A value without a label is shown with its key, "beta 0.1".
        curves: `overoptimization` adds gold and proxy against √KL during training, with a fitted curve per level and
            its turning point (arXiv:2210.10760).
        fronts: pairs of metrics with a Pareto front: the table and the report show which levels are not dominated.
        correlations: claims that one metric is correlated with another over the settings of the sweep.
        rates: claims that an outcome of runs, such as a false alarm, is more or less frequent than a number.
        crossings: metrics at growing positions: the table and the conclusion state from which position on a level is
            ahead of the baseline, with an interval.
        processes: number of jobs that run at the same time on this machine.
        until: `decided` runs the study seed by seed, looks at the claims after every seed from the third on, and stops
            when all of them are decided. The sweep's seeds come first, then the integers after them.
        max_seeds: maximum number of seeds with until=decided.
        max_minutes: with until=decided, no seed starts that would probably end after this many minutes.
        size: `full` runs the recipe as written; `quick` applies the overrides in `quick`.
        quick: override → value of the small version of the study.
        search: in place of `sweep`: override key → values from which Optuna's TPE sampler chooses. `0.1..0.9` is a
            range, `log 0.01..0.5` one on a logarithmic scale, `1..8` whole numbers, [8, 16] a list of values.
        goal: metric that the search improves, and the direction of improvement.
        trials: maximum number of trials of a search; a larger number continues it.
        patience: number of trials without an improvement after which a search stops; null runs all trials.
        confirm_seeds: number of fresh seeds on which the best trial is compared with the default settings, those of the
            command without the search.
    """

    question: str = ""
    hypothesis: str | None = None
    predicts: list[Prediction] = field(default_factory=list)
    seen_seeds: list[int] = field(default_factory=list)
    sweep: dict[str, list[Any]] = field(default_factory=dict)
    arms: dict[str, dict[str, Any]] = field(default_factory=dict)
    arm: str | None = None
    compare: str = ""
    by: str = ""
    baseline: Any = None
    metrics: list[str] = field(default_factory=list)
    labels: dict[str, Any] = field(default_factory=dict)
    curves: Literal["overoptimization"] | None = None
    fronts: list[ParetoSettings] = field(default_factory=list)
    correlations: list[CorrelationSettings] = field(default_factory=list)
    rates: list[RateSettings] = field(default_factory=list)
    crossings: list[CrossingSettings] = field(default_factory=list)
    processes: Annotated[int, Ge(1)] = 2
    until: Literal["decided"] | None = None
    max_seeds: Annotated[int, Ge(3), Le(200, hint="the tests are calibrated up to this number")] = 12
    max_minutes: Annotated[float, Gt(0)] | None = None
    size: Literal["full", "quick"] = "full"
    quick: dict[str, Any] = field(default_factory=dict)
    search: dict[str, Any] = field(default_factory=dict)
    goal: SearchGoal | None = None
    trials: Annotated[int, Ge(1)] = 20
    patience: Annotated[int, Ge(1)] | None = None
    confirm_seeds: Annotated[int, Ge(2, hint="an interval needs two seeds")] = 3

    def rules(self) -> tuple[Rule, ...]:
        if self.search:
            return (*super().rules(), *self._search_rules())
        # Without levels there is a message about `compare` already, so the checks of levels are skipped.
        levels = self.sweep.get(self.compare, [])
        return (
            *super().rules(),
            (bool(self.sweep), "sweep is empty; name at least the compared key and seed"),
            (bool(self.metrics), "metrics is empty; the first one is the primary metric"),
            (self.compare in self.sweep, f"compare={self.compare} is not a key of sweep: {', '.join(self.sweep)}"),
            (not levels or self.baseline in levels, f"baseline={self.baseline} is not one of {levels}"),
            *self._arm_rules(),
            (not self.by or self.by in self.sweep, f"by={self.by} is not a key of sweep: {', '.join(self.sweep)}"),
            (
                not self.by or self.by not in (self.compare, "seed"),
                f"by={self.by} must be a key other than compare and seed",
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
            (not (self.fronts and self.by), f"fronts use all jobs together; remove by={self.by}"),
            (not (self.crossings and self.by), f"crossings use all jobs together; remove by={self.by}"),
            *(
                (name in self.metrics, f"{part}: {name} is not among metrics: {', '.join(self.metrics)}")
                for part in METRIC_PARTS
                for each in getattr(self, part)
                for name in each.metrics
            ),
            *(
                (p.metric in self.metrics, f"predicts: {p.metric} is not among metrics: {', '.join(self.metrics)}")
                for p in self.predicts
            ),
            *(
                (not levels or level in levels, f"predicts: {level} is not a level of {self.compare}: {levels}")
                for p in self.predicts
                for level in (p.level, p.versus)
                if level is not None  # without `versus`, the claim is about the baseline, which has its own check
            ),
            *(
                (
                    p.level != (self.baseline if p.versus is None else p.versus),
                    f"predicts: {p.level} is compared with itself",
                )
                for p in self.predicts
            ),
            *(
                (
                    p.by is None or p.by in self.sweep.get(self.by, []),
                    f"predicts: by={p.by} is not a value of by={self.by}",
                )
                for p in self.predicts
            ),
            (self.until is None or bool(self.predicts), "until=decided needs claims; add predicts"),
            (self.until is None or self.compare != "seed", "until=decided compares levels of a setting, not seeds"),
        )

    def _arm_rules(self) -> tuple[Rule, ...]:
        """Return the conditions on arms and on the levels of `study.arm`."""
        levels = self.sweep.get(ARM, [])
        names = ", ".join(self.arms) or "none"
        return (
            (ARM in self.sweep or not self.arms, f"arms: {names} are not run; name them in sweep as {ARM}"),
            *((level in self.arms, f"sweep.{ARM}: {level} is not one of arms: {names}") for level in levels),
            *(
                (
                    not is_choice(key) and key not in self.sweep and not key.startswith("study."),
                    f"arms.{name}: {key} chooses an option, is swept or describes the study; an arm has other settings",
                )
                for name, settings in self.arms.items()
                for key in settings
            ),
        )

    def _search_rules(self) -> tuple[Rule, ...]:
        """Return the conditions on a search."""
        written = [name for name in OF_SWEEPS if getattr(self, name)]
        space_problems = [problem_of(key, values) for key, values in self.search.items()]
        return (
            (not written, f"search: {', '.join(written)} describe the levels of a sweep; a search has none"),
            (self.until is None, "search: until=decided is for sweeps; use trials and patience"),
            (self.size == "full", "size=quick: a search has no quick size; use fewer trials"),
            (self.goal is not None, "search needs a goal, such as study.goal={metric: gold, direction: higher}"),
            *((problem is None, problem or "") for problem in space_problems),
        )
