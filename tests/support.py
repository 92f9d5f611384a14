"""Helpers of several test modules: tiny stages, tiny Hugging Face folders, toy corpora."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from rlhf_lab.config import compose
from rlhf_lab.config.root import Config
from rlhf_lab.core.console import console
from rlhf_lab.core.episodes import Episode, Task
from rlhf_lab.main import main
from rlhf_lab.stages import artifacts

ONE_LAYER = ("model.hidden=16", "model.layers=1", "model.heads=2")
SMALL_WORLD = (
    "data=mini_hh_small",
    "data.train_pairs=96",
    "data.test_pairs=24",
    "evaluation.prompts=6",
    "evaluation.samples_per_prompt=2",
    "evaluation.pairs=12",
    "rollout.max_new_tokens=12",
)


def checked(recipe: str, *overrides: str) -> Config:
    return compose.check_command([f"+recipe={recipe}", *overrides]).configs[0]


def planned(recipe: str, *overrides: str) -> artifacts.Stage:
    return artifacts.plan(checked(recipe, *overrides), recipe)


def check_each(cases: Iterable[Any], check: Callable[[Any], object]) -> None:
    """Run a check on every case, and fail once with the name and the error of each case that fails.

    For checks of many files or options that are alike: one test instead of hundreds, which cost more than the checks.
    """
    names, errors = [], []
    for case in cases:
        names.append(str(case))
        try:
            check(case)
        except Exception as error:
            errors.append(f"{case}: {type(error).__name__}: {error}")
    assert names, "there is nothing to check"
    if errors:
        pytest.fail(f"{len(errors)} of {len(names)} fail\n" + "\n".join(errors), pytrace=False)


def once(folder: Path, make: Callable[[Path], object]) -> Path:
    """A folder that `make` fills for the first of the test processes that ask for it."""
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            make(folder)
    return folder


def prompt_text(question: str) -> str:
    return f"\n\nHuman: {question}\n\nAssistant:"


def said(prompts: Sequence[str], replies: Sequence[str], **columns: Sequence[Any]) -> list[Episode]:
    """Replies that are known as text, as a reward reads them; `columns` are further columns of their rows."""
    facts = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    facts = facts or [{} for _ in prompts]
    return [Episode(Task(p, f), p, reply) for p, f, reply in zip(prompts, facts, replies, strict=True)]


def write_pairs(path: Path, rows: Sequence[tuple[str, str, str]]) -> Path:
    """(question, chosen, rejected) rows as a JSONL file for `data=pairs`."""
    lines = [json.dumps({"prompt": prompt_text(q), "chosen": c, "rejected": r}) for q, c, r in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


def toy_rows(count: int, seed: int = 0) -> list[tuple[str, str, str]]:
    """Distinct questions; the chosen reply is many words, the rejected one few."""
    rng = np.random.default_rng(seed)
    words = np.array(["red", "green", "blue", "warm", "cold", "tall", "small", "old"])

    def reply(length: int) -> str:
        return " ".join(rng.choice(words, length))

    return [
        (f"what about {i} {' '.join(rng.choice(words, 2))}", reply(rng.integers(6, 9)), reply(rng.integers(2, 5)))
        for i in range(count)
    ]


def plant(monkeypatch: Any, build: Any) -> Any:
    """Register a reward of a plug-in for one test; `build(settings, run)` makes it. Returns its settings."""
    from dataclasses import dataclass

    from rlhf_lab.config import registry
    from rlhf_lab.rewards.term import TermSettings

    monkeypatch.setattr(registry, "_settings", dict(registry._settings))
    monkeypatch.setattr(registry, "_implementations", dict(registry._implementations))

    @registry.register("reward", "planted", implementation="rlhf_lab.rewards.rules.gold")
    @dataclass(frozen=True)
    class Planted(TermSettings):
        pass

    monkeypatch.setattr("rlhf_lab.rewards.rules.gold.build", build)
    return Planted()


class Stopped(Exception):
    """What `stop_at` raises."""


def stop_at(monkeypatch: Any, algorithm: type, at: int | None) -> None:
    """Raise once the samples of step `at` are made; None takes the trap away."""
    monkeypatch.undo()
    if at is None:
        return
    collect = algorithm.collect  # type: ignore[attr-defined]

    def trap(self: Any, step: int) -> Any:
        batch = collect(self, step)
        if step == at:
            raise Stopped
        return batch

    monkeypatch.setattr(algorithm, "collect", trap)


def model_tensors(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def bpe(texts: Sequence[str], vocabulary: int, specials: Sequence[str], **kwargs: Any) -> Any:
    """A byte-level BPE tokenizer trained on `texts`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=list(specials), initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, **kwargs)


def gpt2_tokenizer(texts: Sequence[str], vocabulary: int = 400) -> Any:
    """Like GPT-2's: one special token that is BOS and EOS, no pad, nothing added to a text."""
    end = "<|endoftext|>"
    return bpe(texts, vocabulary, [end], bos_token=end, eos_token=end)


def llama_tokenizer(texts: Sequence[str], vocabulary: int = 400) -> Any:
    """Like Llama's: BOS put before every text, EOS of its own, no pad."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = bpe(texts, vocabulary, ["<s>", "</s>"], bos_token="<s>", eos_token="</s>")
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tokenizer.bos_token_id)]
    )
    return tokenizer


def save_tiny(family: str, tokenizer: Any, folder: Path) -> Path:
    """A randomly initialised Hugging Face checkpoint of a family with its tokenizer, as a user would have it."""
    import torch
    from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen2Config

    torch.manual_seed(0)
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    if family == "gpt2":
        config: Any = GPT2Config(vocab_size=len(tokenizer), n_embd=32, n_layer=2, n_head=2, n_positions=256, **ids)
    else:
        config = (Qwen2Config if family == "qwen2" else LlamaConfig)(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            tie_word_embeddings=False,
            **ids,
        )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def command_inside(folder: Path, *arguments: str, cores: int = 1) -> tuple[int, str]:
    """(exit status, what was printed) of a command line that runs in a folder, in this process.

    Args:
        cores: with more than one, stages that do not wait for each other are built in processes of their own.
    """
    before, here = dict(os.environ), Path.cwd()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)}
    os.chdir(folder)
    try:
        with pytest.MonkeyPatch.context() as patch, console.capture() as printed:
            patch.setattr(sys, "argv", ["rlhf_lab", *arguments])
            patch.setattr("rlhf_lab.stages.side_by_side.usable_cores", lambda: cores)
            with pytest.raises(SystemExit) as end:
                main()
    finally:
        os.chdir(here)
        os.environ.clear()
        os.environ.update(before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return int(end.value.code or 0), printed.get()
