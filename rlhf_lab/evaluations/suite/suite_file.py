"""A suite: golden sets, metrics of runs, and tasks of lm-evaluation-harness, each with its requirements.

    suite: assistant
    alpha: 0.05
    golden:
      facts: {path: facts.jsonl, check: contains, min: 0.6, margin: 0.05}
    metrics:
      safety/attack_success: {run: safety, max: 0.1}
    harness:
      arc_easy: {metric: acc, limit: 200, margin: 0.03, better: higher}

Paths are relative to the suite's file. All mistakes are reported together, with their location. Imports no torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

from rlhf_lab.config import schema
from rlhf_lab.core.errors import ConfigError, Rule
from rlhf_lab.core.files import file_digest
from rlhf_lab.core.ranges import CheckedSettings, Finite, Ge, Gt, Lt
from rlhf_lab.core.yaml_files import read_mapping

CHECKS = ("exact", "contains", "regex", "number", "refusal", "gold", "reward")
SCORED = ("gold", "reward")
"""Checks that compare a score of the response with `at_least`."""


@dataclass(frozen=True)
class Demand(CheckedSettings):
    """Requirement on a number.

    Args:
        min: lower bound of the number itself.
        max: upper bound of the number itself.
        margin: tolerated loss compared with the accepted run; with 0 it must not be shown to be worse.
        better: `higher` or `lower`; empty takes the metric's own direction, if it has one.
        compare: True if the number is compared with the accepted run.
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
            (
                len(bounds) < 2 or bounds[0] <= bounds[1],
                f"min={self.min} is above max={self.max}; write bounds with min at most max",
            ),
        )


@dataclass(frozen=True)
class GoldenSet(Demand):
    """Prompts with requirements on the responses. The metric of the set is the fraction of responses that pass.

    Args:
        path: file of rows with the column prompt and the column that the check reads: answer, pattern or label.
            Regression cases of a safety evaluation are such a file, for check=refusal.
        prompts: `test` takes held-out prompts of the data instead of a file, for the checks gold and reward.
        check: requirement on a response. `exact`: only the answer (case and spacing are ignored). `contains`: the
            answer, or one of a list, as complete words. `regex`: `pattern`, of the row or the set. `number`: the number
            that the response ends with. `refusal`: a row with the label safe is not refused and any other is, by
            rules. `gold`, `reward`: the world's or the run's reward of the response reaches `at_least`.
        pattern: regular expression of check=regex for rows without their own.
        at_least: minimum reward for check=gold and check=reward.
        most: maximum number of prompts, taken from the beginning; 0 takes all.
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
            (bool(self.path) != bool(self.prompts), "write either path=FILE or prompts=test"),
            (not self.prompts or self.check in SCORED, f"prompts=test has no answers for check={self.check}; use gold"),
            (
                (self.check in SCORED) == (self.at_least is not None),
                f"at_least is required with check={' or '.join(SCORED)}, and not allowed with another check",
            ),
            (not self.pattern or self.check == "regex", "pattern is only allowed with check=regex; remove it"),
            (_is_pattern(self.pattern), f"pattern={self.pattern!r} is no valid regular expression; correct it"),
        )


@dataclass(frozen=True)
class RunMetric(Demand):
    """Metric in a run directory: that of the gated run, or of a run that it started from.

    Args:
        metric: name of the metric; empty takes the name of the entry.
        run: role of `needs` of the gated run whose directory has it; empty means the gated run itself.
        policy: name of the policy, if the run has several. With `run` it has to be needs.policy of the gated run, and
            empty detects it. Without `run`, empty takes the run's own policy.
    """

    metric: str = ""
    run: str = ""
    policy: str = ""


@dataclass(frozen=True)
class HarnessTask(Demand):
    """Task of lm-evaluation-harness.

    Args:
        task: name of the task in the harness; empty takes the name of the entry.
        metric: metric of the task that has a value per document.
        limit: maximum number of documents; 0 takes all.
        shots: number of examples before each document; null takes the task's own number.
        include: directory with task files of the user.
    """

    task: str = ""
    metric: str = "acc"
    limit: Annotated[int, Ge(0, hint="0 is all")] = 0
    shots: int | None = None
    include: str = ""


@dataclass(frozen=True)
class Suite(CheckedSettings):
    """A suite whose paths are resolved.

    Attributes:
        suite: name of the suite's register.
        alpha: level of the comparisons, after Holm's adjustment over all of them.
        undecided: result of a comparison with too few prompts to decide: it passes and is reported, or it fails.
        golden: name → golden set.
        metrics: name → metric of a run.
        harness: name → task of the harness.
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
            (
                bool(re.fullmatch(r"[\w.-]+", self.suite)),
                f"suite={self.suite!r} is no valid name; write letters, digits, -, _ and . only",
            ),
            (bool(names), "there is nothing to check; write golden, metrics or harness"),
        )

    def digest(self) -> str:
        """Return the SHA-256 of everything the stage reads: golden sets with the content of their files, and tasks."""
        # content and not paths: moving a file must not repeat the stage
        parts = [(name, *_read_of_the_set(golden)) for name, golden in self.golden.items()]
        tasks = [(name, *_read_by_the_harness(task)) for name, task in self.harness.items()]
        return sha256(repr((parts, tasks)).encode()).hexdigest()

    def versions(self) -> dict[str, str]:
        """Return `golden/NAME` and `harness/NAME` → SHA-256 of what the stage reads of it, as in `digest`."""
        read = {f"golden/{name}": _read_of_the_set(golden) for name, golden in self.golden.items()}
        read |= {f"harness/{name}": _read_by_the_harness(task) for name, task in self.harness.items()}
        return {metric: sha256(repr(parts).encode()).hexdigest() for metric, parts in read.items()}


