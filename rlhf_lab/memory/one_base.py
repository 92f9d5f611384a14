"""Which reward models lie on the base of a stage's policy, by what folders and stages say.

What loading does is in `models/one_base.py`: both ask `Record.why_apart`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_lab.core.files import read_json
from rlhf_lab.memory.sizes import ModelShape
from rlhf_lab.models.model_files import ADAPTER, Record, adapter_folder, base_identity, cached_commit
from rlhf_lab.models.settings import Stored
from rlhf_lab.stages.artifacts import External, Stage


@dataclass(frozen=True)
class Trained:
    """An adapter that a stage has made or is going to make.

    Attributes:
        record: what it was trained on.
        identity: of what the policy starts from, to compare with the record's.
        rank, targets: see `LoRA`.
    """

    record: Record
    identity: str
    rank: int
    targets: Sequence[str] | None

    def parameters(self, shape: ModelShape) -> int:
        return shape.adapter(self.rank, self.targets)


def reward_adapter(stage: Stage, need: Stage | External, member: int = 0) -> Trained | None:
    """The adapter of a reward model's member; None where that was trained as a whole, or not by the lab."""
    start = stage.needs["policy"]
    folder = Path(need.model, "members", str(member)) if member else Path(need.model)
    adapter = adapter_folder(folder)
    if (adapter / ADAPTER).is_file():
        record = Record.read(adapter)
        settings: Any = read_json(adapter / ADAPTER)
        identity = base_identity(start.model, cached_commit(start.model))
        return Trained(record, identity, settings["r"], settings["target_modules"]) if record else None
    if not isinstance(need, Stage) or folder.is_dir():
        return None
    model = need.config.model
    trained_on = need.needs.get(f"policy_{member}") or need.needs.get("policy")
    if not model.lora.rank or trained_on is None:
        return None
    record = Record(trained_on.settings_key, model.stored("policy"))
    return Trained(record, start.settings_key, model.lora.rank, model.lora.targets)


def why_apart(stage: Stage, adapter: Trained, wanted: Stored) -> str:
    """Why an adapter cannot lie on the policy's base, as `Record.why_apart` says it; empty where it can."""
    return adapter.record.why_apart(adapter.identity, stage.config.model.stored("policy"), wanted)
