"""Sampling from a divided model that no device holds whole: each block is gathered only while it computes.

Whoever computes with the model's tree goes through its blocks in their order: by the forward pass of the tree itself,
or by `BlockByBlock.gathered`. Each such pass gathers every block once, and all processes must take part in that. So the
first block of a pass asks who computes, and a process whose own rows are finished gathers along until nobody does.
Passes need not be alike: one process may read its prompts while another takes a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from rlhf_lab.core import ranks
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.models.divided import SKELETON, blocks, gather, plain, settle
from rlhf_lab.models.skeleton import Skeleton

# keys in a model's `__dict__`, see `divided.ROOT`
SAMPLED_BY_BLOCK = "_rlhf_lab_sampled_by_block"
GATHERER = "_rlhf_lab_gatherer"


def sample_by_block(model: nn.Module) -> None:
    """Let `readable` gather a divided model block by block."""
    model.__dict__[SAMPLED_BY_BLOCK] = True


@contextmanager
def readable(model: nn.Module) -> Iterator[nn.Module]:
    """A model to sample from for the time of the block. All processes must enter, those without rows of their own too.

    It is `plain(model)`; or, after `sample_by_block`, a tree with the parameters outside the blocks alone, whose
    `gatherer` has those of the blocks.
    """
    if SAMPLED_BY_BLOCK not in model.__dict__:
        with plain(model) as whole_model:
            yield whole_model
        return
    gatherer = BlockByBlock(model, model.__dict__[SKELETON])
    with gatherer.ready():
        yield gatherer.tree
        gatherer.join()  # after an error nobody joins: this process ends, and its launcher ends the others


def gatherer(tree: nn.Module) -> BlockByBlock | None:
    """What gathers the blocks of a model that `readable` gave; None for a model that is whole."""
    found: BlockByBlock | None = tree.__dict__.get(GATHERER)
    return found


class BlockByBlock:
    """Gathers the blocks of a divided model one at a time.

    Attributes:
        tree: the model's tree, whose parameters are there while they are gathered.
    """

    def __init__(self, model: nn.Module, skeleton: Skeleton):
        settle(model)
        self.tree = skeleton.tree
        self._skeleton = skeleton
        self._divided = dict(model.named_parameters())
        names = {id(parameter): name for name, parameter in self.tree.named_parameters()}
        self._names_of_block: dict[nn.Module, list[str]] = {}  # in the order in which blocks compute
        inner: set[nn.Module] = set()
        for block in blocks(self.tree):
            if block not in inner:
                inner |= set(block.modules())
                self._names_of_block[block] = [names[id(parameter)] for parameter in block.parameters()]
        in_blocks = {name for block_names in self._names_of_block.values() for name in block_names}
        self._outside = [name for name in names.values() if name not in in_blocks]
        self._order = list(self._names_of_block)
        self._next = 0  # place of the block that computes next

    @contextmanager
    def ready(self) -> Iterator[None]:
        """In this block the tree has the parameters outside the blocks, and its forward pass gathers the others."""
        hooks = []
        self._fill(self._outside)
        for block in self._order:
            hooks.append(block.register_forward_pre_hook(lambda block, _: self._enter(block)))
            hooks.append(block.register_forward_hook(lambda block, _, __: self._leave(block)))
        self.tree.__dict__[GATHERER] = self
        try:
            yield
        finally:
            del self.tree.__dict__[GATHERER]
            for hook in hooks:
                hook.remove()
            self._skeleton.clear()

    @contextmanager
    def gathered(self, block: nn.Module) -> Iterator[None]:
        """In this block the parameters of a transformer block are there."""
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
        place = self._order.index(block)
        if place != self._next:
            raise ConfigError(
                f"{type(self.tree).__name__} computes its blocks in another order than it lists them, so processes "
                "cannot gather them together; use sharding.sampling=whole"
            )
        if place == 0:
            ranks.any_of(True)  # whoever has finished gathers along in this pass
        self._next = (place + 1) % len(self._order)
        self._fill(self._names_of_block[block])

    def _leave(self, block: Any) -> None:
        self._skeleton.clear(self._names_of_block[block])

    def _fill(self, names: list[str]) -> None:
        dtype = self._skeleton.dtype
        with torch.inference_mode(False), torch.no_grad():  # divided tensors cannot be read in inference mode
            self._skeleton.fill((name, gather(self._divided[name], dtype)) for name in names)
