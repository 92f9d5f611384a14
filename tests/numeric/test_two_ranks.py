"""Two gloo processes that share a step's forward passes and add their gradients get what one process gets.

One normaliser makes it so: a step's loss is the sum over its micro-batches divided by the step's global count of
tokens, replies or pairs, wherever they are computed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from support import ONE_LAYER, SMALL_WORLD, planned

from rlhf_lab import registry
from rlhf_lab.train.run import Run

POLICY = ("reward=length", "needs.reward=null", "algorithm.prompts_per_iteration=8", "algorithm.iterations=2")
CASES = {
    "sft": ("sft",),
    "kto": ("dpo", "algorithm=kto", "needs.reward=null"),
    "ppo": ("ppo", *POLICY, "algorithm.critic=zero", "algorithm.critic_warmup=0", "algorithm.epochs=1"),
    "grpo": ("grpo", *POLICY, "algorithm.group_size=2", "algorithm.epochs=1"),
}


def gradients(name: str, policy: str, folder: Path, rank: int, ranks: int) -> list[torch.Tensor]:
    """Gradients of the first step over every `ranks`-th forward pass from `rank`."""
    recipe, *overrides = CASES[name]
    needs = () if recipe == "sft" else (f"needs.policy={policy}",)
    size = ("algorithm.batch_size=8", "algorithm.micro_batch_tokens=120", "data.train_pairs=32")
    config = planned(recipe, *overrides, *SMALL_WORLD, *ONE_LAYER, *size, *needs, f"outputs={folder}").config
    folder.mkdir(exist_ok=True)
    algorithm = registry.build("algorithm", config.algorithm, Run(folder, config, {"policy": policy} if needs else {}))
    algorithm.begin()
    batch = algorithm.collect(0)
    assert len(batch.micro) >= 2
    parts = [part.module for part in algorithm.parts().values()]
    for micro in batch.micro[rank::ranks]:
        (algorithm.loss(micro).loss_N.sum() / batch.units).backward()
    trained = [p for module in parts for p in module.parameters()]
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in trained]


def worker(rank: int, name: str, policy: str, folder: Path, port: int) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    found = gradients(name, policy, folder / str(rank), rank, 2)
    for gradient in found:
        dist.all_reduce(gradient)
    if rank == 0:
        torch.save(found, folder / "gradients.pt")
    dist.destroy_process_group()


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_add_up_to_one(name, policy, tmp_path):
    expected = gradients(name, str(policy), tmp_path / "single", 0, 1)
    arguments: Any = (name, str(policy), tmp_path, free_port())
    mp.spawn(worker, arguments, nprocs=2)
    found = torch.load(tmp_path / "gradients.pt", weights_only=True)
    half = gradients(name, str(policy), tmp_path / "half", 0, 2)
    assert any(not torch.allclose(a, b, atol=1e-5) for a, b in zip(expected, half, strict=True))  # half is not enough
    for one, both in zip(expected, found, strict=True):
        assert torch.allclose(one, both, atol=1e-6, rtol=1e-4)
