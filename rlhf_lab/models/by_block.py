"""Sampling from a sharded model that fits on no single device: each block is all-gathered only while it computes.

A pass goes through the model's blocks in order, either in the forward pass of the module tree or by
`BlockByBlock.gathers_full_block`. Each pass all-gathers every block once, and all processes must take part in that. At
the first block of a pass the processes therefore exchange which of them still compute. A process whose own rows are
finished joins the all-gathers until no process computes any more. Passes may differ: one process can read its prompts
while another decodes a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from rlhf_lab.core import ranks
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.models.sharded import SKELETON, blocks, free_gathered, gather, unsharded
from rlhf_lab.models.skeleton import Skeleton

# keys in a model's `__dict__`, see `sharded.ROOT`
SAMPLED_BY_BLOCK = "_rlhf_lab_sampled_by_block"
GATHERER = "_rlhf_lab_gatherer"


def sample_by_block(model: nn.Module) -> None:
    """Mark a sharded model so that `gather_while_reading` all-gathers it block by block instead of as a whole."""
    model.__dict__[SAMPLED_BY_BLOCK] = True


@contextmanager
def gather_while_reading(model: nn.Module) -> Iterator[nn.Module]:
    """Yield a model to sample from. All processes must enter, including those without rows of their own.

    The model is `unsharded(model)`. After `sample_by_block` it is instead a module tree that has only the parameters
    outside the blocks, and whose `gatherer` all-gathers the blocks.
    """
    if SAMPLED_BY_BLOCK not in model.__dict__:
        with unsharded(model) as full_model:
            yield full_model
        return
    gatherer = BlockByBlock(model, model.__dict__[SKELETON])
    with gatherer.ready():
        yield gatherer.tree
        gatherer.join()  # not called after an error: this process exits, and its launcher stops the others


def gather_context_of(tree: nn.Module) -> BlockByBlock | None:
    """Return the gatherer of a model that `gather_while_reading` yielded; None if the model has full parameters."""
    found: BlockByBlock | None = tree.__dict__.get(GATHERER)
    return found


class BlockByBlock:
    """Gatherer of the blocks of a sharded model, one block at a time.

    Attributes:
        tree: module tree of the model; a block has parameters only while it is gathered.
    """

    def __init__(self, model: nn.Module, skeleton: Skeleton):
        free_gathered(model)
        self.tree = skeleton.tree
        self._skeleton = skeleton
        self._sharded = dict(model.named_parameters())
        names = {id(parameter): name for name, parameter in self.tree.named_parameters()}
        self._names_of_block: dict[nn.Module, list[str]] = {}  # parameter names, in the order in which blocks compute
        inner: set[nn.Module] = set()
        for block in blocks(self.tree):
            if block not in inner:  # a block within a block is gathered with the outer one
                inner |= set(block.modules())
                block_names = [names[id(parameter)] for parameter in block.parameters()]
                self._names_of_block[block] = block_names
        in_blocks = {name for block_names in self._names_of_block.values() for name in block_names}
        self._outside = [name for name in names.values() if name not in in_blocks]
        self._order = list(self._names_of_block)
        self._next = 0  # index of the block that computes next

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Fill the module tree with the parameters outside the blocks; add hooks that gather each block as it runs."""
        hooks = []
        self._fill(self._outside)
        for block in self._order:
            hooks.append(block.register_forward_pre_hook(lambda block, _: self._enter(block)))
            hooks.append(block.register_forward_hook(lambda block, _, __: self._leave(block)))
        # in `__dict__`, because `setattr` would register it as a part of the model
        self.tree.__dict__[GATHERER] = self
        try:
            yield
        finally:
            del self.tree.__dict__[GATHERER]
            for hook in hooks:
                hook.remove()
            self._skeleton.clear()

    @contextmanager
    def gathers_full_block(self, block: nn.Module) -> Iterator[None]:
        """Keep the parameters of a transformer block gathered while the context is open."""
        self._enter(block)
        try:
            yield
        finally:
            self._leave(block)

    def join(self) -> None:
        """Take part in the passes of the other processes until all have finished theirs."""
        while ranks.any_of(False):
            for block in self._order:
                self._fill(self._names_of_block[block])
                self._leave(block)

    def _enter(self, block: Any) -> None:
        position = self._order.index(block)
        if position != self._next:
            raise ConfigError(
                f"{type(self.tree).__name__} computes its blocks in another order than it lists them, so the processes "
                "cannot gather them together; set sharding.sampling=whole"
            )
        if position == 0:
            ranks.any_of(True)  # processes that have finished their rows take part in this pass
        self._next = (position + 1) % len(self._order)
        self._fill(self._names_of_block[block])

    def _leave(self, block: Any) -> None:
        self._skeleton.clear(self._names_of_block[block])

    def _fill(self, names: list[str]) -> None:
        dtype = self._skeleton.dtype
        with torch.inference_mode(False), torch.no_grad():  # sharded tensors cannot be read in inference mode
            # a generator: each parameter is gathered only when `fill` asks for it
            self._skeleton.fill((name, gather(self._sharded[name], dtype)) for name in names)
