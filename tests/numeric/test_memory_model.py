"""The memory model against PyTorch: parameters, saved tensors and optimiser state to the byte, peaks to a few %."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from memory_cases import (
    build,
    divergence,
    nbytes,
    ppo_update,
    require_counted,
    sample,
    sample_refilled,
    saved_for_backward,
    score,
    token_batch,
    update,
)
from transformers import GPT2Config, Qwen2Config, Qwen3Config

from rlhf_lab.memory import work
from rlhf_lab.memory.devices import CARD_GB, GIB, smallest_count, smallest_split, split_bytes, work_of
from rlhf_lab.memory.shapes import config_shape
from rlhf_lab.memory.sizes import PUBLISHED, ModelShape
from rlhf_lab.memory.state import Training, bytes_per_parameter, frozen_state, trained_state
from rlhf_lab.memory.work import ComputePrecision, Rows, block_bytes, cache_slots, logit_bytes
from rlhf_lab.models import logprobs, shared_prompt
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.lora import add_adapter
from rlhf_lab.models.packing import PackedRows
from rlhf_lab.models.settings import LoRA
from rlhf_lab.models.shared_prompt import hidden_states
from rlhf_lab.sampling import cache, decoding, drawing, turns
from rlhf_lab.training.optim import Optimizers, TrainedPart
from rlhf_lab.training.settings import TrainingSettings

LLAMA = ModelShape("llama", 64, 3, 4, 2, 16, 176, 300)
QWEN2 = replace(LLAMA, qkv_bias=True)
QWEN3 = replace(LLAMA, head_norm=True)
GPT2 = ModelShape("gpt2", 64, 3, 4, 4, 16, 256, 300, 512)
BOTH = pytest.mark.parametrize("shape", [LLAMA, GPT2], ids=["llama", "gpt2"])
PRECISIONS = pytest.mark.parametrize("precision", ["float32", "bfloat16"])


# --- parameters


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
        ("Qwen/Qwen2.5-0.5B-Instruct", 494_032_768),
        ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512),
        ("meta-llama/Llama-3.1-8B-Instruct", 8_030_261_248),
        ("meta-llama/Llama-2-13b-hf", 13_015_864_320),
        ("meta-llama/Llama-3.1-70B-Instruct", 70_553_706_496),
    ],
)
def test_published_shapes_have_the_published_number_of_parameters(source: str, count: int) -> None:
    assert PUBLISHED[source].parameters == count


@pytest.mark.parametrize(
    "config",
    [
        GPT2Config(),
        GPT2Config(n_embd=96, n_head=4, n_layer=2, n_inner=100, tie_word_embeddings=False),
        Qwen2Config(tie_word_embeddings=True, num_key_value_heads=4),
        Qwen2Config(tie_word_embeddings=False),
        Qwen3Config(hidden_size=96, num_attention_heads=4, num_key_value_heads=2, head_dim=32, num_hidden_layers=2),
    ],
    ids=["gpt2", "gpt2 with an MLP and a head of its own", "qwen2 tied", "qwen2", "qwen3 with wide heads"],
)
def test_parameters_are_counted_as_transformers_makes_them(config: Any) -> None:
    require_counted(config_shape(config), config)


@BOTH
def test_an_adapter_is_counted_as_peft_makes_it(shape: ModelShape) -> None:
    for targets in (None, ["c_proj"] if shape.family == "gpt2" else ["q_proj", "down_proj"]):
        model = build(shape)
        add_adapter(model, LoRA(rank=5, targets=targets), 0)
        assert shape.adapter(5, targets) == sum(p.numel() for p in model.parameters() if p.requires_grad)


# --- bytes per parameter, and what strategies shard


def test_what_the_plan_says_of_other_modules() -> None:
    """The memory model imports no PyTorch, so these numbers are written twice."""
    assert (work.KEPT_LOGITS, work.CHUNK_LOGITS) == (logprobs.KEPT_ENTRIES, logprobs.CHUNK_ENTRIES)
    assert work.CHUNK_TOKENS == logprobs.CHUNK_TOKENS
    assert work.SHARE_FROM == shared_prompt.SHARE_FROM
    assert (work.CACHE_SLOTS, work.OVERDUE) == (cache.CHUNK, decoding.OVERDUE)
    assert (work.CHECKED_EVERY, work.SEARCHED) == (turns.STEPS_PER_CHECK, drawing.ONE_LEVEL)


def test_bytes_per_parameter_by_hand() -> None:
    assert sum(bytes_per_parameter(Training("bfloat16")).values()) == 4 + 2 + 4 + 4 + 4 == 18
    assert sum(bytes_per_parameter(Training("float32")).values()) == 4 + 4 + 4 + 4 == 16
    # DeepSpeed's optimizer has its own float32 weights
    assert sum(bytes_per_parameter(Training("bfloat16"), master=True).values()) == 4 + 2 + 4 + 4 + 4 + 4 == 22
    assert sum(bytes_per_parameter(Training("bfloat16", "muon")).values()) == 4 + 2 + 4 + 4 == 14
    assert sum(bytes_per_parameter(Training("float32", "muon")).values()) == 4 + 4 + 4 == 12
    assert sum(bytes_per_parameter(Training("bfloat16", "adamw_8bit")).values()) == 4 + 2 + 4 + 1 + 1 == 12


def test_what_strategies_divide_by_hand() -> None:
    """P parameters, R of them outside the blocks and H in the head, whose bfloat16 copy autocast makes."""
    shape, training, n = LLAMA, Training("bfloat16"), 4
    p = shape.parameters
    found = {name: trained_state(shape, training, name, n) for name in ("none", "ddp", "fsdp_grad_op", "fsdp_full")}
    assert found["none"].resident_bytes + found["none"].gradients == 16 * p
    assert found["ddp"].total == found["none"].total
    assert (
        found["ddp"].resident_bytes == found["none"].resident_bytes + 4 * p
    )  # gradients are views of buckets, which stay
    root, head = 300 * 64 + 64, 300 * 64  # a tied embedding and the last norm
    blocks = 3 * shape.block
    assert p == blocks + root
    assert found["fsdp_grad_op"].total == 16 * p // n + 2 * blocks + 4 * root + 2 * head
    assert found["fsdp_full"].total == 16 * p // n + 2 * 2 * shape.block + 4 * root + 2 * head
    copy = 2 * shape.multiplied
    for name, expected in (("zero1", 8 * p + 12 * p // n), ("zero2", 4 * p + 16 * p // n), ("zero3", 20 * p // n)):
        gathered = 4 * (2 * shape.block + root) if name == "zero3" else 0
        bucket = 4 * p  # through which DeepSpeed exchanges gradients, for all of a small model
        assert trained_state(shape, training, name, n).total == expected + gathered + copy + bucket
    assert frozen_state(shape, halved=True).total == 2 * blocks + 4 * root


def test_the_root_of_a_divided_model_is_whole_at_the_end_of_the_backward_pass() -> None:
    """R parameters outside the blocks: full tensors, their gradients, and the buffer that adds these up."""
    shape, rows, how = replace(LLAMA, tied=False, vocabulary=1000), Rows(2, 8, 8), ComputePrecision("bfloat16")
    root = 2 * 1000 * 64 + 64
    alone, sharded = (work_of(shape, rows, how, Training("bfloat16"), "fsdp_full", n) for n in (1, 2))
    assert alone.last == 0
    assert sharded.last == 4 * root + 4 * root + 4 * root
    moving = (2 + 4 + 2) * shape.block  # a block's gradients in bfloat16, their buffer in float32, its parameters
    assert sharded.first == alone.first + 4 * 1000 * 64 + moving
    adapter = work_of(shape, rows, how, Training("bfloat16", rank=4), "fsdp_full", 2)
    assert 4 * root < adapter.last < 8 * root  # it has no gradients there


def test_one_process_divides_nothing() -> None:
    alone = trained_state(LLAMA, Training("float32"), "fsdp_full", 1)
    assert alone == trained_state(LLAMA, Training("float32"))


@pytest.mark.parametrize(
    "training",
    [Training(), Training(optimizer="muon"), Training(rank=4), Training(optimizer="muon", rank=4)],
    ids=["adamw", "muon", "adapter", "adapter with muon"],
)
@BOTH
def test_optimiser_state_is_that_of_pytorch(shape: ModelShape, training: Training) -> None:
    model = build(shape)
    if training.rank:
        add_adapter(model, LoRA(rank=training.rank), 0)
    muon = 0.1 if training.optimizer == "muon" else None
    settings = TrainingSettings(optimizer=training.optimizer, lr=0.1, muon_lr=muon)
    optimizers = Optimizers({"model": TrainedPart(model, 0.1, muon)}, settings)
    for parameter in optimizers.trained["model"]:
        parameter.grad = torch.zeros_like(parameter)
    gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    weights = sum(p.nbytes for p in model.parameters())
    optimizers.step(1.0)
    optimizer_state = [
        value
        for optimizer, _ in optimizers.optimizers
        for state in optimizer.state.values()
        for value in state.values()
        if value.ndim > 0
    ]
    found = trained_state(shape, training)
    assert (found.weights, found.gradients, found.optimizer) == (
        weights,
        gradients,
        sum(m.nbytes for m in optimizer_state),
    )


# --- saved tensors


def saved_bytes(
    shape: ModelShape, rows: Rows, how: ComputePrecision, rank: int = 0, batch: TokenBatch | None = None
) -> int:
    """Bytes that autograd keeps of a forward pass of the trunk: each storage once, without weights and their copies."""
    model = build(shape, how.attention)
    if rank:
        add_adapter(model, LoRA(rank=rank), 0)
    batch = batch or token_batch(rows, shape.vocabulary)
    weights = {tuple(p.shape) for p in model.parameters()} | {
        tuple(p.T.shape) for p in model.parameters() if p.ndim == 2
    }
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def skipped(tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in own or tuple(tensor.shape) in weights

    with saved_for_backward(skipped) as kept, torch.autocast("cpu", torch.bfloat16, enabled=how.low == 2):
        hidden_states(model.base_model, batch, *batch.targets())
    return nbytes(kept)


@PRECISIONS
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("shape", [LLAMA, QWEN2, QWEN3, GPT2], ids=["llama", "qwen2", "qwen3", "gpt2"])
def test_a_block_keeps_what_is_said_to_the_byte(shape: ModelShape, attention: Any, precision: Any) -> None:
    rows, how = Rows(3, 20, 17), ComputePrecision(precision, attention)
    one_more = saved_bytes(replace(shape, layers=3), rows, how) - saved_bytes(replace(shape, layers=2), rows, how)
    assert block_bytes(shape, rows, how) == one_more


@PRECISIONS
@BOTH
def test_a_block_under_an_adapter(shape: ModelShape, precision: Any) -> None:
    rows, how = Rows(3, 20, 17), ComputePrecision(precision)
    one_more = saved_bytes(replace(shape, layers=3), rows, how, 5) - saved_bytes(replace(shape, layers=2), rows, how, 5)
    assert block_bytes(shape, rows, how, Training(precision, rank=5)) == one_more


@PRECISIONS
@BOTH
def test_a_block_with_shared_prompts(shape: ModelShape, precision: Any) -> None:
    """Four rows on two prompts: 2·20 + 4·17 positions, keys of both halves, and a mask."""
    rows, how = Rows(4, 20, 18, prompts=2), ComputePrecision(precision)
    assert rows.shared and rows.tokens == 2 * 20 + 4 * 17
    one_more = saved_bytes(replace(shape, layers=3), rows, how) - saved_bytes(replace(shape, layers=2), rows, how)
    assert block_bytes(shape, rows, how) == one_more


@pytest.mark.parametrize(
    ("prompts", "attention", "precision"),
    [(4, "sdpa", "bfloat16"), (0, "eager", "float32")],
    ids=["shared", "unshared"],
)
@BOTH
def test_packed_rows_keep_no_more_than_is_planned(
    shape: ModelShape, prompts: int, attention: Any, precision: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ragged rows, none longer than the planned ones, mask included; packing pays for them in all four."""
    planned = Rows(16, 64, 48, prompts)
    shape = replace(shape, hidden=256, head_dim=64)  # where attention costs little, groups lie side by side
    how = ComputePrecision(precision, attention)
    generator = torch.Generator().manual_seed(3)
    requested = [[5 + number] * (64 if number == 0 else 8 + 4 * number) for number in range(prompts or planned.rows)]
    rows = []
    for number in range(planned.rows):
        response = 48 if number == 0 else int(torch.randint(1, 24, (1,), generator=generator))
        rows.append((requested[number % len(requested)], [7] * response))
    packed: list[int] = []  # of the trial of a new model, then of the batch
    right = PackedRows.of

    def counted(batch: TokenBatch, packing: Any) -> PackedRows:
        packed.append(packing.slots)
        return right(batch, packing)

    monkeypatch.setattr(PackedRows, "of", counted)
    measured = saved_bytes(shape, planned, how, batch=TokenBatch.from_rows(rows))
    assert len(packed) == 2 and packed[1] < 0.9 * planned.rows * planned.width
    assert measured < shape.layers * block_bytes(shape, planned, how)


