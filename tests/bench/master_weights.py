"""bfloat16 weights with a float32 master in the optimiser, against rlhf_lab's float32 weights under autocast.

python tests/bench/master_weights.py [--hidden 512] [--layers 8] [--rows 4] [--rounds 5]

Printed are CPU seconds of a step, measured in turns, and bytes per parameter: at the peak of a step, at the end of its
forward pass (weights, rounded copies, moments, activations) and of its backward pass (weights, gradients, moments).
The lab does not train with a master; docs/design/038-one-base.md says why.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.update(OMP_WAIT_POLICY="PASSIVE", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
sys.path.append(str(Path(__file__).parents[1]))

import torch
from live_bytes import LiveBytes
from memory_cases import build, token_batch
from torch import nn

from rlhf_lab.memory.sizes import ModelShape
from rlhf_lab.memory.work import Rows
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.models.sharded import checkpoint_blocks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    hidden = options.hidden
    shape = ModelShape("llama", hidden, options.layers, 8, 8, hidden // 8, 8 * hidden // 3 // 8 * 8, 1000)
    print(f"{shape.parameters / 1e6:.1f}M parameters, {options.rows} rows of 128 tokens")
    for checkpointing in (False, True):
        steps = {name: make(shape, Rows(options.rows, 64, 64), checkpointing) for name, make in KINDS.items()}
        seconds: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(options.rounds):
            for name, step in steps.items():
                began = time.process_time()
                step()
                seconds[name].append(time.process_time() - began)
        for name, step in steps.items():
            sizes = ", ".join(f"{label} {bytes_each:.2f}" for label, bytes_each in measured(step, shape).items())
            print(f"checkpointing {checkpointing}: {name}: {min(seconds[name]):.3f} s, bytes: {sizes}")


def measured(step: Any, shape: ModelShape) -> dict[str, float]:
    """Bytes per parameter at three points of a step."""
    with LiveBytes(step.tensors()) as live:
        step()
        live.restart()
        loss = step.forward()
        forward = live.live
        loss.backward()
        backward = live.live
        step.update()
    points = {"peak": live.peak, "forward": forward, "backward": backward}
    return {name: count / shape.parameters for name, count in points.items()}


class Autocast:
    """float32 weights that each pass rounds, and AdamW."""

    def __init__(self, shape: ModelShape, rows: Rows, checkpointing: bool):
        self.model = build(shape)
        self.batch = token_batch(rows, shape.vocabulary)
        if checkpointing:
            checkpoint_blocks(self.model)
        self.prepare()

    def prepare(self) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)

    def tensors(self) -> list[torch.Tensor]:
        return [*self.model.parameters(), *self.model.buffers(), *moments([self.optimizer])]

    def forward(self) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            return -token_logps(self.model, self.batch).logps_N.mean()

    def __call__(self) -> None:
        self.forward().backward()
        self.update()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


class Master(Autocast):
    """bfloat16 matrices; AdamW on their float32 masters, one after another, then rounded to nearest."""

    def prepare(self) -> None:
        self.masters: dict[nn.Parameter, torch.Tensor] = {}
        self.optimizers: dict[nn.Parameter, torch.optim.Optimizer] = {}
        for parameter in self.model.parameters():
            master = parameter.detach().clone() if parameter.ndim > 1 else parameter
            if parameter.ndim > 1:
                parameter.data = parameter.data.bfloat16()
            self.masters[parameter] = master
            self.optimizers[parameter] = torch.optim.AdamW([master], lr=1e-4, fused=True)
        for module in self.model.modules():
            if isinstance(module, nn.Embedding):  # the residual stream stays float32
                module.register_forward_hook(lambda _, inputs, embedded: embedded.float())

    def tensors(self) -> list[torch.Tensor]:
        own = [*self.model.parameters(), *self.model.buffers(), *self.masters.values()]
        return [*own, *moments(list(self.optimizers.values()))]

    def update(self) -> None:
        for parameter, master in self.masters.items():
            if master is not parameter:
                master.grad = self.gradient(parameter)
            parameter.grad = None if master is not parameter else parameter.grad
            self.optimizers[parameter].step()
            self.optimizers[parameter].zero_grad()
            if master is not parameter:
                parameter.data.copy_(master)

    def gradient(self, parameter: nn.Parameter) -> torch.Tensor:
        assert parameter.grad is not None
        return parameter.grad.float()


class ExactGradients(Master):
    """The same, with gradients added up over micro-batches in float32, as the lab adds them."""

    def prepare(self) -> None:
        super().prepare()
        for parameter, master in self.masters.items():
            if master is not parameter:
                parameter.register_post_accumulate_grad_hook(self.accumulate)

    def accumulate(self, parameter: Any) -> None:
        master = self.masters[parameter]
        gradient = parameter.grad.float()
        master.grad = gradient if master.grad is None else master.grad + gradient
        parameter.grad = None

    def gradient(self, parameter: nn.Parameter) -> torch.Tensor:
        gradient = self.masters[parameter].grad
        assert gradient is not None
        return gradient


def moments(optimizers: list[torch.optim.Optimizer]) -> list[torch.Tensor]:
    return [tensor for each in optimizers for state in each.state.values() for tensor in state.values()]


KINDS: dict[str, Any] = {
    "float32 under autocast": Autocast,
    "bfloat16 and master, gradients bfloat16": Master,
    "bfloat16 and master, gradients float32": ExactGradients,
}


if __name__ == "__main__":
    main()
