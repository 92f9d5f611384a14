"""Log of the looks (interim tests) of a study that stops when its claims are decided.

It records which seeds were seen, and what they decided. The log is part of study.json. A decision in it stands,
whatever later seeds show.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

NOT_NEEDED = "not needed"
"""Status of a job that was skipped, because no undecided claim compares its level."""


@dataclass(frozen=True)
class Look:
    """Test of all claims after a number of seeds.

    Attributes:
        seeds: number of seeds, a complete prefix of the study's list of seeds.
        decided: index of a claim → its verdict, for the claims that this look decides.
        levels: levels of the compared setting that get the next seed, because an open claim compares them.
    """

    seeds: int
    decided: Mapping[int, str]
    levels: tuple[str, ...]


@dataclass(frozen=True)
class LookLog:
    """All looks of a study, in order.

    Attributes:
        seeds: all seeds that the study may run, in the order in which they run.
        looks: the looks so far.
        stopped: reason why no further seed runs; empty while the study is unfinished.
    """

    seeds: tuple[int, ...]
    looks: tuple[Look, ...] = ()
    stopped: str = ""

    def before(self, seed: int) -> Look | None:
        """Return the last look before a seed runs; None if there is none."""
        position = self.seeds.index(seed)
        earlier = [look for look in self.looks if look.seeds <= position]
        return earlier[-1] if earlier else None

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dict. JSON has only texts as keys."""
        looks = [{**asdict(look), "decided": {str(c): v for c, v in look.decided.items()}} for look in self.looks]
        return {**asdict(self), "looks": looks}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LookLog:
        looks = []
        for look in values["looks"]:
            decided = {int(claim): str(verdict) for claim, verdict in look["decided"].items()}
            looks.append(Look(int(look["seeds"]), decided, tuple(look["levels"])))
        return cls(tuple(values["seeds"]), tuple(looks), str(values["stopped"]))
