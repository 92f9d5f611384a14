"""Measures: quantities that a world reports about a response or an episode.

A world lists its measures once, in its attribute `measures`. `Corpus.measure` names the columns that the world returns:
a declared measure keeps its own name, any other column becomes `measure/<name>`. Evaluations, rollouts, re-scoring,
reports and trackers handle every column they receive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from rlhf_lab.core import metrics
from rlhf_lab.core.arrays import FloatArray
from rlhf_lab.core.capabilities import Capability
from rlhf_lab.core.errors import DataError
from rlhf_lab.core.files import read_json
from rlhf_lab.core.metrics import Metric


@dataclass(frozen=True)
class Measure(Metric):
    """Number that a world reports for each response or episode. Its mean is a metric of the same name.

    Attributes:
        logged: False for a detail that only the world's own annotator and judges read.
    """

    logged: bool = True


GOLD = Measure(
    "gold",
    "true reward of a sampled response, gold points; on real data the score of needs.gold, in its own unit",
    title="gold reward",
    better="higher",
    column="gold",
    relative_to=("gold",),
)
CORRECT = Measure(
    "correct",
    "fraction of sampled responses whose final answer is right (data with verifiable answers only)",
    title="accuracy of samples",
    better="higher",
    column="correct",
    kind="rate",
    by_category=True,
)
VERBOSE = Measure(
    "verbose",
    "fraction of verbose responses: in a world, affirmations + fillers + closings ≥ 3; in text of people, an opening "
    "without content, or more than 200 tokens on a prompt of at most 20 words",
    title="verbose",
    better="lower",
    phrase="verbose rate",
    column="verbose",
    kind="rate",
)
GARBLE = Measure(
    "garble",
    "fraction of responses with an unreadable sentence",
    title="garbled",
    better="lower",
    phrase="garble rate",
    column="garble",
    kind="rate",
)
VERIFIED = Measure(
    "verified",
    "mean score of the verifier that checks the responses (data.verifier, or the reward's), 0…1; `correct` is the "
    "fraction of responses with a score of 1",
    title="verified",
    better="higher",
    phrase="verifier's score",
)
VERIFIED_PART = Measure(
    "verified/<part>",
    "mean of a component of the verifier's score, over the responses for which it is known",
    better="higher",
)
CALLS = Measure(
    "calls", "tool calls per episode (data whose environment counts them)", title="calls per episode", column="calls"
)
UNDECLARED = Measure(
    "measure/<name>",
    "mean of an undeclared measure that the data's own world or environment returns, in its unit",
    column="<name>",
)

COMMON = (GOLD, VERBOSE, GARBLE, CORRECT)
"""Measures that have a column in every evaluation.jsonl; null if the world does not report them."""
STANDARD = (*COMMON, VERIFIED, VERIFIED_PART, CALLS)
"""Measures that any world may return without declaring them."""

REQUIRES = {GOLD.name: Capability.TRUE_REWARD, VERBOSE.name: Capability.VERBOSITY}
"""Measure → capability of the data without which it is unknown."""

ROW = ("policy", "prompt_id", "sample_id", "prompt", "response", "conversation", "category")
"""Columns of evaluation.jsonl that describe a row. No measure may have one of these names."""


def details(**meanings: str) -> tuple[Measure, ...]:
    """Return measures that are not logged, given the meaning of each."""
    return tuple(Measure(name, meaning, logged=False) for name, meaning in meanings.items())


def named(truth: Mapping[str, FloatArray], declared: Iterable[Measure]) -> dict[str, FloatArray]:
    """Return the columns that a world returns under the names used for logging, without details.

    Args:
        declared: measures that the world declares in addition to `STANDARD`.
    """
    # Standard measures have a fixed meaning, so they are found before those of the world.
    known = (*STANDARD, *declared)
    columns = {}
    for name, values_N in truth.items():
        measure = _find(name, known)
        if measure is None:
            columns[_undeclared_name(name)] = values_N
        elif measure.logged:
            columns[name] = values_N
    return columns


def _undeclared_name(name: str) -> str:
    """Return `measure/<name>`. A slash in the name becomes a dot, because metric names use slashes for levels."""
    return UNDECLARED.name.replace("<name>", name.replace("/", "."))


def _find(name: str, known: Iterable[Measure]) -> Measure | None:
    return next((measure for measure in known if measure.matches(name)), None)


def columns_of(row: Iterable[str], declared: Iterable[Measure] | None = None) -> dict[str, Measure]:
    """Return the columns of an evaluation.jsonl row that a world measured, each with its measure, in the row's order.

    Args:
        declared: measures of the row's world; None uses the measures that any world has declared.
    """
    if declared is None:
        declared = [metric for metric in metrics.declared() if isinstance(metric, Measure)]
    # The order matters: `UNDECLARED` matches any `measure/<name>`, so it comes last.
    known = (*declared, *STANDARD, UNDECLARED)
    columns = {}
    for name in row:
        measure = _find(name, known)
        if measure is not None and measure.logged:
            columns[name] = measure
    return columns


def declare(world: str, declared: Sequence[Measure]) -> None:
    """Register the measures of a world. Raise DataError if a name already belongs to another number that runs log.

    Args:
        world: name of the world for the message.
    """
    # A name such as "<term>/mean" would match almost any measure, so templates without a fixed start are left out.
    lab = [metric for metric in metrics.of_packages() if not metric.name.startswith("<")]
    shared = {metric.name for metric in lab if isinstance(metric, Measure)}
    for measure in declared:
        if measure.name in shared or not measure.logged:
            continue
        if measure.name in ROW or any(metric.matches(measure.name) for metric in lab):
            raise DataError(
                f"{world} declares a measure named {measure.name}, which is the name of another number that runs log; "
                "give the measure a name of its own"
            )
    metrics.declare(declared)


def to_stored(declared: Iterable[Measure]) -> list[dict[str, Any]]:
    """Return the measures to store in the manifest of a run: those that no package of rlhf_lab declares."""
    lab = metrics.names(metrics.of_packages())
    return [asdict(measure) for measure in declared if measure.logged and measure.name not in lab]


def recall(directory: Path) -> None:
    """Register the measures in the manifest of a run, so that its numbers get their titles."""
    manifest = read_json(directory / "manifest.json")
    data = manifest.get("data") if isinstance(manifest, dict) else None
    stored = data.get("measures") if isinstance(data, dict) else None
    metrics.declare(_from_stored(values) for values in stored or ())


def _from_stored(values: Mapping[str, Any]) -> Measure:
    known = {item.name for item in fields(Measure)}  # another version may have stored additional fields
    own = {name: value for name, value in values.items() if name in known}
    return Measure(**{**own, "relative_to": tuple(values["relative_to"])})
