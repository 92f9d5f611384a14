"""Measures: what a world knows about a response or an episode.

A world lists its measures once, in its attribute `measures`. `Corpus.measure` names the columns that the world returns:
a declared measure has its own name, any other column is `measure/<name>`. Evaluations, rollouts, re-scoring, reports
and trackers take every column that they find.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from rlhf_lab.core import metrics
from rlhf_lab.core.arrays import FloatArray
from rlhf_lab.core.errors import DataError
from rlhf_lab.core.files import read_json
from rlhf_lab.core.metrics import Metric


@dataclass(frozen=True)
class Measure(Metric):
    """A number that a world knows about each response or episode. Its mean is a metric of the same name.

    Attributes:
        logged: False for a detail that only the world's own annotator and judges read.
    """

    logged: bool = True


GOLD = Measure(
    "gold",
    "true reward of a sampled reply, gold points; on real data the score of needs.gold, in its own unit",
    title="gold reward",
    better="higher",
    column="gold",
    relative_to=("gold",),
)
CORRECT = Measure(
    "correct",
    "share of sampled replies whose final answer is right (data with verifiable answers only)",
    title="accuracy of samples",
    better="higher",
    column="correct",
    kind="rate",
    by_category=True,
)
VERBOSE = Measure(
    "verbose",
    "share of replies the world calls verbose (affirmations + fillers + closings ≥ 3)",
    title="verbose",
    better="lower",
    phrase="verbose rate",
    column="verbose",
    kind="rate",
)
GARBLE = Measure(
    "garble",
    "share of replies with an unreadable sentence",
    title="garbled",
    better="lower",
    phrase="garble rate",
    column="garble",
    kind="rate",
)
VERIFIED = Measure(
    "verified",
    "mean score of the verifier that checks the replies (data.verifier, or the reward's), 0…1; `correct` is the "
    "share of replies with a score of 1",
    title="verified",
    better="higher",
    phrase="verifier's score",
)
VERIFIED_PART = Measure(
    "verified/<part>",
    "mean of a part of the verifier's score, over the replies where it is known",
    better="higher",
)
CALLS = Measure(
    "calls",
    "calls of tools per episode (data whose environment counts them)",
    title="calls per episode",
    column="calls",
)
UNDECLARED = Measure(
    "measure/<name>",
    "mean of a further measure that the data's own world or environment returns, in its unit",
    column="<name>",
)

COMMON = (GOLD, VERBOSE, GARBLE, CORRECT)
"""Measures that have a column in every evaluation.jsonl: null where the world does not know them."""
STANDARD = (*COMMON, VERIFIED, VERIFIED_PART, CALLS)
"""Measures that any world may return without declaring them."""

ROW = ("policy", "prompt_id", "sample_id", "prompt", "response", "conversation", "category")
"""Columns of evaluation.jsonl that describe a row; no measure may have such a name."""


def details(**meanings: str) -> tuple[Measure, ...]:
    """Measures that are not logged, from the meaning of each."""
    return tuple(Measure(name, meaning, logged=False) for name, meaning in meanings.items())


def named(truth: Mapping[str, FloatArray], declared: Iterable[Measure]) -> dict[str, FloatArray]:
    """The columns that a world returns, by the names they are logged under; details are left out.

    Args:
        declared: measures of the world, beside `STANDARD`.
    """
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
    """`measure/<name>`; a slash within the name, which metrics use for levels, becomes a dot."""
    return UNDECLARED.name.replace("<name>", name.replace("/", "."))


def _find(name: str, known: Iterable[Measure]) -> Measure | None:
    return next((measure for measure in known if measure.matches(name)), None)


def columns_of(row: Iterable[str], declared: Iterable[Measure] | None = None) -> dict[str, Measure]:
    """The columns of a row of evaluation.jsonl that a world has measured, each with its measure, in the row's order.

    Args:
        declared: measures of the row's world; None takes those that any world has declared.
    """
    if declared is None:
        declared = [metric for metric in metrics.declared() if isinstance(metric, Measure)]
    known = (*declared, *STANDARD, UNDECLARED)
    found = {name: _find(name, known) for name in row}
    return {name: measure for name, measure in found.items() if measure is not None and measure.logged}


def declare(world: str, declared: Sequence[Measure]) -> None:
    """Make the measures of a world known. Raises DataError for one that is named like something else that runs log.

    Args:
        world: what is measured, as the message calls it.
    """
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
    """Measures as the manifest of a run keeps them: those that no package of the lab declares."""
    lab = metrics.names(metrics.of_packages())
    return [asdict(measure) for measure in declared if measure.logged and measure.name not in lab]


def recall(folder: Path) -> None:
    """Make the measures known that the manifest of a run declares, so that its numbers get their titles."""
    manifest = read_json(folder / "manifest.json")
    data = manifest.get("data") if isinstance(manifest, dict) else None
    stored = data.get("measures") if isinstance(data, dict) else None
    metrics.declare(_from_stored(values) for values in stored or ())


def _from_stored(values: Mapping[str, Any]) -> Measure:
    known = {item.name for item in fields(Measure)}  # another version may have stored further ones
    own = {name: value for name, value in values.items() if name in known}
    return Measure(**{**own, "relative_to": tuple(values["relative_to"])})
