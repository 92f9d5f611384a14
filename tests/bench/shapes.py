"""Devices and models of the benchmark: two families, random weights, sizes that suit the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

SIZES = {"1M": (128, 4, 4), "10M": (320, 8, 5), "124M": (768, 12, 12), "0.4B": (1024, 24, 16)}  # hidden, layers, heads


@dataclass
class Scale:
    """Sizes of the work, and its arithmetic.

    Args:
        sizes: a small and a large model.
        vocabularies: of the training steps.
        pairs, rows: per DPO and SFT step.
        prompt_tokens, response_tokens: (prompt, shortest and longest reply) of training; of the samplers.
        prompts, group: of the sampler.
        bfloat16: training runs under autocast, and the other samplers in bfloat16.
    """

    device: str = "cpu"
    sizes: tuple[str, str] = ("1M", "10M")
    vocabularies: tuple[int, ...] = (1000, 32000)
    pairs: int = 16
    rows: int = 32
    prompt_tokens: int = 32
    response_tokens: tuple[int, int] = (24, 48)
    prompts: int = 8
    group: int = 8
    bfloat16: bool = False

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.bfloat16)


SCALES = {
    "cpu": Scale(),
    "cuda": Scale("cuda", ("124M", "0.4B"), (32000,), 16, 32, 128, (96, 192), 16, 16, True),
}
scale = Scale()
"""The one in use; `use` fills it in."""


def use(device: str) -> None:
    """Take the scale of a device."""
    vars(scale).update(vars(SCALES[device]))


def build_model(family: str, size: str, vocabulary: int) -> nn.Module:
    hidden, layers, heads = SIZES[size]
    common: dict[str, Any] = {"vocab_size": vocabulary, "eos_token_id": None, "bos_token_id": None}
    config: Any
    if family == "llama":
        config = LlamaConfig(
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=hidden * 8 // 3 // 8 * 8,
            tie_word_embeddings=True,
            **common,
        )
    else:
        config = GPT2Config(
            n_embd=hidden,
            n_layer=layers,
            n_head=heads,
            n_positions=512,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            **common,
        )
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval().to(scale.device)
