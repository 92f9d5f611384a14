"""A suite: golden sets, metrics of runs, and tasks of lm-evaluation-harness, each with what is demanded of it.

    suite: assistant
    alpha: 0.05
    golden:
      facts: {path: facts.jsonl, check: contains, min: 0.6, margin: 0.05}
    metrics:
      safety/attack_success: {run: safety, max: 0.1}
    harness:
      arc_easy: {metric: acc, limit: 200, margin: 0.03, better: higher}

Paths are relative to the suite's file. Every mistake is reported at once, with its place. Imports no torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml

from rlhf_lab.config import schema
from rlhf_lab.core.errors import ConfigError, Rule
from rlhf_lab.core.files import file_digest
from rlhf_lab.core.ranges import CheckedSettings, Finite, Ge, Gt, Lt

CHECKS = ("exact", "contains", "regex", "number", "refusal", "gold", "reward")
SCORED = ("gold", "reward")
"""Checks that compare a score of the reply with `at_least`."""


@dataclass(frozen=True)
class Demand(CheckedSettings):
    """What is demanded of a number.

    Args:
        min, max: bounds of the number itself.
        margin: by how much it may be worse than the accepted run's; 0 demands that it is not shown to be worse.
        better: `higher` or `lower`; empty takes the metric's own direction, where it has one.
        compare: whether it is compared with the accepted run.
    """

    min: Annotated[float, Finite()] | None = None
    max: Annotated[float, Finite()] | None = None
    margin: Annotated[float, Ge(0)] = 0.0
    better: Literal["", "higher", "lower"] = ""
    compare: bool = True

    def rules(self) -> tuple[Rule, ...]:
        bounds = [bound for bound in (self.min, self.max) if bound is not None]
        return (
            *super().rules(),
            (len(bounds) < 2 or bounds[0] <= bounds[1], f"min={self.min} is above max={self.max}"),
        )


@dataclass(frozen=True)
class GoldenSet(Demand):
    """Prompts with what a reply to each has to be; its number is the share of replies that pass.

    Args:
        path: rows with the column prompt and what the check reads: answer, pattern or label. Regression cases of a
            safety evaluation are such a file, for check=refusal.
        prompts: `test` takes held-out prompts of the data in place of a file, for the checks gold and reward.
        check: `exact`: the answer and nothing else (case and spacing aside); `contains`: the answer, or one of a list,
            as whole words; `regex`: `pattern`, of the row or the set; `number`: the number that the reply ends with;
            `refusal`: a row with the label safe is not refused, any other is, by rules; `gold`, `reward`: the world's
            or the run's reward of the reply is `at_least` so high.
        pattern: of check=regex, where rows have none of their own.
        at_least: of gold and reward.
        most: prompts taken at most, from the beginning; 0 takes all.
    """

    path: str = ""
    prompts: Literal["", "test"] = ""
    check: Literal["exact", "contains", "regex", "number", "refusal", "gold", "reward"] = "contains"
    pattern: str = ""
    at_least: float | None = None
    most: Annotated[int, Ge(0, hint="0 is all")] = 0

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (bool(self.path) != bool(self.prompts), "write path=FILE or prompts=test, one of them"),
            (not self.prompts or self.check in SCORED, f"prompts=test has no answers for check={self.check}; use gold"),
            ((self.check in SCORED) == (self.at_least is not None), f"at_least goes with check={' or '.join(SCORED)}"),
            (not self.pattern or self.check == "regex", "pattern goes with check=regex"),
            (_is_pattern(self.pattern), f"pattern={self.pattern!r} is no regular expression"),
        )


@dataclass(frozen=True)
class RunMetric(Demand):
    """A metric that a run directory has: of the gated run, or of a run that it started from.

    Args:
        metric: its name; empty takes the entry's.
        run: role of `needs` of the gated run whose directory has it; empty is the gated run itself.
        policy: its name there, where it has several; with `run` it has to be needs.policy of the gated run, and empty
            finds it. Without `run`, empty takes the run's own policy.
    """

    metric: str = ""
    run: str = ""
    policy: str = ""


@dataclass(frozen=True)
class HarnessTask(Demand):
    """A task of lm-evaluation-harness.

    Args:
        task: its name there; empty takes the entry's.
        metric: one of the task's metrics that is a value per document.
        limit: documents at most; 0 takes all.
        shots: examples in front of each; null takes the task's own number.
        include: folder of task files of one's own.
    """

    task: str = ""
    metric: str = "acc"
    limit: Annotated[int, Ge(0, hint="0 is all")] = 0
    shots: int | None = None
    include: str = ""


@dataclass(frozen=True)
class Suite(CheckedSettings):
    """A suite with the paths in it resolved.

    Attributes:
        suite: name of its register.
        alpha: level of the comparisons, after Holm's adjustment over all of them.
        undecided: what a comparison means that has too few prompts to decide: it passes and is said, or it fails.
        golden, metrics, harness: name → what is demanded.
    """

    suite: str
    alpha: Annotated[float, Gt(0), Lt(1)] = 0.05
    undecided: Literal["pass", "fail"] = "pass"
    golden: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    harness: dict[str, Any] = field(default_factory=dict)

    def rules(self) -> tuple[Rule, ...]:
        names = [*self.golden, *self.metrics, *self.harness]
        return (
            *super().rules(),
            (bool(re.fullmatch(r"[\w.-]+", self.suite)), f"suite={self.suite!r}; write letters, digits, - and _"),
            (bool(names), "there is nothing to check; write golden, metrics or harness"),
        )

    def digest(self) -> str:
        """SHA-256 of what a stage that asks the policy reads: golden sets with their files' content, and tasks."""
        parts = [(name, *_read_of_the_set(golden)) for name, golden in self.golden.items()]
        tasks = [(name, *_read_by_the_harness(task)) for name, task in self.harness.items()]
        return sha256(repr((parts, tasks)).encode()).hexdigest()

    def versions(self) -> dict[str, str]:
        """`golden/NAME` and `harness/NAME` → SHA-256 of what the stage reads of it, as in `digest`."""
        read = {f"golden/{name}": _read_of_the_set(golden) for name, golden in self.golden.items()}
        read |= {f"harness/{name}": _read_by_the_harness(task) for name, task in self.harness.items()}
        return {metric: sha256(repr(parts).encode()).hexdigest() for metric, parts in read.items()}


