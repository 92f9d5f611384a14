"""Tiny random checkpoints of model families beside GPT-2 and Llama, with the tokenizer of a toy corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from support import gpt2_tokenizer, toy_rows
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    MixtralConfig,
    Phi3Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

TEXTS = [text for row in toy_rows(40) for text in row]
SIZES: dict[str, Any] = {
    "hidden_size": 96,  # √96 is no bfloat16 number, by which Gemma multiplies embeddings
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 256,
}
WIDE_HEADS = SIZES | {"head_dim": 24}  # 4 heads of 24 are wider than the model
EXPERTS = {"num_experts_per_tok": 2}
FAMILIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "gemma": (GemmaConfig, WIDE_HEADS),
    "gemma2": (Gemma2Config, WIDE_HEADS | {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}),
    "gemma3": (Gemma3TextConfig, WIDE_HEADS),
    "mixtral": (MixtralConfig, WIDE_HEADS | EXPERTS | {"num_local_experts": 4}),
    "qwen3": (Qwen3Config, WIDE_HEADS),
    "qwen3_moe": (Qwen3MoeConfig, WIDE_HEADS | EXPERTS | {"num_experts": 5, "moe_intermediate_size": 48}),
    "phi3": (Phi3Config, SIZES),
}


def config(family: str, **changes: Any) -> Any:
    kind, sizes = FAMILIES[family]
    ids = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1}
    return kind(**{**sizes, "vocab_size": 97, **ids, **changes})


def random_model(family: str, **changes: Any) -> nn.Module:
    """Weights with which logits differ by several nats."""
    torch.manual_seed(0)
    model: nn.Module = AutoModelForCausalLM.from_config(config(family, **changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, 0.1)
    return model


@torch.no_grad()
def forward_logps(model: Any, rows: list[tuple[list[int], list[int]]]) -> torch.Tensor:
    """Row by row through Hugging Face's forward: float64 log-softmax of the logits before each response token."""
    logps = []
    for prompt, response in rows:
        table_TV = model(torch.tensor([prompt + response])).logits[0].double().log_softmax(-1)
        logps.append(table_TV[len(prompt) - 1 : -1].gather(1, torch.tensor(response)[:, None])[:, 0])
    return torch.cat(logps)


def save(family: str, directory: Path) -> Path:
    """A checkpoint with a tokenizer."""
    tokenizer = gpt2_tokenizer(TEXTS)
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    random_model(family, vocab_size=len(tokenizer), **ids).save_pretrained(directory)  # type: ignore[operator]
    tokenizer.save_pretrained(directory)
    return directory
