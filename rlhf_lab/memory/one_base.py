"""Decides from directories and settings which reward models can share the base of a stage's policy.

`models/one_base.py` loads them. Both modules use `Record.why_separate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_lab.core.files import read_json
from rlhf_lab.memory.sizes import ModelShape
from rlhf_lab.models.model_files import ADAPTER, Record, adapter_dir, base_identity, cached_commit
from rlhf_lab.models.settings import Stored
from rlhf_lab.stages.artifacts import External, Stage


@dataclass(frozen=True)
class Trained:
    """An adapter that a stage has trained or will train.

    Attributes:
        record: base that it was trained on.
        identity: identity of the model that the policy starts from, to compare with the record's.
        rank, targets: see `LoRA`.
    """

    record: Record
    identity: str
    rank: int
    targets: Sequence[str] | None

    def parameters(self, shape: ModelShape) -> int:
        return shape.adapter(self.rank, self.targets)


def reward_adapter(stage: Stage, need: Stage | External, member: int = 0) -> Trained | None:
    """Return the adapter of a reward model's member; None if it has no adapter, or one that rlhf_lab did not train."""
    start = stage.needs["policy"]
    directory = Path(need.model, "members", str(member)) if member else Path(need.model)
    adapter = adapter_dir(directory)
    if (adapter / ADAPTER).is_file():
        record = Record.read(adapter)
        settings: Any = read_json(adapter / ADAPTER)
        identity = base_identity(start.model, cached_commit(start.model))
        return Trained(record, identity, settings["r"], settings["target_modules"]) if record else None
    # an external model, or a built stage whose directory has no adapter
    if not isinstance(need, Stage) or directory.is_dir():
        return None
    model = need.config.model
    trained_on = need.needs.get(f"policy_{member}") or need.needs.get("policy")
    if not model.lora.rank or trained_on is None:
        return None
    # stages that are not built have no files yet, so their settings keys are compared instead
    record = Record(trained_on.settings_key, model.stored("policy"))
    return Trained(record, start.settings_key, model.lora.rank, model.lora.targets)


def why_separate(stage: Stage, adapter: Trained, expected: Stored) -> str:
    """Return why an adapter cannot use the policy's base, see `Record.why_separate`; empty if it can."""
    return adapter.record.why_separate(adapter.identity, stage.config.model.stored("policy"), expected)
