"""Work whose memory is estimated and measured: updates of SFT, DPO and PPO, sampling, scoring, on random weights.

Measured on the CPU are live tensor storages (`live_bytes.py`), on a GPU what the CUDA allocator has handed out.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from live_bytes import LiveBytes
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    GPT2Config,
    LlamaConfig,
    Qwen2Config,
    Qwen3Config,
)
from transformers.utils import logging

from rlhf_lab.algorithms.policy_gradient.critic import Critic
from rlhf_lab.losses.kl import k3
from rlhf_lab.losses.policy import ClipRange, PolicyTokens, ppo_clip
from rlhf_lab.losses.preference import PairLogps, dpo
from rlhf_lab.memory.sizes import ModelShape
from rlhf_lab.memory.state import Training, frozen_state, trained_state
from rlhf_lab.memory.work import (
    ComputePrecision,
    Rows,
    divergence_bytes,
    sampling,
    score_bytes,
    train_pass,
    update_peak,
)
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import exact_kl, has_linear_head, token_logps
from rlhf_lab.models.lora import add_adapter, twin, without_adapter
from rlhf_lab.models.settings import LoRA
from rlhf_lab.models.sharded import blocks, checkpoint_blocks
from rlhf_lab.models.shared_prompt import can_take_two_passes
from rlhf_lab.models.weights import store
from rlhf_lab.sampling.local import LocalSampler
from rlhf_lab.sampling.settings import Local
from rlhf_lab.training.optim import Optimizers, TrainedPart
from rlhf_lab.training.settings import TrainingSettings

logging.set_verbosity_error()


@dataclass(frozen=True)
class Found:
    """Bytes of one piece of work, weights and optimiser state included."""

    name: str
    estimated: int
    measured: int

    @property
    def error(self) -> float:
        """Estimate over measurement, − 1."""
        return self.estimated / self.measured - 1


def build(shape: ModelShape, attention: str = "sdpa", device: str = "cpu") -> Any:
    """A model of this shape with random weights, ready to train: what a short pass finds out about it is known."""
    common: dict[str, Any] = {"vocab_size": shape.vocabulary, "bos_token_id": None, "eos_token_id": None}
    config: Any
    if shape.family == "gpt2":
        dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        sizes = {"n_embd": shape.hidden, "n_layer": shape.layers, "n_head": shape.heads, "n_inner": shape.mlp}
        config = GPT2Config(**sizes, n_positions=shape.positions, **dropout, **common)
    else:
        kind = Qwen3Config if shape.head_norm else Qwen2Config if shape.qkv_bias else LlamaConfig
        config = kind(
            hidden_size=shape.hidden,
            intermediate_size=shape.mlp,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            max_position_embeddings=4096,
            tie_word_embeddings=shape.tied,
            **common,
        )
    torch.manual_seed(0)
    with torch.device("cuda" if device == "cuda" else "cpu"):  # billions of random numbers take minutes on a CPU
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    model = model.to(device)
    has_linear_head(model)
    can_take_two_passes(model.base_model)
    return model


def token_batch(rows: Rows, vocabulary: int, device: str = "cpu") -> TokenBatch:
    """Random rows, all as long as `rows` says; rows of the same prompt lie next to each other."""
    generator = torch.Generator().manual_seed(0)

    def ids(count: int) -> list[int]:
        return torch.randint(5, vocabulary - 5, (count,), generator=generator).tolist()

    distinct = rows.prompts or rows.rows
    prompts = [ids(rows.prompt) for _ in range(distinct)]
    return TokenBatch.from_rows([(prompts[i % distinct], ids(rows.response)) for i in range(rows.rows)], device)


@contextmanager
def saved_for_backward(skipped: Callable[[Tensor], bool]) -> Iterator[dict[int, Tensor]]:
    """Storage → tensor that autograd keeps of the passes in the block, without those for which `skipped` is True."""
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if not skipped(tensor):
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        yield kept


def nbytes(kept: dict[int, Tensor]) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def require_counted(shape: ModelShape, config: Any) -> None:
    """A shape has as many parameters as transformers makes, with an output head and with a scalar one."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
        config.num_labels = 3
        scored = AutoModelForSequenceClassification.from_config(config)
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    assert shape.scalar(3).parameters == sum(p.numel() for p in scored.parameters())
    assert shape.block == sum(p.numel() for p in blocks(model)[0].parameters())


