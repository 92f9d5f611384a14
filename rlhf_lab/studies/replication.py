"""Sources of variation between the seeds of a study, and so what its intervals cover. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rlhf_lab.config.overrides import level_name
from rlhf_lab.stages.artifacts import External, Stage

DRAWN_BY = {"facts_seed": "facts", "seed": "corpus and labels", "test_seed": "test prompts"}
"""Seed of an embedded world → the part of the data that it generates."""


@dataclass(frozen=True)
class Replication:
    """Parts of a study that are generated anew for every seed, besides training.

    Attributes:
        data: "redrawn": an embedded world, everything is generated anew. "kept": part of it is the same for all seeds.
            "given": the data are files.
        kept: settings that keep something equal for several seeds: "data.test_seed=0", "needs.policy=gpt2".
    """

    data: Literal["redrawn", "kept", "given"]
    kept: tuple[str, ...] = ()

    @property
    def shares_prompts(self) -> bool:
        return self.data == "given" or any(setting.startswith("data.test_seed") for setting in self.kept)

    def sentence(self, seeds: Sequence[int]) -> str:
        seeds_in_words = f"{len(seeds)} seeds ({', '.join(map(str, seeds))})"
        if self.data == "redrawn":
            text = (
                f"Each of the {seeds_in_words} generates its own facts, corpus, labels and test prompts and trains on "
                "them: intervals describe another run of the whole experiment."
            )
        elif self.data == "given":
            text = (
                f"The data are given and the same for all {seeds_in_words}: intervals describe another training run "
                "on them, tested on other prompts of the same kind, and not other training data."
            )
        else:
            prompts = "; test prompts count as a sample from others of their kind" if self.shares_prompts else ""
            keys = {setting.partition("=")[0] for setting in self.kept}
            kept_data = list_in_words([selected for name, selected in DRAWN_BY.items() if f"data.{name}" in keys])
            text = (
                f"Parts of the data ({kept_data}) are the same for all {seeds_in_words}: intervals do not cover the "
                f"effect of changing them{prompts}."
            )
        kept_besides_data = [setting for setting in self.kept if not setting.startswith("data.")]
        if not kept_besides_data:
            return text
        return f"{text} The same for several seeds: {list_in_words(kept_besides_data)}."

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "kept": list(self.kept)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Replication:
        """Read the output of `to_dict`."""
        return cls(values["data"], tuple(values["kept"]))


def list_in_words(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def replication(stages: Sequence[Stage], jobs: Sequence[Mapping[str, Any]]) -> Replication:
    """Determine what the jobs of a study generate anew for every seed.

    Jobs that agree in every swept setting except the seed are repetitions of each other. A setting with fewer distinct
    values than such jobs have seeds is the same for several of them.
    """
    repetitions: dict[str, dict[int, dict[str, str]]] = {}  # swept settings without the seed → seed → its sources
    for stage, job in zip(stages, jobs, strict=True):
        swept = level_name({key: value for key, value in job.items() if key != "seed"})
        repetitions.setdefault(swept, {})[stage.config.seed] = _sources_of_randomness(stage)
    kept: dict[str, set[str]] = {}  # setting → the values that several seeds have in common
    for sources_by_seed in repetitions.values():
        keys = dict.fromkeys(name for sources in sources_by_seed.values() for name in sources)
        for key in keys:
            values = [sources[key] for sources in sources_by_seed.values() if key in sources]
            if len(set(values)) < len(values):
                kept.setdefault(key, set()).update(values)
    _drop_implied_settings(kept)
    # A setting is named with its value if that is the same for all seeds.
    settings = tuple(f"{key}={next(iter(values))}" if len(values) == 1 else key for key, values in kept.items())
    if not all(stage.config.data.is_generated for stage in stages):
        return Replication("given", settings)
    keeps_data = any(key.startswith("data.") for key in kept)
    return Replication("kept" if keeps_data else "redrawn", settings)


def _sources_of_randomness(last: Stage) -> dict[str, str]:
    """Return the sources of a job's randomness: the seeds of its data and stages, and models from elsewhere."""
    sources = _data_seeds(last)
    for stage in last.upstream():
        if stage is not last:
            seeds = {"seed": str(stage.config.seed), **_data_seeds(stage)}
            sources |= {f"stages.{stage.recipe}.{name}": value for name, value in seeds.items()}
        for role, need in stage.needs.items():
            if isinstance(need, External):
                sources[f"needs.{role}"] = need.source
    return sources


def _data_seeds(stage: Stage) -> dict[str, str]:
    """Return the seeds that generate a stage's data: setting → value; empty for data from files."""
    data = stage.config.data
    if not data.is_generated:
        return {}
    return {f"data.{name}": str(getattr(data, name)) for name in DRAWN_BY if hasattr(data, name)}


def _drop_implied_settings(kept: dict[str, set[str]]) -> None:
    """Drop from `kept` the settings that have no effect of their own or repeat another entry.

    Test prompts are generated within a world, so an equal test seed alone does not make them equal. Upstream stages
    repeat the settings of the data.
    """
    # Seed that generates the world: the data's facts_seed if they have one, else their seed.
    world_seed = "data.facts_seed" if any(key.endswith("facts_seed") for key in kept) else "data.seed"
    world_redrawn = world_seed not in kept
    if world_redrawn:
        kept.pop("data.test_seed", None)
    for key in [key for key in kept if key.startswith("stages.")]:
        _, _, setting = key.removeprefix("stages.").partition(".")  # stages.RECIPE.SETTING
        if setting in kept or (setting == "data.test_seed" and world_redrawn):
            del kept[key]


def seed_words(seeds: Iterable[Any]) -> str:
    """Return seeds as words: "seed 0", or "seeds 0, 1"."""
    numbers = list(map(str, seeds))
    return f"{'seed' if len(numbers) == 1 else 'seeds'} {', '.join(numbers)}"