def _read_of_the_set(golden: GoldenSet) -> tuple[Any, ...]:
    content = file_digest(Path(golden.path)) if golden.path else ""
    return (golden.check, golden.pattern, golden.at_least, golden.most, golden.prompts, content)


def _read_by_the_harness(task: HarnessTask) -> tuple[Any, ...]:
    files = sorted(Path(task.include).rglob("*.y*ml")) if task.include else []
    return (task.task, task.metric, task.limit, task.shots, *map(file_digest, files))


def _is_pattern(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


VERSIONS = "suite.json"
"""File of the run directory: what `Suite.versions` was when the policy was asked."""
SHIPPED = Path(__file__).parent / "suites"
"""Suites by name. Their files end in .yml: Hydra takes every .yaml of the package for an option of a group."""
SECTIONS: dict[str, type[Demand]] = {"golden": GoldenSet, "metrics": RunMetric, "harness": HarnessTask}


def read_suite(path: str | Path) -> Suite:
    """A suite's file, or the shipped one of that name. Raises ConfigError with every mistake in it."""
    shipped = SHIPPED / f"{path}.yml"
    file = shipped if shipped.is_file() else Path(path)
    if not file.is_file():
        raise ConfigError(f"{file}: there is no such file; a suite is a YAML file, see docs/gates.md")
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not readable YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{file} holds no mapping; write suite, golden, metrics, …, see docs/gates.md")
    problems: list[str] = []
    sections = {name: _section(name, values.get(name), file, problems) for name in SECTIONS}
    plain = {"suite": file.stem, **{key: value for key, value in values.items() if key not in SECTIONS}}
    suite: Suite | None = schema.build(Suite, plain, "", problems, built=sections)
    if suite is None or problems:
        raise ConfigError([f"{file}: {problem}" for problem in problems])
    return suite


def _section(name: str, values: Any, file: Path, problems: list[str]) -> dict[str, Demand]:
    """The entries of a section, with paths that do not depend on the working directory."""
    entries: dict[str, Demand] = {}
    if values is not None and not isinstance(values, dict):
        problems.append(f"{name} is {values!r}; write a mapping: name → what is demanded")
        return entries
    for entry, demanded in (values or {}).items():
        where = f"{name}.{entry}"
        demanded = dict(demanded or {}) if isinstance(demanded, dict) or demanded is None else demanded
        for key in ("path", "include"):
            if isinstance(demanded, dict) and demanded.get(key):
                demanded[key] = str(file.parent / demanded[key])
                if not Path(demanded[key]).exists():
                    problems.append(f"{where}.{key}: there is no {demanded[key]}")
        built = schema.build(SECTIONS[name], demanded, where, problems)
        if built is not None:
            entries[str(entry)] = built
    return entries
