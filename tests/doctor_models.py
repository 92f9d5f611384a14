"""Sound models of several families for the doctor's checks, and one check asked by name."""

from __future__ import annotations

from pathlib import Path

import torch
from support import gpt2_tokenizer, llama_tokenizer, planned, save_tiny, toy_rows, write_pairs

from rlhf_lab.doctor import forward, training
from rlhf_lab.doctor.findings import CheckResult, examine
from rlhf_lab.doctor.subject import ExaminedModel, load_subject
from rlhf_lab.doctor.tokens import TOKENS

TEXTS = [text for row in toy_rows(40) for text in row]
CHECKS = {check.name: check for check in (*TOKENS, *forward.FORWARD, *training.TRAINING)}


def save_all(root: Path) -> dict[str, Path]:
    """Family → its checkpoint, and "data" → a file of pairs."""
    return {
        "gpt2": save_tiny("gpt2", gpt2_tokenizer(TEXTS), root / "gpt2"),
        "llama": save_tiny("llama", llama_tokenizer(TEXTS), root / "llama"),
        "qwen2": _save_relative("qwen2", root / "qwen2"),
        "gemma2": _save_relative("gemma2", root / "gemma2"),
        "data": write_pairs(root / "pairs.jsonl", toy_rows(24)),
    }


def _save_relative(family: str, directory: Path) -> Path:
    """A tiny checkpoint of Qwen 2 (biases in attention), or of Gemma 2 (logits capped, sliding windows)."""
    from transformers import AutoModelForCausalLM, Gemma2Config, Qwen2Config

    tokenizer = gpt2_tokenizer(TEXTS)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"vocab_size": len(tokenizer), "num_key_value_heads": 2, "max_position_embeddings": 256}
    ids = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": tokenizer.bos_token_id, "pad_token_id": None}
    torch.manual_seed(0)
    generated = (
        Qwen2Config(**sizes, **ids)
        if family == "qwen2"
        else Gemma2Config(**sizes, **ids, head_dim=8, final_logit_softcapping=0.1)
    )
    AutoModelForCausalLM.from_config(generated).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def load(folders: dict[str, Path], work: Path, family: str, *overrides: str) -> ExaminedModel:
    """A subject of a family, with overrides of the command."""
    data = ("data=pairs", f"data.path={folders['data']}", "data.test_fraction=0.2")
    model = ("model=hf", f"model.path={folders[family]}", "algorithm.max_length=96")
    return load_subject(planned("sft", *data, *model, "rollout.max_new_tokens=12", *overrides), work)


def ask(name: str, subject: ExaminedModel) -> CheckResult:
    return next(examine("test", [CHECKS[name]], subject))
