"""One frozen base in memory for the adapters of several roles: policy, reference, critic, reward models.

Each role has a module tree of its own (`lora.twin`) around the policy's base tensors, and its own products beside them.
A reward model is not merged then: it computes x·(W + s·B·A)ᵀ with the W that everyone reads. What the lab trained as an
adapter on the very model that the policy starts from is loaded so; `Record.why_apart` says what is not.

A divided policy (FSDP, ZeRO-3) has its tensors only during its own passes, so nobody shares them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForSequenceClassification

from rlhf_lab.models.lora import add_products, identity_of, twin
from rlhf_lab.models.model_files import Record, adapter_folder
from rlhf_lab.models.settings import Stored
from rlhf_lab.models.weights import mark_as_stored, stored_as


@dataclass(frozen=True)
class OneBase:
    """The base of a policy's adapter.

    Attributes:
        model: the causal language model without the adapter, frozen; it is the reference too.
        note: called with a remark about an adapter that cannot lie on it.
    """

    model: nn.Module
    note: Callable[[str], None]

    def language_model(self) -> nn.Module:
        """The base as another model, which can have an adapter of its own."""
        return twin(self.model)

    def reward_model(self, source: str, outputs: int, weights: Stored) -> nn.Module | None:
        """The reward model in a folder, frozen, if it was trained as an adapter on this base; else None.

        Args:
            outputs: of its head.
            weights: how the role is to be stored.
        """
        adapter = adapter_folder(source)
        record = Record.read(adapter)
        if record is None:  # trained as a whole, or not by the lab
            return None
        why_apart = record.why_apart(identity_of(self.model), stored_as(self.model), weights)
        if why_apart:
            self.note(f"{source} is an adapter, and has a base of its own in memory, {why_apart}")
            return None
        model = self._scalar_model(outputs)
        if model is None:
            self.note(
                f"{source} is an adapter, and has a base of its own in memory, since {type(self.model).__name__} and "
                "the class for its scalar head have other backbones"
            )
            return None
        model.name_or_path = source
        add_products(model, adapter, shared=True)
        return model

    def _scalar_model(self, outputs: int) -> Any:
        """A model with a scalar head around the base's tensors; None where transformers builds its trunk otherwise."""
        base: Any = self.model
        config = copy.deepcopy(base.config)
        config.num_labels = outputs
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            model = AutoModelForSequenceClassification.from_config(
                config, attn_implementation=config._attn_implementation
            )
        trunk: Any = twin(base.base_model)
        if type(model.base_model) is not type(trunk):
            return None
        setattr(model, model.base_model_prefix, trunk)
        device = next(trunk.parameters()).device
        model.score.weight = nn.Parameter(torch.zeros(model.score.weight.shape, device=device))
        mark_as_stored(model, stored_as(base))
        return model.eval().requires_grad_(False)
