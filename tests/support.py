"""Helpers of several test modules: tiny stages, tiny Hugging Face folders, toy corpora."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from rlhf_lab.config import command_line
from rlhf_lab.config.root import Config
from rlhf_lab.core.console import console
from rlhf_lab.core.episodes import Episode, Task
from rlhf_lab.main import main
from rlhf_lab.stages import artifacts
from rlhf_lab.statistics.estimates import Comparison
from rlhf_lab.statistics.inference import paired_difference

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


def paired_over_seeds(a_S: Sequence[float], b_S: Sequence[float]) -> Comparison:
    """Compare two settings that were run with the same seeds."""
    return paired_difference(a_S, b_S, np.arange(len(a_S)))


def checked(recipe: str, *overrides: str) -> Config:
    return command_line.check_command([f"+recipe={recipe}", *overrides]).configs[0]


def planned(recipe: str, *overrides: str) -> artifacts.Stage:
    return artifacts.plan(checked(recipe, *overrides), recipe)


def check_each(cases: Iterable[Any], check: Callable[[Any], object]) -> None:
    """Run a check on every case, and fail once with the name and the error of each case that fails.

    For checks of many similar files or options: one test instead of hundreds, which cost more than the checks.
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


def once(directory: Path, make: Callable[[Path], object]) -> Path:
    """A directory that `make` fills for the first of the test processes that request it."""
    with FileLock(f"{directory}.lock"):
        if not directory.exists():
            make(directory)
    return directory


def prompt_text(question: str) -> str:
    return f"\n\nHuman: {question}\n\nAssistant:"


def said(prompts: Sequence[str], responses: Sequence[str], **columns: Sequence[Any]) -> list[Episode]:
    """Responses that are known as text, as a reward reads them; `columns` are further columns of their rows."""
    metadata = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    metadata = metadata or [{} for _ in prompts]
    return [Episode(Task(p, f), p, response) for p, f, response in zip(prompts, metadata, responses, strict=True)]


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def public_data(*names: str) -> Path:
    """The directory of the public data sets; a test that needs files which are not there is skipped."""
    directory = Path(os.environ.get("RLHF_LAB_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if missing := [name for name in names if not (directory / name).exists()]:
        pytest.skip(f"{', '.join(missing)} is not in {directory}; set RLHF_LAB_DATA to the public data sets")
    return directory


def write_pairs(path: Path, rows: Sequence[tuple[str, str, str]]) -> Path:
    """(question, chosen, rejected) rows as a JSONL file for `data=pairs`."""
    lines = [json.dumps({"prompt": prompt_text(q), "chosen": c, "rejected": r}) for q, c, r in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


def toy_rows(count: int, seed: int = 0) -> list[tuple[str, str, str]]:
    """Distinct questions; the chosen response is many words, the rejected one few."""
    rng = np.random.default_rng(seed)
    words = np.array(["red", "green", "blue", "warm", "cold", "tall", "small", "old"])

    def response(length: int) -> str:
        return " ".join(rng.choice(words, length))

    return [
        (f"what about {i} {' '.join(rng.choice(words, 2))}", response(rng.integers(6, 9)), response(rng.integers(2, 5)))
        for i in range(count)
    ]


def plant(monkeypatch: Any, build: Any) -> Any:
    """Register a reward of a plug-in for one test; `build(settings, run)` makes it. Returns its settings."""
    from dataclasses import dataclass

    from rlhf_lab.config import registry
    from rlhf_lab.rewards.term import TermSettings

    registry.kinds("reward")  # what is loaded first while the registry is a copy would be lost with it
    monkeypatch.setattr(registry, "_settings", dict(registry._settings))
    monkeypatch.setattr(registry, "_implementations", dict(registry._implementations))

    @registry.register("reward", "planted", implementation="rlhf_lab.rewards.rules.gold")
    @dataclass(frozen=True)
    class Planted(TermSettings):
        pass

    monkeypatch.setattr("rlhf_lab.rewards.rules.gold.build", build)
    return Planted()


class Stopped(Exception):
    """Exception that `stop_at` raises."""


def stop_at(monkeypatch: Any, algorithm: type, at: int | None) -> None:
    """Raise once the samples of step `at` exist; None removes the trap."""
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


def same_weights(one: Path, other: Path) -> bool:
    import torch

    a, b = model_tensors(one), model_tensors(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def execute_with_stops(
    monkeypatch: Any, algorithm: type, stage: artifacts.Stage, *stops: int, may_finish: bool = False
) -> dict[str, Any]:
    """Build a stage in several attempts that end once the samples of these steps exist; return its result.

    Args:
        may_finish: True if training may stop by itself before the last of these steps.
    """
    from rlhf_lab.stages.execute import execute

    for stop in stops:
        stop_at(monkeypatch, algorithm, stop)
        try:
            execute(stage)
        except Stopped:
            continue
        assert may_finish, f"the stage is complete before step {stop}"
        break
    stop_at(monkeypatch, algorithm, None)
    return execute(stage)


def assert_equal_models(one: artifacts.Stage, other: artifacts.Stage) -> None:
    """Two stages ended with the same weights, bit for bit."""
    assert same_weights(Path(one.model), Path(other.model))


def disturb(model: Any, size: float = 0.05, seed: int = 0) -> Any:
    """Add noise to the parameters, so that a policy differs from its reference."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += size * torch.randn(parameter.shape, generator=generator)
    return model


def model_tensors(directory: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(directory / "model.safetensors")


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


def save_tiny(family: str, tokenizer: Any, directory: Path) -> Path:
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
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def command_inside(directory: Path, *arguments: str, cores: int = 1) -> tuple[int, str]:
    """Return (exit status, printed text) of a command line that runs in a directory, in this process.

    Args:
        cores: with more than one, stages that do not wait for each other are built in processes of their own.
    """
    before, here = dict(os.environ), Path.cwd()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)}
    os.chdir(directory)
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
