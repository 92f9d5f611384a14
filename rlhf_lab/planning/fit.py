"""The smallest change that makes a stage fit, found by planning the stage again with each change."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from rlhf_lab import config, registry, schema
from rlhf_lab.artifacts import CARRIED, Stage
from rlhf_lab.errors import ConfigError
from rlhf_lab.overrides import put
from rlhf_lab.planning import copies as held
from rlhf_lab.planning.device import Device, processes
from rlhf_lab.planning.stages import StagePlan, plan_stage

Change = dict[str, Any]
MOST_PROCESSES = 1024
ADAPTER_RANK = 16


def smallest_change(stage: Stage, device: Device, *, root: bool = True) -> tuple[list[str], StagePlan] | None:
    """Overrides that make a stage fit, and the plan with them; None where nothing that is tried does.

    One change alone is tried first, in the order of `_changes`; then the changes that need no further device, one after
    another, and last fully sharded training with them.

    Args:
        root: whether the stage is the one that the command names; settings of one before it go below `stages`.
    """
    singles = list(_changes(stage, device))
    for change in singles:
        found = _fits(stage, [change], device)
        if found:
            return _overrides(stage, [change], root), found
    together = _accumulated(singles)
    if device.cuda and together and stage.config.algorithm.shares_work:
        together += [[*together[-1], shards] for shards in _sharded(stage)]
    for changes in together:
        if _fits(stage, changes, device):
            needed = _needed(stage, changes, singles, device)
            found = _fits(stage, needed, device)
            return None if found is None else (_overrides(stage, needed, root), found)
    return None


def _needed(stage: Stage, changes: list[Change], singles: list[Change], device: Device) -> list[Change]:
    """The changes without those that it fits without, the last dropped first, each as mild as it may be."""
    kept = list(changes)
    for change in reversed(changes):
        fewer = [other for other in kept if other is not change]
        kept = fewer if _fits(stage, fewer, device) else kept
    for place, change in enumerate(kept):
        milder = ([*kept[:place], other, *kept[place + 1 :]] for other in singles if other.keys() == change.keys())
        kept = next((tried for tried in milder if _fits(stage, tried, device)), kept)
    return kept


def _changes(stage: Stage, device: Device) -> Iterator[Change]:
    """Changes that cost little first: time, then a different arithmetic, devices, another kind of training."""
    settings, sharding = stage.config.algorithm, stage.config.sharding
    if settings.makes_model:
        rows, each = held.micro_rows(stage, processes(stage.config, device)), held.rows_per_unit(stage)
        tokens, least = rows.rows * rows.width, each * rows.width
        while tokens > least:
            tokens = max(tokens // 2, least)
            yield {"algorithm.micro_batch_tokens": tokens}
        if not sharding.checkpointing:
            yield {"sharding.checkpointing": True}
    if stage.config.rollout.batch_rows > 64 and held.sampled(stage):
        yield {"rollout.batch_rows": 64}
    if device.cuda and stage.config.runtime.dtype == "float32":
        yield {"runtime.dtype": "bfloat16"}
    if device.cuda and settings.shares_work:
        yield from _sharded(stage)
    if settings.makes_model and not stage.config.model.lora.rank and stage.needs.get("policy"):
        yield {"model.lora.rank": ADAPTER_RANK}
    if device.cuda and sharding.reference == "resident" and any(m.reference for m in held.copies(stage)):
        yield {"sharding.reference": "offload"}


def _sharded(stage: Stage) -> Iterator[Change]:
    """Fully sharded training on 2, 4, 8, … devices."""
    now, count = getattr(stage.config.sharding, "processes", 1), 2
    while count <= MOST_PROCESSES:
        if count > now:
            yield {"sharding": "fsdp_full", "sharding.processes": count}
        count *= 2


def _accumulated(singles: list[Change]) -> list[list[Change]]:
    """Growing sets of changes without further devices, the last value of each setting."""
    last: dict[str, Change] = {}
    for change in singles:
        if "sharding" not in change:
            last[next(iter(change))] = change
    found = list(last.values())
    return [found[:n] for n in range(2, len(found) + 1)]


def changed(stage: Stage, changes: list[Change]) -> Stage:
    """The stage with other settings; what it starts from stays. Raises ConfigError where they do not go together."""
    values = config.to_values(stage.config)
    for change in changes:
        for key, value in change.items():
            if key == "sharding":
                values[key] = _fully_sharded(values[key])
            else:
                put(values, key, value)
    return dataclasses.replace(stage, config=config.check(values))


def _fully_sharded(now: dict[str, Any]) -> dict[str, Any]:
    """`sharding=fsdp_full` with the settings that other kinds have too."""
    defaults = schema.defaults(registry.settings_class("sharding", "fsdp"))
    return {"kind": "fsdp", **defaults, **{k: now[k] for k in ("checkpointing", "reference") if k in now}}


def _fits(stage: Stage, changes: list[Change], device: Device) -> StagePlan | None:
    try:
        other = changed(stage, changes)
    except ConfigError:
        return None
    count = processes(other.config, device)
    found = plan_stage(other, count, cuda=device.cuda)
    share = device.share(count)
    return found if share is not None and found.peak <= share else None


def _overrides(stage: Stage, changes: list[Change], root: bool) -> list[str]:
    """Changes as the command line takes them."""
    found = []
    for key, value in (item for change in changes for item in change.items()):
        carried = key.partition(".")[0] in CARRIED
        prefix = "" if root or carried else f"stages.{stage.recipe}."
        found.append(f"{prefix}{key}={str(value).lower() if isinstance(value, bool) else value}")
    return found


def least_devices(stage: Stage, memory: int, *, frugal: bool = False) -> int | None:
    """Fewest fully sharded processes, in powers of two, on GPUs of `memory` bytes; 1 is a single one, not sharded.

    Args:
        frugal: with bfloat16, activation checkpointing, one row or pair at a time, and 64 sampled replies.
    """
    card = Device("card", memory, cuda=True)
    single = dataclasses.replace(stage.config, sharding=registry.settings_class("sharding", "none")())
    alone = dataclasses.replace(stage, config=single)
    saving = list(_frugal(alone)) if frugal else []
    if _fits(alone, saving, card):
        return 1
    if not stage.config.algorithm.shares_work:
        return None
    counts = (change for change in _sharded(alone) if _fits(alone, [change, *saving], card))
    return next((int(change["sharding.processes"]) for change in counts), None)


def _frugal(stage: Stage) -> Iterator[Change]:
    """What costs time alone."""
    if stage.config.algorithm.makes_model:
        yield {"algorithm.micro_batch_tokens": held.rows_per_unit(stage) * held.step_rows(stage, 1).width}
        yield {"sharding.checkpointing": True}
    yield {"runtime.dtype": "bfloat16"}
    yield {"rollout.batch_rows": min(64, stage.config.rollout.batch_rows)}
