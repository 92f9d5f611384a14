"""One frozen base in memory for the adapters of several roles: policy, reference, critic, reward models.

Each role has its own module tree (`lora.twin`) around the base tensors of the policy, and its own adapter products. A
reward model is then not merged: it computes x·(W + s·B·A)ᵀ with the shared W. A model is loaded this way if rlhf_lab
trained it as an adapter on the same model that the policy starts from. `Record.why_separate` explains why another model
cannot be.

A sharded policy (FSDP, ZeRO-3) has its full tensors only during its own passes, so they cannot be shared.
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
from rlhf_lab.models.model_files import Record, adapter_dir
from rlhf_lab.models.settings import Stored
from rlhf_lab.models.weights import mark_as_stored, stored_as


@dataclass(frozen=True)
class OneBase:
    """The base of a policy's adapter.

    Attributes:
        model: frozen causal language model without the adapter; it is also the reference.
        note: called with a note about each adapter that cannot use this base.
    """

    model: nn.Module
    note: Callable[[str], None]

    def language_model(self) -> nn.Module:
        """Return a model that shares the tensors of the base, and to which an adapter of its own can be added."""
        return twin(self.model)

    def reward_model(self, source: str, outputs: int, weights: Stored) -> nn.Module | None:
        """Return the frozen reward model in a directory if it was trained as an adapter on this base; else None."""
        adapter = adapter_dir(source)
        record = Record.read(adapter)
        if record is None:  # all its parameters were trained, or another program trained the adapter
            return None
        why_separate = record.why_separate(identity_of(self.model), stored_as(self.model), weights)
        if why_separate:
            self.note(f"{source} is an adapter but needs its own base in memory, {why_separate}")
            return None
        model = self._scalar_model(outputs)
        if model is None:
            self.note(
                f"{source} is an adapter but needs its own base in memory, since {type(self.model).__name__} and "
                "the class for its scalar head have different backbones"
            )
            return None
        model.name_or_path = source
        add_products(model, adapter, shared=True)
        return model

    def _scalar_model(self, outputs: int) -> Any:
        """Return a model with a scalar head around the base's tensors; None if its backbone differs."""
        base: Any = self.model
        config = copy.deepcopy(base.config)
        config.num_labels = outputs
        # built on the meta device without random draws: the trunk is replaced, and only the head gets values
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            model = AutoModelForSequenceClassification.from_config(
                config, attn_implementation=config._attn_implementation
            )
        trunk: Any = twin(base.base_model)
        # the head must be on the same trunk class, or its scores would be computed differently
        if type(model.base_model) is not type(trunk):
            return None
        setattr(model, model.base_model_prefix, trunk)
        device = next(trunk.parameters()).device
        model.score.weight = nn.Parameter(torch.zeros(model.score.weight.shape, device=device))
        mark_as_stored(model, stored_as(base))
        return model.eval().requires_grad_(False)
