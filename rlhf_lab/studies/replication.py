"""What differs between the seeds of a study, and so what its intervals speak for. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rlhf_lab.config import Config

DRAWN_BY = {"facts_seed": "facts", "seed": "corpus and labels", "test_seed": "test prompts"}
"""Seeds of an embedded world → what they draw."""


@dataclass(frozen=True)
class Replication:
    """What a study draws anew for every seed, besides training.

    Attributes:
        data: "redrawn": an embedded world, everything anew. "kept": some of it is the same for all seeds. "given": the
            data are files. "unknown": the study was written before this was recorded.
        kept: settings that keep a part of the data the same, such as "data.test_seed=0".
    """

    data: Literal["redrawn", "kept", "given", "unknown"]
    kept: tuple[str, ...] = ()

    @property
    def shares_prompts(self) -> bool:
        """Whether all seeds are tested on the same prompts."""
        return self.data == "given" or any(setting.startswith("data.test_seed=") for setting in self.kept)

    def sentence(self, seeds: Sequence[int]) -> str:
        """What the intervals of a study over these seeds speak for."""
        named = f"{len(seeds)} seeds ({', '.join(map(str, seeds))})"
        if self.data == "redrawn":
            return (
                f"Each of the {named} draws its own facts, corpus, labels and test prompts and trains on them: "
                "intervals speak for another run of the whole experiment."
            )
        if self.data == "given":
            return (
                f"The data are given and the same for all {named}: intervals speak for another training run on "
                "them, tested on other prompts of the same kind, and not for other training data."
            )
        if self.data == "kept":
            names = [setting.removeprefix("data.").partition("=")[0] for setting in self.kept]
            same = " and ".join(DRAWN_BY[name] for name in names)
            return (
                f"{', '.join(self.kept)}: {same} are the same for all {named}, and intervals do not cover what "
                "others would change."
            )
        return (
            f"All {named} may share one corpus and one test set (the study does not say): intervals then cover "
            "training alone."
        )

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "kept": list(self.kept)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any] | None) -> Replication:
        return cls(values["data"], tuple(values.get("kept") or ())) if values else UNKNOWN


UNKNOWN = Replication("unknown")


def replication(configs: Sequence[Config]) -> Replication:
    """What the jobs of a study draw anew for every seed. Data that only some jobs read from files count as given."""
    if not all(config.data.drawn for config in configs):
        return Replication("given")
    kept = []
    several = len({config.seed for config in configs}) > 1
    for name in DRAWN_BY:
        drawn = {config.seed: getattr(config.data, name, config.seed) for config in configs}
        if several and len(set(drawn.values())) < len(drawn):
            kept.append(f"data.{name}={next(iter(drawn.values()))}")
    return Replication("kept", tuple(kept)) if kept else Replication("redrawn")
