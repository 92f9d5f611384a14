"""An extension of vLLM's workers (`--worker-extension-cls lab_worker.LabWorker`): it loads weights from a directory.

Adapters do not need it, because vLLM loads them itself (`/v1/load_lora_adapter`).

It runs in vLLM's environment, where rlhf_lab is not installed. Written for vLLM 0.32.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from vllm.config import set_current_vllm_config
from vllm.lora.layers import BaseLayerWithLoRA
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

IDENTITY = uuid.uuid4().hex
"""Identifier of this server process: two addresses with the same identity are one server."""


class LabWorker:
    """Methods added to every worker of a server; `POST /collective_rpc` calls them by name."""

    vllm_config: Any
    model_runner: Any

    def lab_describe(self) -> dict[str, Any]:
        """Return the properties of the server that a trainer checks before it uses the server."""
        model = self.vllm_config.model_config
        return {
            "dtype": str(model.dtype).removeprefix("torch."),
            "positions": int(model.max_model_len),
            "logprobs": str(model.logprobs_mode),
            "vocabulary": int(model.get_vocab_size()),
            "identity": IDENTITY,
            "device": str(self.vllm_config.device_config.device_type),
            # converted through text, so that values that JSON does not know become their names
            "config": json.loads(json.dumps(model.hf_text_config.to_dict(), default=str)),
            "adapters": self._adapters(),
            "heads": {"size": int(model.get_head_size()), "known": self._head_sizes()},
        }

    def _head_sizes(self) -> list[int]:
        """Return the supported sizes of attention heads; empty if vLLM itself rejects other sizes at start.

        On a CPU vLLM 0.32 starts with any size, and its engine ends at the first response.
        """
        if self.vllm_config.device_config.device_type != "cpu":
            return []
        from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

        return sorted(CPUAttentionBackend.get_supported_head_sizes())

    def _adapters(self) -> dict[str, Any]:
        """Return the maximum rank of an adapter, 0 if none is accepted, and the layers that adapters may change."""
        settings = self.vllm_config.lora_config
        if settings is None:
            return {"rank": 0, "layers": []}
        manager = self.model_runner.lora_manager._adapter_manager
        fused = manager.packed_modules_mapping  # vLLM fuses q_proj, k_proj and v_proj into one layer qkv_proj
        layers: list[str] = []
        for module in manager.supported_lora_modules:
            layers += fused.get(module, [module])
        return {"rank": int(settings.max_lora_rank), "layers": sorted(layers)}

    def lab_load(self, directory: str) -> dict[str, Any]:
        """Replace all weights by those in the directory's safetensors files, in Hugging Face's format and names.

        Raises:
            FileNotFoundError: the directory has no such files, so the trainer and the server do not share it.
            ValueError: some weights of the model were not in the files.
        """
        files = sorted(Path(directory).glob("*.safetensors"))
        if not files:
            raise FileNotFoundError(f"{directory} has no safetensors files that this server can read")
        model = self.model_runner.get_model()
        with _without_adapters(model), set_current_vllm_config(self.vllm_config), torch.no_grad():
            expected = {name for name, _ in model.named_parameters()}
            initialize_layerwise_reload(model)
            loaded = model.load_weights(_tensors(files))
            finalize_layerwise_reload(model, self.vllm_config.model_config)
            _repack_embeddings(model)
        self.model_runner.reset_lora_state()
        if missing := sorted(expected - set(loaded)):
            raise ValueError(f"{len(missing)} weights of the model were not in the files, such as {missing[0]}")
        return {"loaded": len(loaded)}


@contextmanager
def _without_adapters(model: torch.nn.Module) -> Iterator[None]:
    """Replace the layers that vLLM wrapped for adapters by the original layers while the context is open.

    A model loads weights by the names of its original layers.
    """
    wrapped = []
    for parent in model.modules():
        if isinstance(parent, BaseLayerWithLoRA):  # its own child is the original layer
            continue
        for name, child in parent.named_children():
            if isinstance(child, BaseLayerWithLoRA):
                wrapped.append((parent, name, child))
    for parent, name, child in wrapped:
        setattr(parent, name, child.base_layer)
    try:
        yield
    finally:
        for parent, name, child in wrapped:
            setattr(parent, name, child)


def _tensors(files: list[Path]) -> Iterator[tuple[str, torch.Tensor]]:
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  not a dictionary
                yield name, tensors.get_tensor(name)


def _repack_embeddings(model: torch.nn.Module) -> None:
    """Renew the packed copy of the output head if it is tied to the embedding.

    On a CPU vLLM computes logits from a copy of the weight in another layout. A reload renews the copies of linear
    layers only, so a tied head would keep the old weights.
    """
    for module in model.modules():
        if isinstance(module, VocabParallelEmbedding):
            module.quant_method.process_weights_after_loading(module)
