"""The registry of metrics: name, meaning, unit and direction of every number that a stage writes.

Every package that emits metrics lists them in a `metrics.py` without torch. Tables, reports, findings and dashboards
read this registry, so a metric's name, title, unit and direction stand in one place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Literal

from rlhf_lab.core.packs import packs

ROOMS = ("evaluations", "environments", "training", "monitoring", "algorithms", "rewards", "agents")
"""Packages of the core in the order in which reports show their metrics."""


@dataclass(frozen=True)
class Metric:
    """A number in metrics.jsonl, evaluation.jsonl or result.json.

    Attributes:
        name: its key. `<term>` in it stands for a name that the run gives.
        meaning: what it is the mean, share or count of.
        title: what heads its column; the name in words where it is empty.
        unit: of the number; part of a column's head.
        better: which direction is an improvement; empty where neither is.
        phrase: what it is called within a sentence; the title where it is empty.
        column: a shorter title for the console's table of policies; empty where it is no column of it. A
            `<placeholder>` stands for what the run's key has in its place.
        relative_to: what two runs must have in common for the number to be on one scale: the `reward`, the `reference`,
            the `gold`.
        kind: a `rate` is the mean of zeros and ones, with Wilson's interval; a `value` has a t interval.
        by_category: whether it is also estimated in each category of tasks, as `<name>/<category>`.
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
        """Title and unit, as they head a column."""
        title = self.title or self.name.replace("_", " ")
        return f"{title}, {self.unit}" if self.unit else title

    @property
    def in_words(self) -> str:
        """What it is called within a sentence."""
        return self.phrase or self.title or self.name.replace("_", " ")

    def columns(self, keys: Iterable[str]) -> dict[str, str]:
        """Title of the console's column of each key that belongs to this metric, in the order of the keys."""
        placeholder = re.search(r"<\w+>", self.name)
        if not placeholder:
            return {self.name: self.column} if self.name in keys else {}
        begin, end = self.name.split(placeholder[0], 1)
        found = {key: key.removeprefix(begin).removesuffix(end) for key in keys if self.matches(key)}
        return {key: self.column.replace(placeholder[0], value) for key, value in found.items()}

    def matches(self, name: str) -> bool:
        """Whether a key that a run wrote belongs to this metric."""
        return bool(_name_pattern(self.name).fullmatch(name))


@cache
def _name_pattern(name: str) -> re.Pattern[str]:
    """A pattern in which each `<placeholder>` of the name matches anything up to the next slash."""
    literals = re.split(r"<\w+>", name)
    return re.compile("[^/]+".join(map(re.escape, literals)))


_from_worlds: dict[str, Metric] = {}
"""Measures that no package of the lab declares, by name; see `declare`."""


@cache
def declared() -> tuple[Metric, ...]:
    """Every metric of every package, then what other worlds measure. Several stages may declare metrics of one name."""
    metrics = (*of_packages(), *_from_worlds.values())
    categories = (
        Metric(f"{metric.name}/<category>", "the same for tasks of one category", better=metric.better)
        for metric in metrics
        if metric.by_category
    )
    return (*metrics, *categories)


@cache
def of_packages() -> tuple[Metric, ...]:
    """Every metric that the `metrics.py` files of packs declare."""
    core, *others = packs()
    modules = core.modules_called("metrics.py")
    # Reports show metrics in the order of ROOMS; what lies elsewhere comes last.
    modules.sort(key=lambda name: next((i for i, room in enumerate(ROOMS) if name.split(".")[1] == room), len(ROOMS)))
    modules += [name for pack in others for name in pack.modules_called("metrics.py")]
    metrics: list[Metric] = []
    for name in modules:
        constants = [value for key, value in vars(import_module(name)).items() if key.isupper()]
        tables = [value for value in constants if isinstance(value, tuple)]
        metrics += [metric for table in tables for metric in table if isinstance(metric, Metric)]
    return tuple(metrics)


def declare(metrics: Iterable[Metric]) -> None:
    """Make metrics of a plug-in's world known. A name that the lab itself declares keeps its meaning."""
    known = names(of_packages())
    added = {metric.name: metric for metric in metrics if metric.name not in known}
    if added.items() <= _from_worlds.items():
        return
    _from_worlds.update(added)
    for cached in (declared, catalogue, titled):
        cached.cache_clear()


@cache
def catalogue() -> Mapping[str, Metric]:
    """Name → its metric. Where several stages declare a name, the first one with a title counts."""
    metrics: dict[str, Metric] = {}
    for metric in declared():
        is_new = metric.name not in metrics
        if is_new or (metric.title and not metrics[metric.name].title):
            metrics[metric.name] = metric
    return metrics


def metric(name: str) -> Metric:
    """The metric behind a key. One that nobody declared, such as a plug-in's, is called by its name."""
    metrics = catalogue()
    if name in metrics:
        return metrics[name]
    # "grad_norm/critic" takes meaning and direction from "grad_norm/<part>", but is shown under its own key
    templates = (metric for metric in metrics.values() if "<" in metric.name)
    template = next((metric for metric in templates if metric.matches(name)), None)
    return replace(template, name=name, title="") if template else Metric(name, "")


@cache
def titled() -> tuple[str, ...]:
    """Names of the metrics that reports show by a title, in their order; others appear under their key."""
    return tuple(metric.name for metric in catalogue().values() if metric.title)


def undeclared(keys: Iterable[str]) -> list[str]:
    """Keys that belong to no declared metric, sorted."""
    # a name that begins with a placeholder would match almost any key
    metrics = [metric for metric in declared() if not metric.name.startswith("<")]
    return sorted(key for key in set(keys) if not any(metric.matches(key) for metric in metrics))


def names(metrics: Iterable[Metric]) -> set[str]:
    return {metric.name for metric in metrics}
