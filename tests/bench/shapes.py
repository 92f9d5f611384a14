"""The models the benchmark uses: two families, two sizes, random weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

SIZES = {"1M": (128, 4, 4), "10M": (320, 8, 5)}  # hidden, layers, heads


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
            n_positions=256,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            **common,
        )
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
