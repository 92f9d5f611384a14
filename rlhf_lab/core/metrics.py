"""The registry of metrics: name, meaning, unit and direction of every number that a stage writes.

Every package that emits metrics lists them in a `metrics.py` that does not import torch. Tables, reports, findings and
dashboards read this registry, so name, title, unit and direction of a metric are defined once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.packs import defined_twice, import_part, packs

ROOMS = ("evaluations", "environments", "training", "monitoring", "algorithms", "rewards")
"""Packages of the core, in the order in which reports show their metrics."""
SHOWN = ("title", "unit", "better", "phrase", "column", "relative_to")
"""Fields of `Metric` that determine how a number is displayed."""

INPUT = ":"
"""Separator of a role and a metric: "reward:accuracy" is the accuracy of the run that a run used as `needs.reward`."""
Scale = Literal["raw", "log", "logit"]
AMOUNTS = re.compile(r"kl$|(\w+_)?tokens(@\d+)?$|(\w+_)?(seconds|s|usd)$")
"""Metrics that are positive amounts."""
RATES = re.compile(
    r"(\w+_)?accuracy([/@].+)?$|(correct|success)(/.+)?$|gold_agreement$|win_rate$|ended$|truncated$"
    r"|(planted_)?(caught|false_alarm)_\d+$"
)
"""Metrics that are fractions of a number of rows, in addition to those of kind `rate`."""


@dataclass(frozen=True)
class Metric:
    """Number in metrics.jsonl, evaluation.jsonl or result.json.

    Attributes:
        name: key of the number. `<term>` in it stands for a name that the run defines.
        meaning: quantity of which the number is the mean, fraction or count.
        title: column heading; if empty, the name in words.
        unit: unit of the number, shown in the column heading.
        better: direction of improvement; empty if neither direction is better.
        phrase: name of the metric within a sentence; if empty, the title.
        column: shorter title for the console's table of policies; empty if the table does not show the metric. A
            `<placeholder>` is replaced by the corresponding part of the run's key.
        relative_to: properties that two runs must share for their numbers to be on one scale: the `reward`, the
            `reference`, the `gold`.
        kind: `rate` for a mean of zeros and ones, with a Wilson interval; `value` for a number with a t interval.
        by_category: True if it is also estimated for each category of tasks, as `<name>/<category>`.
    """

    name: str
    meaning: str
    title: str = ""
    unit: str = ""
    better: Literal["higher", "lower", ""] = ""
    phrase: str = ""
    column: str = ""
    relative_to: tuple[Literal["reward", "reference", "gold"], ...] = ()
    kind: Literal["rate", "value"] = "value"
    by_category: bool = False

    @property
    def heading(self) -> str:
        """Title and unit for a column heading."""
        title = self.title or self.name.replace("_", " ")
        return f"{title}, {self.unit}" if self.unit else title

    @property
    def in_words(self) -> str:
        """Name of the metric within a sentence."""
        return self.phrase or self.title or self.name.replace("_", " ")

    def columns(self, keys: Iterable[str]) -> dict[str, str]:
        """Return key → console column title for the keys that belong to this metric, in the order of the keys."""
        # A metric without a placeholder has one key; else the placeholder's value is part of the title.
        placeholder = re.search(r"<\w+>", self.name)
        if not placeholder:
            return {self.name: self.column} if self.name in keys else {}
        start, end = self.name.split(placeholder[0], 1)
        titles = {}
        for key in keys:
            if self.matches(key):
                value = key.removeprefix(start).removesuffix(end)
                titles[key] = self.column.replace(placeholder[0], value)
        return titles

    def matches(self, name: str) -> bool:
        """Return True if a key written by a run belongs to this metric."""
        return bool(_name_pattern(self.name).fullmatch(name))


@cache
def _name_pattern(name: str) -> re.Pattern[str]:
    """Return a pattern in which each `<placeholder>` of the name matches anything up to the next slash."""
    literals = re.split(r"<\w+>", name)
    return re.compile("[^/]+".join(map(re.escape, literals)))


_from_worlds: dict[str, Metric] = {}
"""Measures that no package of rlhf_lab declares, by name; see `declare`."""


@cache
def declared() -> tuple[Metric, ...]:
    """Return every metric of every package, then the measures of other worlds. Stages may declare the same name."""
    metrics = (*of_packages(), *_from_worlds.values())
    categories = (
        Metric(f"{metric.name}/<category>", "the same for tasks of one category", better=metric.better)
        for metric in metrics
        if metric.by_category
    )
    return (*metrics, *categories)


@cache
def of_packages() -> tuple[Metric, ...]:
    """Return every metric that `metrics.py` files of packs declare. Raise ConfigError if two packs contradict."""
    core = packs()[0]
    by_pack = {pack.name: _of_modules(pack.modules_called("metrics.py")) for pack in packs() if pack is not core}
    # Reports show metrics in the order of ROOMS; metrics of all other packages come last.
    modules = core.modules_called("metrics.py")
    order = {package: index for index, package in enumerate(ROOMS)}
    modules.sort(key=lambda name: order.get(name.split(".")[1], len(ROOMS)))
    # The core comes first, so that its declaration of a name is the one that counts.
    by_pack = {core.name: _of_modules(modules), **by_pack}
    problems = contradictions(by_pack)
    if problems:
        raise ConfigError(problems)
    return tuple(metric for metrics in by_pack.values() for metric in metrics)


def _of_modules(modules: Iterable[str]) -> list[Metric]:
    """Return all metrics in the tuples that these modules define as constants."""
    metrics: list[Metric] = []
    for name in modules:
        constants = [value for key, value in vars(import_part(name)).items() if key.isupper()]
        for table in constants:
            if isinstance(table, tuple):
                metrics += [metric for metric in table if isinstance(metric, Metric)]
    return metrics


def contradictions(by_pack: Mapping[str, Sequence[Metric]]) -> list[str]:
    """Return one message for each metric that a pack displays differently from the first pack that declares it.

    Stages of different packs may log the same name with different meanings. Reports show all of them as the first pack
    declares it, so later packs omit title, unit and the other displayed fields, or repeat them.
    """
    shown: dict[str, tuple[str, Metric]] = {}  # name → (the first pack that declares it, its metric)
    problems = []
    for pack, metrics in by_pack.items():
        for metric in _by_name(metrics).values():
            first, known = shown.setdefault(metric.name, (pack, metric))
            differing = [name for name in SHOWN if getattr(metric, name) not in ("", (), getattr(known, name))]
            if differing:
                what = f"metric {metric.name} ({', '.join(differing)})"
                problems.append(defined_twice(what, f"pack {first}", f"pack {pack}"))
    return problems


def declare(metrics: Iterable[Metric]) -> None:
    """Register metrics of a plug-in's world. A name that rlhf_lab declares keeps its meaning."""
    known = names(of_packages())
    added = {metric.name: metric for metric in metrics if metric.name not in known}
    # Calls usually repeat known metrics; the cached tables below are only rebuilt after a real change.
    if added.items() <= _from_worlds.items():
        return
    _from_worlds.update(added)
    for cached in (declared, catalogue, titled):
        cached.cache_clear()


