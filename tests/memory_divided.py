"""An update that several processes make together, in every strategy of `sharding=…`: estimated and measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from live_bytes import LiveBytes
from memory_cases import Found, build, token_batch
from torch.distributed.device_mesh import init_device_mesh

from rlhf_lab.config import registry
from rlhf_lab.core import ranks
from rlhf_lab.core.files import make_dir, write_json
from rlhf_lab.memory.devices import work_of
from rlhf_lab.memory.sizes import ModelShape
from rlhf_lab.memory.state import WEIGHT, Precision, Training, trained_state
from rlhf_lab.memory.work import ComputePrecision, Rows, sampling, update_peak
from rlhf_lab.models.by_block import sample_by_block
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.models.lora import add_adapter
from rlhf_lab.models.settings import LoRA
from rlhf_lab.models.sharded import divide
from rlhf_lab.sampling.local import LocalSampler
from rlhf_lab.sampling.settings import Local
from rlhf_lab.training.optim import TrainedPart
from rlhf_lab.training.settings import TrainingSettings
from rlhf_lab.training.sharding.settings import FullySharded, Replicated, Single, Zero
from rlhf_lab.training.totals import LossOutput

SETTINGS: dict[str, Single] = {
    "ddp": Replicated(),
    "fsdp_grad_op": FullySharded(reshard_after_forward=False),
    "fsdp_full": FullySharded(),
    "zero1": Zero(stage=1),
    "zero2": Zero(stage=2),
    "zero3": Zero(stage=3),
}


def cases() -> dict[str, tuple[Training, int]]:
    """Work → how a model is trained, in how many passes."""
    found: dict[str, tuple[Training, int]] = {}
    precisions: tuple[Precision, ...] = ("float32", "bfloat16")
    for precision in precisions:
        found[f"SFT, {precision}"] = Training(precision), 1
        found[f"SFT, checkpointing, {precision}"] = Training(precision, checkpointing=True), 1
        found[f"SFT, adapter of rank 16, {precision}"] = Training(precision, rank=16), 1
    return {**found, "SFT in two passes, float32": (Training(), 2)}


class Sft:
    """As much of an algorithm as an engine asks for."""

    def __init__(self, model: Any, training: Training):
        self.model = model
        self.settings = TrainingSettings(optimizer=training.optimizer, lr=1e-4, muon_lr=1e-4)

    def parts(self) -> dict[str, TrainedPart]:
        return {"model": TrainedPart(self.model, 1e-4, None)}

    def frozen_modules(self) -> list[Any]:
        return []

    def loss(self, batch: Any) -> LossOutput:
        return LossOutput(-token_logps(self.model, batch).logps_N, {})


def divided_update(strategy: str, shape: ModelShape, rows: Rows, training: Training, micros: int) -> Found:
    """The third step of SFT in `micros` passes on `rows` each, of one of the processes that are here, on the CPU."""
    runtime = SimpleNamespace(dtype=training.precision)
    low = training.precision == "bfloat16"
    run: Any = SimpleNamespace(device="cpu", config=SimpleNamespace(runtime=runtime))
    settings = replace(SETTINGS[strategy], checkpointing=training.checkpointing)
    batch = token_batch(rows, shape.vocabulary)
    with LiveBytes() as meter:
        model = build(shape)
        if training.rank:
            add_adapter(model, LoRA(rank=training.rank), 0)
        engine = registry.build("sharding", settings, Sft(model, training), run)

        def step() -> None:
            for k in range(micros):
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
                    out = engine.loss(batch, last=k + 1 == micros)
                engine.backward(out.loss_N.sum() * (ranks.world() / micros / len(out.loss_N)))
                del out
            engine.clip()
            engine.step(1.0)

        step()
        step()
        meter.restart()
        step()
        measured = meter.peak
    engine.close()
    state = trained_state(shape, training, strategy, ranks.world())
    how = ComputePrecision(training.precision, checkpointing=training.checkpointing)
    work = work_of(shape, rows, how, training, strategy, ranks.world())
    needed = state.resident_bytes + update_peak([work], state.copy, state.gradient_bytes, accumulates=micros > 1)
    return Found(strategy, needed, measured)


def divided_sampling(shape: ModelShape, prompts: int, group: int, prompt: int, new: int, *, by_block: bool) -> Found:
    """Responses that never end, from a policy that these processes shard; `prompts` are of each of them."""
    model = build(shape)
    rows = token_batch(Rows(prompts * ranks.world(), prompt, 1), shape.vocabulary)
    requested = [row[:prompt] for row in rows.tokens_BT.tolist()]
    sampler = LocalSampler(Local(max_new_tokens=new, batch_rows=prompts * group), stop_ids=[-1])
    divide(model, init_device_mesh("cpu", (ranks.world(),)), reshard=True)
    if by_block:
        sample_by_block(model)
    shards = [p.to_local() for p in model.parameters()]  # type: ignore[attr-defined]
    with LiveBytes(shards) as meter:
        meter.restart()
        sampler.sample(model, requested, group, 0)
        measured = meter.peak
    model_copies = WEIGHT * (shape.parameters // ranks.world())
    gathered = WEIGHT * (shape.root if by_block else shape.parameters)
    needed = sampling(shape, prompts, group, prompt, new, 4, full_block=by_block * WEIGHT * shape.block)
    return Found("sampling", model_copies + gathered + needed.total, measured)


def measure_sampling(out: Path, shapes: Mapping[str, ModelShape]) -> None:
    """Sampling in full and block by block of each shape, as rows of a JSON file."""
    rows = []
    for name, shape in shapes.items():
        for by_block in (False, True):
            one = divided_sampling(shape, 2, 4, 20, 20, by_block=by_block)
            rows.append({"family": name, "by_block": by_block, "estimated": one.estimated, "measured": one.measured})
    make_dir(out.parent)
    write_json(out, rows)


def measure_all(out: Path, plan: Iterable[tuple[str, str]], shape: ModelShape, rows: Rows) -> None:
    """Each (strategy, work) of `plan`, as rows of a JSON file."""
    found = []
    for strategy, work in plan:
        one = divided_update(strategy, shape, rows, *cases()[work])
        found.append({"strategy": strategy, "work": work, "estimated": one.estimated, "measured": one.measured})
    make_dir(out.parent)
    write_json(out, found)
