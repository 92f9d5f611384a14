"""What differs between the seeds of a study, and so what its intervals speak for. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rlhf_lab.config.overrides import level_name
from rlhf_lab.stages.artifacts import External, Stage

DRAWN_BY = {"facts_seed": "facts", "seed": "corpus and labels", "test_seed": "test prompts"}
"""Seeds of an embedded world → what they draw."""


@dataclass(frozen=True)
class Replication:
    """What a study draws anew for every seed, besides training.

    Attributes:
        data: "redrawn": an embedded world, everything anew. "kept": some of it is the same for all seeds. "given": the
            data are files. "unknown": the study was written before this was recorded.
        kept: settings that keep something the same for several seeds: "data.test_seed=0", "needs.policy=gpt2".
    """

    data: Literal["redrawn", "kept", "given", "unknown"]
    kept: tuple[str, ...] = ()

    @property
    def shares_prompts(self) -> bool:
        """Whether all seeds are tested on the same prompts."""
        return self.data == "given" or any(setting.startswith("data.test_seed") for setting in self.kept)

    def sentence(self, seeds: Sequence[int]) -> str:
        """What the intervals of a study over these seeds speak for."""
        named = f"{len(seeds)} seeds ({', '.join(map(str, seeds))})"
        if self.data == "redrawn":
            text = (
                f"Each of the {named} draws its own facts, corpus, labels and test prompts and trains on them: "
                "intervals speak for another run of the whole experiment."
            )
        elif self.data == "given":
            text = (
                f"The data are given and the same for all {named}: intervals speak for another training run on them, "
                "tested on other prompts of the same kind, and not for other training data."
            )
        elif self.data == "kept":
            prompts = "; test prompts count as drawn from others of their kind" if self.shares_prompts else ""
            same = _listed([drawn for name, drawn in DRAWN_BY.items() if self._keeps(name)])
            text = (
                f"Of the data, {same} are the same for all {named}: intervals do not cover what others would "
                f"change{prompts}."
            )
        else:
            return (
                f"All {named} may share one corpus and one test set (the study does not say): intervals then cover "
                "training alone."
            )
        others = [setting for setting in self.kept if not setting.startswith("data.")]
        return f"{text} The same for several seeds: {_listed(others)}." if others else text

    def _keeps(self, name: str) -> bool:
        return any(setting.partition("=")[0] == f"data.{name}" for setting in self.kept)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "kept": list(self.kept)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any] | None) -> Replication:
        return cls(values["data"], tuple(values.get("kept") or ())) if values else UNKNOWN


UNKNOWN = Replication("unknown")


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def replication(stages: Sequence[Stage], jobs: Sequence[Mapping[str, Any]]) -> Replication:
    """What the jobs of a study draw anew for every seed.

    Jobs that agree in everything that is swept but the seed are repetitions of one another. A setting that takes fewer
    values than such jobs have seeds is the same for several of them.

    Args:
        stages: the last stage of each job.
        jobs: what each job sweeps.
    """
    groups: dict[str, dict[int, dict[str, str]]] = {}
    for stage, job in zip(stages, jobs, strict=True):
        others = level_name({key: value for key, value in job.items() if key != "seed"})
        groups.setdefault(others, {})[stage.config.seed] = _sources(stage)
    kept: dict[str, set[str]] = {}
    for sources in groups.values():
        for key in dict.fromkeys(name for found in sources.values() for name in found):
            values = [found[key] for found in sources.values() if key in found]
            if len(set(values)) < len(values):
                kept.setdefault(key, set()).update(values)
    _forget_lone_prompts(kept)
    named = tuple(f"{key}={next(iter(values))}" if len(values) == 1 else key for key, values in kept.items())
    if not all(stage.config.data.drawn for stage in stages):
        return Replication("given", named)
    return Replication("kept" if any(key.startswith("data.") for key in kept) else "redrawn", named)


def _sources(last: Stage) -> dict[str, str]:
    """What a job's randomness comes from: seeds of the data and of every stage, and models that are not built."""
    sources = _data_seeds(last)
    for stage in last.upstream():
        if stage is not last:
            own = {"seed": str(stage.config.seed), **_data_seeds(stage)}
            sources |= {f"stages.{stage.recipe}.{name}": value for name, value in own.items()}
        sources |= {f"needs.{role}": need.source for role, need in stage.needs.items() if isinstance(need, External)}
    return sources


def _data_seeds(stage: Stage) -> dict[str, str]:
    """Setting → value, of the seeds that draw a stage's data; none for data that are given."""
    data = stage.config.data
    return {f"data.{name}": str(getattr(data, name)) for name in DRAWN_BY if data.drawn and hasattr(data, name)}


def _forget_lone_prompts(kept: dict[str, set[str]]) -> None:
    """Prompts are drawn in a world: a seed of theirs alone does not keep them. Nor is what follows from the data named
    once more for every stage."""
    world = "data.facts_seed" if any(key.endswith("facts_seed") for key in kept) else "data.seed"
    if world not in kept:
        kept.pop("data.test_seed", None)
    for key in [key for key in kept if key.startswith("stages.")]:
        _, _, own = key.removeprefix("stages.").partition(".")
        if own in kept or (own == "data.test_seed" and world not in kept):
            del kept[key]