@cache
def catalogue() -> Mapping[str, Metric]:
    """Return name → metric. If several stages declare a name, the first metric with a title wins.

    Stages of different packs use the same title; see `contradictions`.
    """
    return _by_name(declared())


def _by_name(metrics: Iterable[Metric]) -> dict[str, Metric]:
    """Return name → its first metric that has a title, or else its first metric."""
    chosen: dict[str, Metric] = {}
    for metric in metrics:
        is_new = metric.name not in chosen
        if is_new or (metric.title and not chosen[metric.name].title):
            chosen[metric.name] = metric
    return chosen


def metric(name: str) -> Metric:
    """Return the metric of a key. An undeclared key, e.g. of a plug-in, gets a metric with that name and no meaning."""
    metrics = catalogue()
    if name in metrics:
        return metrics[name]
    role, separator, of_input = name.partition(INPUT)
    if separator:
        known = metric(of_input)
        return replace(known, name=name, title=f"{known.title or of_input} of the {role}", phrase="")
    # "grad_norm/critic" gets meaning and direction from "grad_norm/<part>", but is displayed under its own key
    templates = (metric for metric in metrics.values() if "<" in metric.name)
    template = next((metric for metric in templates if metric.matches(name)), None)
    return replace(template, name=name, title="") if template else Metric(name, "")


def scale_of(name: str) -> Scale:
    """Return the scale on which differences of a metric are not skewed: logarithms of amounts, logits of rates."""
    name = name.rpartition(INPUT)[2]
    if AMOUNTS.match(name):
        return "log"
    return "logit" if RATES.match(name) or metric(name).kind == "rate" else "raw"


def bounds_of(name: str) -> tuple[float, float]:
    """Return the smallest and the largest possible value of a metric; infinite if it is not known to be bounded."""
    if scale_of(name) == "logit":
        return 0.0, 1.0
    return (0.0, math.inf) if scale_of(name) == "log" else (-math.inf, math.inf)


@cache
def titled() -> tuple[str, ...]:
    """Return the names of the metrics that reports show by title, in order; others appear under their key."""
    return tuple(metric.name for metric in catalogue().values() if metric.title)


def undeclared(keys: Iterable[str]) -> list[str]:
    """Return the keys that belong to no declared metric, sorted."""
    # a name that starts with a placeholder would match almost any key
    metrics = [metric for metric in declared() if not metric.name.startswith("<")]
    return sorted(key for key in set(keys) if not any(metric.matches(key) for metric in metrics))


def names(metrics: Iterable[Metric]) -> set[str]:
    """Return the names of metrics."""
    return {metric.name for metric in metrics}