class Meter:
    """Peak bytes of tensors on a device since `restart`, beyond what was there before the block."""

    def __init__(self, device: str, known: list[Tensor]):
        self.live = LiveBytes(known) if device == "cpu" else None
        self.known = sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in known}.values())

    def __enter__(self) -> Meter:
        if self.live is not None:
            self.live.__enter__()
        else:
            gc.collect()
            self.before = torch.cuda.memory_allocated() - self.known
        return self

    def __exit__(self, *error: Any) -> None:
        if self.live is not None:
            self.live.__exit__(*error)

    def restart(self) -> None:
        if self.live is not None:
            self.live.restart()
        elif torch.cuda.is_available():  # the simulated GPU has no allocator
            torch.cuda.reset_peak_memory_stats()

    @property
    def peak(self) -> int:
        return self.live.peak if self.live is not None else torch.cuda.max_memory_allocated() - self.before


def tensors(*models: nn.Module) -> list[Tensor]:
    return [tensor for model in models for tensor in (*model.parameters(), *model.buffers())]


Loss = Callable[[Any, TokenBatch, PairLogps], Tensor]


def sft_loss(model: Any, batch: TokenBatch, ref: PairLogps) -> Tensor:
    del ref
    logps_N = token_logps(model, batch).logps_N
    return -logps_N.sum() / len(logps_N)


def dpo_loss(model: Any, batch: TokenBatch, ref: PairLogps) -> Tensor:
    policy = PairLogps(*token_logps(model, batch).sum_B().chunk(2))
    return dpo(policy, ref, beta=0.1).per_pair_B.mean()


def grpo_loss(model: Any, batch: TokenBatch, ref: PairLogps) -> Tensor:
    """Clipped policy loss with a penalty on KL, at the weights that sampled the rows."""
    del ref
    logps = token_logps(model, batch)
    old_N = logps.logps_N.detach()
    tokens = PolicyTokens(logps.logps_N, old_N, torch.ones_like(old_N), logps.row_N, len(batch.lengths))
    return (ppo_clip(tokens, ClipRange(0.2, 0.2)).per_token + 0.04 * k3(logps.logps_N, old_N)).mean()


LOSSES: dict[str, Loss] = {"sft": sft_loss, "dpo": dpo_loss, "grpo": grpo_loss}


@contextmanager
def checkpointed(model: Any, wanted: bool) -> Iterator[None]:
    undo = checkpoint_blocks(model) if wanted else None
    try:
        yield
    finally:
        if undo:
            undo()


def update(
    kind: str, shape: ModelShape, rows: Rows, training: Training, attention: Any = "sdpa", device: str = "cpu"
) -> Found:
    """The second and third step of SFT, or of DPO or GRPO with their reference on the device."""
    model = store(build(shape, attention, device), training.stored, device)
    if training.rank:
        add_adapter(model, LoRA(rank=training.rank), 0)
    frozen = [build(shape, attention, device)] if kind != "sft" else []
    optimizers = _optimizers({"model": model}, training)
    batch, ref = token_batch(rows, shape.vocabulary, device), _zeros(rows, device)
    with Meter(device, tensors(model, *frozen)) as meter, checkpointed(model, training.checkpointing):
        for _ in range(3):
            meter.restart()
            with torch.autocast(device, dtype=torch.bfloat16, enabled=training.precision == "bfloat16"):
                loss = LOSSES[kind](model, batch, ref)
            loss.backward()
            del loss
            optimizers.clip()
            optimizers.step(1.0)
        measured = meter.peak
    how = ComputePrecision(training.precision, attention, training.checkpointing, device == "cuda")
    state, work = trained_state(shape, training), train_pass(shape, rows, how, training)
    model_copies = state.resident_bytes + len(frozen) * frozen_state(shape).total
    return Found(kind, model_copies + update_peak([work], state.copy, state.gradients, accumulates=False), measured)