def test_logits_by_hand() -> None:
    """2²⁷ entries are kept as float32; one token more and they are computed again, chunk by chunk."""
    simple = ComputePrecision()
    assert logit_bytes(10, 1000, simple) == (4 * 10_000, 4 * 10_000)
    assert logit_bytes(2**17, 2**10, simple) == (4 * 2**27, 2**24 * (4 + 4))
    assert logit_bytes(2**17 + 1, 2**10, simple) == (0, 2**24 * (4 + 4 + 4))


def test_the_sampler_cache_grows_as_it_does() -> None:
    assert cache_slots(40) == [0, 16, 32, 48]
    assert cache_slots(1) == [0]
    cached = cache.GroupCache([torch.zeros(2, 2, 3, 4)], [torch.zeros(2, 4, 0, 4)], torch.zeros(1, 3), 2, 2)
    seen = [0]
    for _ in range(200):
        cached.open_slot()
        if cached.generated[0].shape[2] != seen[-1]:
            seen.append(cached.generated[0].shape[2])
    assert cache_slots(201) == seen


# --- peaks


@pytest.mark.slow
@PRECISIONS
@pytest.mark.parametrize(
    ("kind", "rows", "more"),
    [
        ("sft", Rows(8, 20, 20), {}),
        ("sft", Rows(2, 8, 8), {}),
        ("sft", Rows(8, 20, 20), {"rank": 4}),
        ("sft", Rows(8, 20, 20), {"optimizer": "muon"}),
        ("dpo", Rows(8, 20, 20, prompts=4), {}),
    ],
    ids=["activations", "gradients", "adapter", "muon", "dpo"],
)
@BOTH
def test_peak_of_an_update(shape: ModelShape, kind: str, rows: Rows, more: Any, precision: Any) -> None:
    assert abs(update(kind, shape, rows, Training(precision, **more)).error) < 0.03


