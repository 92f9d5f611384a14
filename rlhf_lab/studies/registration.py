"""Registration of a study's claims: what was claimed, when, and which seeds had been looked at by then.

A claim is registered when its study first runs, under a hash of its meaning. The settings of the jobs that it compares,
without their seeds, are part of the meaning. A claim that is added or changed after a look is registered with the seeds
that had been seen, and only other seeds can decide it. Claims that were registered at
the same state of knowledge form one family for Holm's adjustment. A claim that is withdrawn after a look still counts
in its family, because otherwise dropping the claims that look hopeless would make the others easier to confirm.

The registration is kept in `outputs/registrations/NAME.json`. The name stands for what the jobs compute, so studies of
the same jobs share it even if their claims are typed on the command line and their directories differ. study.json has a
copy of the registration as of the last run, which the page shows.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlhf_lab.config.overrides import level_name
from rlhf_lab.config.study_settings import ARM
from rlhf_lab.core.errors import ArtifactError
from rlhf_lab.core.files import fingerprint, make_dir, read_json, read_object, write_json

DIRECTORY = "registrations"
FIXED_LIST = "one test of a fixed list of seeds, 5 % after Holm"
SEQUENTIAL = "a test after every seed until decided, 5 % after Holm"
RANKS = "rank correlation over settings, 95 % interval"
MINIMUM, MINIMUM_LOW = 0.7, 0.4
"""Claimed size of a rank correlation in each panel and pooled, and bound that the interval of the pooled one passes."""
RATE = "rate over runs, interval clustered by seed, 95 % after Bonferroni"


@dataclass(frozen=True)
class RegisteredClaim:
    """A claim as it was registered.

    Attributes:
        hash: SHA-256 of the canonical JSON of `meaning`.
        meaning: what the claim says, see `claim_meaning`, `correlation_meaning` and `rate_meaning`.
        date: time of the registration.
        seen: seeds that had been looked at by then; they cannot decide the claim.
        withdrawn: time at which a run no longer had the claim; empty for a claim that stands.
    """

    hash: str
    meaning: Mapping[str, Any]
    date: str
    seen: tuple[int, ...] = ()
    withdrawn: str = ""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RegisteredClaim:
        return cls(values["hash"], values["meaning"], values["date"], tuple(values["seen"]), values["withdrawn"])


@dataclass(frozen=True)
class SeedLook:
    """One look at results: the time at which a page first showed them, and the seeds that had results."""

    date: str
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Registration:
    """All claims of a study, and all looks at its results.

    Attributes:
        name: name of the file.
        claims: the claims of the last run, in the order of the study's `predicts`.
        correlations, rates: the same for the study's `correlations` and `rates`.
        withdrawn: claims of all kinds that were looked at and that the last run no longer has.
        looks: looks at growing or different sets of seeds, in order.
    """

    name: str = ""
    claims: tuple[RegisteredClaim, ...] = ()
    correlations: tuple[RegisteredClaim, ...] = ()
    rates: tuple[RegisteredClaim, ...] = ()
    withdrawn: tuple[RegisteredClaim, ...] = ()
    looks: tuple[SeedLook, ...] = ()

    @property
    def seen(self) -> tuple[int, ...]:
        return tuple(sorted({seed for look in self.looks for seed in look.seeds}))

    @property
    def entries(self) -> list[RegisteredClaim]:
        return [*self.claims, *self.correlations, *self.rates, *self.withdrawn]

    def revised(self, meanings: Sequence[Mapping[str, Any]], date: str) -> Registration:
        """Return the registration with these claims as the present ones.

        Claims that are registered already keep their entry. A claim that vanished is withdrawn, or forgotten if no seed
        was looked at since it was registered.
        """
        seen = self.seen
        entries = {entry.hash: entry for entry in self.entries}
        hashes = [fingerprint(meaning) for meaning in meanings]
        present = []
        for claim_hash, meaning in zip(hashes, meanings, strict=True):
            entry = entries.get(claim_hash) or RegisteredClaim(claim_hash, meaning, date, seen)
            present.append(dataclasses.replace(entry, withdrawn=""))
        vanished = [entry for entry in entries.values() if entry.hash not in hashes]
        # A claim is forgotten if no seed was looked at after it was registered.
        looked_at = [entry for entry in vanished if not set(seen) <= set(entry.seen)]
        withdrawn = tuple(dataclasses.replace(entry, withdrawn=entry.withdrawn or date) for entry in looked_at)
        claims, correlations, rates = (
            tuple(entry for entry in present if kind_of(entry.meaning) == kind)
            for kind in ("claim", "correlation", "rate")
        )
        return Registration(self.name, claims, correlations, rates, withdrawn, self.looks)

    def looked(self, seeds: Iterable[int], date: str) -> Registration:
        """Return the registration with one more look, unless the last look was at the same seeds."""
        shown = tuple(sorted(set(seeds)))
        if not shown or (self.looks and self.looks[-1].seeds == shown):
            return self
        return dataclasses.replace(self, looks=(*self.looks, SeedLook(date, shown)))

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Registration:
        claims, correlations, rates, withdrawn = (
            tuple(map(RegisteredClaim.from_dict, values[name]))
            for name in ("claims", "correlations", "rates", "withdrawn")
        )
        looks = tuple(SeedLook(look["date"], tuple(look["seeds"])) for look in values["looks"])
        return cls(str(values["name"]), claims, correlations, rates, withdrawn, looks)


def claim_meaning(plan: Mapping[str, Any], claim: Mapping[str, Any]) -> dict[str, Any]:
    """Return what one of the `predicts` of a plan (study.json) says, however it is written; sorted by key."""
    is_equivalence = claim["direction"] == "same"
    published = claim.get("published")
    level = level_name(claim["level"])
    versus = baseline_level(plan) if claim.get("versus") is None else level_name(claim["versus"])
    # An arm with other settings is another level, whatever its name.
    settings = plan.get("arms") or {}
    by = None if claim.get("by") is None else level_name(claim["by"])
    pools_arms = by is None and plan.get("by") == ARM
    arms = {name: settings[name] for name in sorted(settings) if pools_arms or name in (level, versus, by)}
    jobs = [
        job
        for job in plan["jobs"]
        if level_name(job["overrides"].get(plan["compare"])) in (level, versus)
        and (by is None or level_name(job["overrides"].get(plan["by"])) == by)
    ]
    return {
        **({"arms": arms} if arms else {}),
        **_job_settings(jobs),
        "by": None if by is None else {plan["by"]: by},
        "compare": plan["compare"],
        "direction": claim["direction"],
        "level": level,
        "margin": float(claim["margin"]) if is_equivalence else None,
        "method": SEQUENTIAL if plan.get("until") else FIXED_LIST,
        "metric": claim["metric"],
        "published": None if published is None else float(published),
        "versus": versus,
    }


def correlation_meaning(plan: Mapping[str, Any], claim: Mapping[str, Any]) -> dict[str, Any]:
    """Return what one of the `correlations` of a plan says, in the form of `claim_meaning`.

    The swept values are part of it, because they are the sample: leaving out a setting after a look changes the claim.
    """
    return {
        **_all_arms(plan),
        **_job_settings(plan["jobs"]),
        "by": plan.get("by") or None,
        "direction": claim["direction"],
        "method": RANKS,
        "metric": claim["metric"],
        "minimum": MINIMUM,
        "minimum_low": MINIMUM_LOW,
        "outcome": claim["outcome"],
        "settings": _swept_values(plan),
        "stronger_than": claim.get("stronger_than"),
    }


def rate_meaning(plan: Mapping[str, Any], claim: Mapping[str, Any]) -> dict[str, Any]:
    """Return what one of the `rates` of a plan says, in the form of `correlation_meaning`."""
    return {
        **_all_arms(plan),
        **_job_settings(plan["jobs"]),
        "direction": claim["direction"],
        "method": RATE,
        "metric": claim["metric"],
        "settings": _swept_values(plan),
        "than": float(claim["than"]),
    }


def _all_arms(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of all arms as a part of a claim's meaning; empty for a study without arms."""
    arms = plan.get("arms") or {}
    return {"arms": {name: arms[name] for name in sorted(arms)}} if arms else {}