def ppo_update(shape: ModelShape, rows: Rows, training: Training, device: str = "cpu") -> Found:
    """A step of policy and critic with reference and reward model on the device.

    Adapters lie on one base, which is the reference too; no reward model is loaded.
    """
    policy = build(shape, device=device)
    if training.rank:
        adapter = LoRA(rank=training.rank)
        base = without_adapter(add_adapter(policy, adapter, 0))
        frozen, value_model = [], add_adapter(twin(base), adapter, 1)
    else:
        frozen, value_model = [build(shape, device=device) for _ in range(2)], build(shape, device=device)
    critic = Critic(shape.hidden, value_model.base_model, torch.device(device))  # type: ignore[arg-type]
    del value_model  # with its output head
    optimizers = _optimizers({"model": policy, "critic": critic}, training)
    batch, model_copies = token_batch(rows, shape.vocabulary, device), tensors(policy, critic, *frozen)
    with Meter(device, model_copies) as meter:
        for _ in range(3):
            meter.restart()
            with torch.autocast(device, dtype=torch.bfloat16, enabled=training.precision == "bfloat16"):
                logps_N, value_N = token_logps(policy, batch).logps_N, critic.values(batch)
                loss = (value_N.square() - logps_N).mean()
            del logps_N, value_N
            loss.backward()
            del loss
            optimizers.clip()
            optimizers.step(1.0)
        measured = meter.peak
    how = ComputePrecision(training.precision, "sdpa", False, device == "cuda")
    models = {shape: None, shape.scalar(): 0 if training.rank else None}
    states = [trained_state(each, training, beside=siblings) for each, siblings in models.items()]
    passes = [train_pass(each, rows, how, training) for each in models]
    peak = update_peak(passes, sum(s.copy for s in states), sum(s.gradients for s in states), accumulates=False)
    always = sum(state.resident_bytes for state in states) + len(frozen) * frozen_state(shape).total
    return Found("ppo", always + peak, measured)


def sample(shape: ModelShape, prompts: int, group: int, prompt: int, new: int, device: str = "cpu") -> Found:
    """Responses that never end, from a policy that is the only model in memory."""
    model = build(shape, device=device)
    rows = token_batch(Rows(prompts, prompt, 1), shape.vocabulary, device)
    requested = [row[:prompt] for row in rows.tokens_BT.tolist()]
    sampler = LocalSampler(Local(max_new_tokens=new, batch_rows=prompts * group), stop_ids=[-1])
    with Meter(device, tensors(model)) as meter:
        meter.restart()
        sampler.sample(model, requested, group, 0)
        measured = meter.peak
    needed = sampling(shape, prompts, group, prompt, new, 4).total
    return Found("sampling", frozen_state(shape).total + needed, measured)


def sample_refilled(shape: ModelShape, prompts: int, group: int, prompt: int, new: int, rows: int) -> Found:
    """Responses of which each token is the last with probability 2/new, `rows` at a time."""
    model = build(shape)
    requested = [
        row[:prompt] for row in token_batch(Rows(prompts, prompt, 1), shape.vocabulary, "cpu").tokens_BT.tolist()
    ]
    stop_ids = range(shape.vocabulary - 2 * shape.vocabulary // new, shape.vocabulary)
    sampler = LocalSampler(Local(max_new_tokens=new, batch_rows=rows), stop_ids)
    with Meter("cpu", tensors(model)) as meter:
        meter.restart()
        sampler.sample(model, requested, group, 0)
        measured = meter.peak
    needed = sampling(shape, rows // group, group, prompt, new, 4, refilled=True).total
    return Found("sampling", frozen_state(shape).total + needed, measured)


def score(shape: ModelShape, rows: Rows, device: str = "cpu") -> Found:
    """Log-probabilities under a frozen model."""
    model, batch = build(shape, device=device).requires_grad_(False), token_batch(rows, shape.vocabulary, device)
    with Meter(device, tensors(model)) as meter, torch.no_grad():
        meter.restart()
        token_logps(model, batch)
        measured = meter.peak
    return Found("scoring", frozen_state(shape).total + score_bytes(shape, rows, _to_plain(device)), measured)


def divergence(shape: ModelShape, rows: Rows, device: str = "cpu") -> Found:
    """KL of two policies over the vocabulary."""
    models, batch = [build(shape, device=device) for _ in range(2)], token_batch(rows, shape.vocabulary, device)
    with Meter(device, tensors(*models)) as meter:
        meter.restart()
        exact_kl(*models, batch)
        measured = meter.peak
    needed = divergence_bytes(shape, rows, _to_plain(device))
    return Found("divergence", 2 * frozen_state(shape).total + needed, measured)


def _to_plain(device: str) -> ComputePrecision:
    return ComputePrecision(cuda=device == "cuda")


def _zeros(rows: Rows, device: str) -> PairLogps:
    half = torch.zeros(rows.rows // 2, device=device)
    return PairLogps(half, half)


def _optimizers(parts: dict[str, nn.Module], training: Training) -> Optimizers:
    settings = TrainingSettings(optimizer=training.optimizer, lr=1e-4, muon_lr=1e-4)
    muon = 1e-4 if training.optimizer == "muon" else None
    return Optimizers({name: TrainedPart(module, 1e-4, muon) for name, module in parts.items()}, settings)