@PRECISIONS
@BOTH
def test_peak_with_a_large_vocabulary_and_an_untied_head(shape: ModelShape, precision: Any) -> None:
    large = replace(shape, vocabulary=4000, tied=shape.family == "gpt2")
    assert abs(update("sft", large, Rows(8, 20, 20), Training(precision)).error) < 0.03


@PRECISIONS
@BOTH
def test_peak_with_checkpointing(shape: ModelShape, precision: Any) -> None:
    training = Training(precision, checkpointing=True)
    assert abs(update("sft", replace(shape, layers=12), Rows(8, 20, 20), training).error) < 0.10


@pytest.mark.parametrize(
    ("rank", "precision"), [(0, "float32"), (4, "bfloat16")], ids=["whole", "adapters on one base"]
)
@BOTH
def test_peak_of_policy_and_critic(shape: ModelShape, rank: int, precision: Any) -> None:
    assert abs(ppo_update(shape, Rows(8, 20, 20), Training(precision, rank=rank)).error) < 0.03


@BOTH
def test_peak_of_sampling_and_scoring(shape: ModelShape) -> None:
    for vocabulary in (300, 4000):
        sized = replace(shape, vocabulary=vocabulary)
        assert abs(sample(sized, 16, 4, 60, 20).error) < 0.03
        assert abs(score(sized, Rows(64, 40, 40)).error) < 0.04
    assert abs(divergence(shape, Rows(64, 40, 40)).error) < 0.03


