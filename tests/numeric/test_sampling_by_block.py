"""Responses of a policy whose blocks two processes gather one at a time equal those of one process with all blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from processes import together
from support import planned
from torch.distributed.device_mesh import init_device_mesh
from transformers import AutoModelForCausalLM, Gemma3TextConfig, GPT2Config, LlamaConfig, Qwen3Config

from rlhf_lab.core import ranks
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import read_json, write_json
from rlhf_lab.models import by_block
from rlhf_lab.models import sharded as divided
from rlhf_lab.models.lora import add_adapter
from rlhf_lab.models.settings import LoRA
from rlhf_lab.sampling.local import LocalSampler, Samples
from rlhf_lab.sampling.settings import Local
from rlhf_lab.stages import artifacts

pytestmark = pytest.mark.slow

VOCABULARY, STOP, OTHER_STOP = 23, 1, 2
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
CONFIGS = {
    "llama": LlamaConfig(**SIZES, tie_word_embeddings=False),
    "qwen3": Qwen3Config(**SIZES, tie_word_embeddings=True),
    "gpt2": GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=64),
    # the decoder does not know this one: its own forward pass is called
    "gemma": Gemma3TextConfig(**SIZES, layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
}
PROMPTS = {
    # the first process has three prompts in two batches of two, the second has two in one
    "unequal": [[3, 4, 5], [6, 7], [8], [9, 10, 11, 12], [13, 14]],
    "one prompt": [[5, 6, 7]],  # the second process has none
}
CASES = [
    *((family, prompts, "replies") for family in CONFIGS for prompts in PROMPTS),
    *((family, "unequal", "episodes") for family in ("llama", "gemma")),
    *((family, "unequal", "adapter") for family in ("llama", "gpt2")),
    ("llama", "unequal", "bfloat16"),
]
FAST = [("llama", "unequal", "replies"), ("llama", "unequal", "episodes"), ("gpt2", "one prompt", "replies")]
"""Each token of a case is an exchange of every block between two processes: the other cases are slow."""
SLOW = [case for case in CASES if case not in FAST]


def build(family: str, kind: str) -> Any:
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(CONFIGS[family]).eval()
    for parameter in model.parameters():
        parameter.data *= 3  # so that rows end at different steps and responses differ
    if kind == "adapter":
        add_adapter(model, LoRA(rank=2), 0)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.data.normal_(std=0.3)
    return model


def answer(number: int, tokens: list[int]) -> Sequence[int]:
    """An environment that outputs two tokens after a turn, which depend on the row and on its output."""
    return (3 + number % 5, 4 + len(tokens) % 7)


def sample(model: Any, prompts: Sequence[list[int]], kind: str) -> Samples:
    sampler = LocalSampler(Local(max_new_tokens=12, batch_rows=4), (STOP, OTHER_STOP))
    turns: dict[str, Any] = {"next_turn": answer, "max_turns": 3} if kind == "episodes" else {}
    return sampler.sample(model, prompts, 2, 7, **turns)


def divide(model: Any, kind: str) -> None:
    dtype = torch.bfloat16 if kind == "bfloat16" else None
    divided.divide(model, init_device_mesh("cpu", (2,)), reshard=True, dtype=dtype)


def sample_all(out: Path, cases: list[tuple[str, str, str]]) -> None:
    found = []
    for family, name, kind in cases:
        model = build(family, kind)
        prompts = PROMPTS[name]
        if kind == "bfloat16":  # one process would sample in float32, so the comparison is with the all-gathered policy
            divide(model, kind)
            expected = sample(model, prompts, kind)
        else:
            with ranks.single_process():
                expected = sample(model, prompts, kind)
            divide(model, kind)
        by_block.sample_by_block(model)
        with mock.patch.object(by_block, "unsharded", side_effect=AssertionError("gathered whole")):
            twice = [sample(model, prompts, kind) for _ in range(2)]
        assert all(p.is_meta for p in model.__dict__[divided.SKELETON].tree.parameters()), "parameters stayed gathered"
        found.append([[[asdict(row) for rows in s.rows_BG for row in rows] for s in (expected, *twice)]])
    if ranks.is_main():
        write_json(out / "found.json", found)


Found = dict[tuple[str, str, str], Any]
"""Case → rows of one process, and of two that sampled twice."""


def sampled(out: Path, cases: list[tuple[str, str, str]]) -> Found:
    together(sample_all, out, cases)
    return dict(zip(cases, (each for (each,) in read_json(out / "found.json")), strict=True))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return sampled(tmp_path_factory.mktemp("samples"), FAST)


@pytest.fixture(scope="module")
def found_slowly(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return sampled(tmp_path_factory.mktemp("more_samples"), SLOW)


@pytest.mark.parametrize("case", FAST, ids="-".join)
def test_replies_are_those_of_one_process(case: tuple[str, str, str], found: Found) -> None:
    assert_same(*found[case], prompts=PROMPTS[case[1]])


@pytest.mark.parametrize("case", SLOW, ids="-".join)
@pytest.mark.long
def test_replies_of_others_are_those_of_one_process(case: tuple[str, str, str], found_slowly: Found) -> None:
    assert_same(*found_slowly[case], prompts=PROMPTS[case[1]])


def assert_same(expected: Any, first: Any, again: Any, prompts: list[list[int]]) -> None:
    assert first == again  # nothing of a call is left behind for the next one
    assert len(expected) == 2 * len(prompts)
    for one, two in zip(expected, first, strict=True):
        assert two["token_ids"] == one["token_ids"]
        assert two["sampled"] == one["sampled"]
        assert two["logps"] == pytest.approx(one["logps"], abs=1e-5)


def test_rows_end_at_different_places(found: Any) -> None:
    """Otherwise the test above would not show that a process without live rows continues to help the other."""
    (expected, _, _) = found[FAST[0]]
    assert len({len(row["token_ids"]) for row in expected}) > 2
    (episodes, _, _) = found[FAST[1]]
    assert not all(all(row["sampled"]) for row in episodes)


def test_a_model_that_computes_its_blocks_in_another_order_is_refused() -> None:
    """Processes that have no rows gather blocks in the order of the module tree."""
    model = build("llama", "")
    model.__dict__[divided.SKELETON] = divided.Skeleton(model, None)
    by_block.sample_by_block(model)
    with by_block.gather_while_reading(model) as tree:
        first, second, _ = tree.model.layers
        gather = by_block.gather_context_of(tree)
        assert gather is not None
        with gather.gathers_full_block(first):
            assert not first.self_attn.q_proj.weight.is_meta
            assert second.self_attn.q_proj.weight.is_meta
        with pytest.raises(ConfigError, match=r"sharding\.sampling=whole"), gather.gathers_full_block(first):
            pass


def test_how_a_policy_is_gathered_decides_no_result() -> None:
    full, block = (planned("grpo", "sharding=fsdp_full", f"sharding.sampling={how}") for how in ("whole", "block"))
    assert full.key == block.key


def test_a_study_of_sharding_keeps_the_keys_it_had() -> None:
    """`artifacts.distinct=[sharding]` puts the section into the key: the new setting is in it where it is set."""
    study = ("grpo", "sharding=fsdp_full", "artifacts.distinct=[sharding]")
    as_before, block = planned(*study), planned(*study, "sharding.sampling=block")
    assert as_before.key != block.key
    values = artifacts._keyed(as_before.config.sharding, {"kind": "fsdp", "sampling": "whole"})
    assert values == {"kind": "fsdp"}


def test_vllm_samples_from_a_model_of_its_own() -> None:
    with pytest.raises(ConfigError, match=r"sharding\.sampling=block only applies to the built-in sampler"):
        planned("grpo", "sharding=fsdp_full", "sharding.sampling=block", "rollout=vllm", "rollout.mode=spawn")