def _job_settings(jobs: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return a hash of the settings of jobs as a part of a claim's meaning; empty without jobs."""
    settings = sorted({job["settings"] for job in jobs})
    return {"job_settings": fingerprint(settings)} if settings else {}


def _swept_values(plan: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return swept key → its values in a study, both sorted, without seeds."""
    settings: dict[str, set[str]] = {}
    for job in plan["jobs"]:
        for key, value in job.get("overrides", {}).items():
            if key != "seed":
                settings.setdefault(key, set()).add(level_name(value))
    return {key: sorted(settings[key]) for key in sorted(settings)}


def kind_of(meaning: Mapping[str, Any]) -> Literal["claim", "correlation", "rate"]:
    """Return the kind of a claim from its meaning."""
    if "outcome" in meaning:
        return "correlation"
    return "rate" if "than" in meaning else "claim"


def baseline_level(plan: Mapping[str, Any]) -> str:
    """Return the baseline of a plan (study.json): the level that it names, else that of its first job."""
    if plan.get("baseline") is not None:
        return level_name(plan["baseline"])
    levels = [job.get("overrides", {}).get(plan["compare"]) for job in plan["jobs"]]
    # A baseline of null is only allowed if it is a level.
    return level_name(None if None in levels else levels[0])


def register(directory: Path, name: str, plan: Mapping[str, Any]) -> Registration:
    """Register the claims of a study that is about to run, whose plan will be written, and return its registration.

    Raises:
        ArtifactError: the file of the registration is damaged.
    """
    path = _file(directory, name)
    date = now()
    registration = _read(path) or Registration(name)
    # A killed command has written results of jobs, but no page and therefore no look. Results in other stores are known
    # to the author of the claims alone.
    known = {*_completed_seeds(directory.parent, name), *plan.get("seen_seeds", ())}
    if not known <= set(registration.seen):
        registration = registration.looked({*known, *registration.seen}, date)
    meanings = [claim_meaning(plan, claim) for claim in plan["predicts"]]
    meanings += [correlation_meaning(plan, claim) for claim in plan.get("correlations") or ()]
    meanings += [rate_meaning(plan, claim) for claim in plan.get("rates") or ()]
    registration = registration.revised(meanings, date)
    make_dir(path.parent)
    write_json(path, registration.to_dict())
    return registration


def record_look(directory: Path, jobs: Iterable[int]) -> Registration:
    """Record that the results of jobs (indices) are shown. Return the registration; empty for the study of a search."""
    plan = read_object(directory / "study.json")
    if "registration" not in plan:
        return Registration()
    own = Registration.from_dict(plan["registration"])
    seeds = {job["index"]: job["seed"] for job in plan["jobs"]}
    path = _file(directory, own.name)
    # The file is missing if the study directory was moved.
    shared = _read(path)
    looked = (shared or own).looked([seeds[index] for index in jobs], now())
    if shared is not None and looked != shared:
        write_json(path, looked.to_dict())
    # The claims of another study of the same jobs are not those of this one.
    own_looked = dataclasses.replace(own, looks=looked.looks)
    if own_looked != own:
        write_json(directory / "study.json", plan | {"registration": own_looked.to_dict()})
    return own_looked


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _file(directory: Path, name: str) -> Path:
    """Return the file of a registration: next to the directory of all studies."""
    return directory.parent.parent / DIRECTORY / f"{name}.json"


def _read(path: Path) -> Registration | None:
    """Return the registration in a file, or None if it does not exist. Raise ArtifactError if it is damaged."""
    if not path.exists():
        return None
    try:
        return Registration.from_dict(read_json(path))
    except (KeyError, TypeError):
        raise ArtifactError(
            f"{path} is not a readable registration of claims; restore it from a copy (study.json has one under "
            "`registration`), or delete it, which registers the claims anew"
        ) from None


def _completed_seeds(studies: Path, name: str) -> set[int]:
    seeds = set()
    for file in studies.glob("*/study.json"):
        plan = read_object(file)
        if (plan.get("registration") or {}).get("name") != name:
            continue
        for job in plan["jobs"]:
            record = read_object(file.parent / "jobs" / str(job["index"]) / "job.json")
            if record.get("status") == "completed":
                seeds.add(int(job["seed"]))
    return seeds