@pytest.mark.parametrize(("prompts", "group", "prompt", "new", "rows"), [(12, 4, 64, 96, 16), (16, 8, 200, 30, 32)])
@BOTH
def test_a_batch_that_is_refilled_stays_below_its_plan(
    shape: ModelShape, prompts: int, group: int, prompt: int, new: int, rows: int
) -> None:
    """Responses of 1 to `new` tokens, about evenly: row groups are broken up, rows join, slots are let go."""
    found = sample_refilled(shape, prompts, group, prompt, new, rows)
    records = 20 * prompts * group * new  # tokens, log-probabilities and noise of all rows: in no plan
    assert found.measured < found.estimated + records


# --- how many devices


def test_more_devices_never_need_larger_cards() -> None:
    rows, training = Rows(1, 1024, 1024), Training("bfloat16", checkpointing=True)
    for shape in PUBLISHED.values():
        counts = [smallest_count(shape, rows, training, "fsdp_full", gb * CARD_GB) or 2**20 for gb in (24, 40, 80, 141)]
        assert counts == sorted(counts, reverse=True)


def test_seven_billion_by_hand() -> None:
    """18 B of 7.6 billion parameters are 127 GiB less the norms and the embedding, which have no bfloat16 copy."""
    shape, training = PUBLISHED["Qwen/Qwen2.5-7B-Instruct"], Training("bfloat16")
    uncopied = shape.parameters - shape.multiplied
    assert trained_state(shape, training).total == 18 * shape.parameters - 2 * uncopied
    assert 126 * GIB < trained_state(shape, training).total < 18 * shape.parameters
    assert frozen_state(shape).total == 4 * shape.parameters


def test_tensor_parallelism_divides_the_blocks_and_the_head() -> None:
    shape, training = PUBLISHED["meta-llama/Llama-3.1-8B-Instruct"], Training("bfloat16", checkpointing=True)
    rows = Rows(1, 8, 8)  # so few tokens that the state is nearly all
    full, halved = (split_bytes(shape, rows, training, tensor, 1) for tensor in (1, 2))
    assert halved / full == pytest.approx(0.5, abs=0.01)
    found = smallest_split(shape, rows, training, 80 * CARD_GB)
    assert found in [(1, 2), (2, 1)] and split_bytes(shape, rows, training, *found) <= 80 * CARD_GB