def _read_of_the_set(golden: GoldenSet) -> tuple[Any, ...]:
    # thresholds (min, max, margin) are absent: only the gate reads them, so changing one must not repeat the stage
    content = file_digest(Path(golden.path)) if golden.path else ""
    return (golden.check, golden.pattern, golden.at_least, golden.most, golden.prompts, content)


def _read_by_the_harness(task: HarnessTask) -> tuple[Any, ...]:
    # sorted, because the order of a directory listing differs between file systems
    files = sorted(Path(task.include).rglob("*.y*ml")) if task.include else []
    return (task.task, task.metric, task.limit, task.shots, *map(file_digest, files))


def _is_pattern(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


VERSIONS = "suite.json"
"""File of the run directory with `Suite.versions` at the time of the evaluation."""
SHIPPED = Path(__file__).parent / "suites"
"""Directory of built-in suites. Files end in .yml, because Hydra treats every .yaml of the package as an option."""
SECTIONS: dict[str, type[Demand]] = {"golden": GoldenSet, "metrics": RunMetric, "harness": HarnessTask}


def read_suite(path: str | Path) -> Suite:
    """Read a suite's file, or the built-in suite of that name. Raise ConfigError with all mistakes in it."""
    shipped = SHIPPED / f"{path}.yml"
    file = shipped if shipped.is_file() else Path(path)
    if not file.is_file():
        raise ConfigError(f"{file}: there is no such file; write a YAML file as described in docs/gates.md")
    values = read_mapping(file, "the keys suite, golden, metrics, …, see docs/gates.md")
    problems: list[str] = []
    sections = {name: _section(name, values.get(name), file, problems) for name in SECTIONS}
    simple = {"suite": file.stem}
    simple.update({key: value for key, value in values.items() if key not in SECTIONS})
    suite: Suite | None = schema.build(Suite, simple, "", problems, built=sections)
    if suite is None or problems:
        raise ConfigError([f"{file}: {problem}" for problem in problems])
    return suite


def _section(name: str, values: Any, file: Path, problems: list[str]) -> dict[str, Demand]:
    """Return the entries of a section, with paths that do not depend on the working directory."""
    entries: dict[str, Demand] = {}
    if values is not None and not isinstance(values, dict):
        problems.append(f"{name} is {values!r}; write a mapping of name → requirements")
        return entries
    for entry, demanded in (values or {}).items():
        where = f"{name}.{entry}"
        demanded = dict(demanded or {}) if isinstance(demanded, dict) or demanded is None else demanded
        for key in ("path", "include"):
            if isinstance(demanded, dict) and demanded.get(key):
                demanded[key] = str(file.parent / demanded[key])
                if not Path(demanded[key]).exists():
                    problems.append(f"{where}.{key}: there is no {demanded[key]}; correct the path")
        built = schema.build(SECTIONS[name], demanded, where, problems)
        if built is not None:
            entries[str(entry)] = built
    return entries
