"""SFT and DPO steps against TRL's trainers and a simple loop: same model, batches, optimiser and float32.

Timed: forward, loss, backward, gradient clipping and one fused AdamW update on batches that are already tensors.

- Ours: `token_logps`, the product's loss and its `Optimizers`.
- TRL: `training_step` and its trainer's optimiser, with the same clipping.
- Simple loop: the model's own `labels` loss (SFT), or log-softmax of all logits (DPO).

The log-probabilities of the reference are inputs. The first step's losses must agree, or nothing is timed.
"""

from __future__ import annotations

import atexit
import copy
import importlib.util
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from shapes import build_model, scale
from timing import Row, compare, race
from torch import Tensor, nn

from rlhf_lab.losses.preference import PairLogps, dpo
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.training.optim import Optimizers, TrainedPart
from rlhf_lab.training.settings import TrainingSettings

Step = Callable[[], Tensor]
BETA, LR, CLIP = 0.1, 1e-4, 1.0
SFT_BAR, DPO_BAR = 1.0, {1000: None, 32000: 2.0}
HAS_TRL = importlib.util.find_spec("trl") is not None


def rows(rounds: int) -> list[Row]:
    found = []
    for vocabulary in scale.vocabularies:
        size = scale.sizes[0]
        model = build_model("llama", size, vocabulary)
        label = f"{size} llama, vocabulary {vocabulary // 1000}k"
        found += _rows(f"SFT step, {scale.rows} rows, {label}", _sft(model, vocabulary), rounds, SFT_BAR, SFT_BAR)
        found += _rows(
            f"DPO step, {scale.pairs} pairs, {label}", _dpo(model, vocabulary), rounds, DPO_BAR[vocabulary], None
        )
    return found


def _rows(
    work: str, contestants: dict[str, Step], rounds: int, trl_bar: float | None, plain_bar: float | None
) -> list[Row]:
    losses = {name: float(step()) for name, step in contestants.items()}
    if max(losses.values()) - min(losses.values()) > (0.02 if scale.bfloat16 else 1e-4):
        raise RuntimeError(f"{work}: the contestants do not compute the same loss: {losses}")
    seconds = race(contestants, rounds)
    trl = "TRL training_step"
    if "trl" in seconds:
        against_trl = compare(work, trl, seconds["ours"], seconds["trl"], trl_bar)
    else:
        against_trl = Row(work, trl, None, None, None, trl_bar, "trl not installed")
    return [against_trl, compare(work, "plain loop", seconds["ours"], seconds["plain"], plain_bar)]


def _batch(count: int, vocabulary: int, prompts: int = 0) -> TokenBatch:
    """Random rows with a common prompt length and responses of various lengths; `prompts` distinct ones (0: all)."""
    generator = torch.Generator().manual_seed(0)

    def ids(length: int) -> list[int]:
        return torch.randint(5, vocabulary - 5, (length,), generator=generator).tolist()

    lengths = torch.randint(
        scale.response_tokens[0], scale.response_tokens[1] + 1, (count,), generator=generator
    ).tolist()
    requested = [ids(scale.prompt_tokens) for _ in range(prompts or count)]
    return TokenBatch.from_rows(
        [(requested[i % len(requested)], ids(length)) for i, length in enumerate(lengths)], scale.device
    )


def _masks(batch: TokenBatch) -> tuple[Tensor, Tensor]:
    """Attention mask and completion mask."""
    column_T = torch.arange(batch.tokens_BT.shape[1], device=scale.device)
    attention = column_T < batch.length_B[:, None]
    return attention.long(), (attention & (column_T >= batch.prompt_len_B[:, None])).long()


def _update(optimizers: Optimizers, loss: Tensor) -> Tensor:
    loss.backward()
    optimizers.clip()
    optimizers.step(1.0)
    return loss.detach()


def _optimizers(model: nn.Module) -> Optimizers:
    settings = TrainingSettings(optimizer="adamw", lr=LR, adam_betas=(0.9, 0.999), max_grad_norm=CLIP)
    return Optimizers({"model": TrainedPart(model, LR)}, settings)


def _sft(model: nn.Module, vocabulary: int) -> dict[str, Step]:
    batch = _batch(scale.rows, vocabulary)
    attention, completion = _masks(batch)
    labels = batch.tokens_BT.masked_fill(completion == 0, -100)
    mine, simple = copy.deepcopy(model), copy.deepcopy(model)
    my_optimizers, plain_optimizers = _optimizers(mine), _optimizers(simple)

    def ours() -> Tensor:
        with scale.autocast():
            loss_N = -token_logps(mine, batch).logps_N
        return _update(my_optimizers, loss_N.sum() / len(loss_N))

    def plain_loop() -> Tensor:
        with scale.autocast():
            out: Any = simple(input_ids=batch.tokens_BT, attention_mask=attention, labels=labels, use_cache=False)
        return _update(plain_optimizers, out.loss)

    contestants: dict[str, Step] = {"ours": ours, "plain": plain_loop}
    if HAS_TRL:
        inputs = {"input_ids": batch.tokens_BT, "attention_mask": attention, "labels": labels}
        contestants["trl"] = _trl_step("sft", model, vocabulary, inputs)
    return contestants


def _dpo(model: nn.Module, vocabulary: int) -> dict[str, Step]:
    batch = _batch(2 * scale.pairs, vocabulary, prompts=scale.pairs)  # chosen rows, then rejected rows
    attention, completion = _masks(batch)
    with torch.no_grad(), scale.autocast():
        ref = PairLogps(*token_logps(model, batch).sum_B().chunk(2))
    mine, simple = copy.deepcopy(model), copy.deepcopy(model)
    my_optimizers, plain_optimizers = _optimizers(mine), _optimizers(simple)

    def ours() -> Tensor:
        with scale.autocast():
            policy = PairLogps(*token_logps(mine, batch).sum_B().chunk(2))
        return _update(my_optimizers, dpo(policy, ref, beta=BETA).per_pair_B.mean())

    def plain_loop() -> Tensor:
        with scale.autocast():
            out: Any = simple(input_ids=batch.tokens_BT, attention_mask=attention, use_cache=False)
        logps = out.logits[:, :-1].float().log_softmax(-1).gather(2, batch.tokens_BT[:, 1:, None])[..., 0]
        policy = PairLogps(*(logps * completion[:, 1:]).sum(1).chunk(2))
        return _update(plain_optimizers, dpo(policy, ref, beta=BETA).per_pair_B.mean())

    contestants: dict[str, Step] = {"ours": ours, "plain": plain_loop}
    if HAS_TRL:
        inputs = {"input_ids": batch.tokens_BT, "attention_mask": attention, "completion_mask": completion}
        inputs |= {"ref_chosen_logps": ref.chosen, "ref_rejected_logps": ref.rejected}
        contestants["trl"] = _trl_step("dpo", model, vocabulary, inputs)
    return contestants


def _trl_step(kind: str, model: nn.Module, vocabulary: int, inputs: dict[str, Tensor]) -> Step:
    """One TRL training step on `inputs`. The trainer's data set is a placeholder that is never loaded."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

    directory = tempfile.mkdtemp(prefix="bench-trl-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    model.save_pretrained(directory)  # type: ignore[operator]
    theirs = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="sdpa")
    theirs = theirs.to(scale.device)
    common: dict[str, Any] = {
        "output_dir": directory,
        "use_cpu": scale.device == "cpu",
        "bf16": scale.bfloat16,
        "gradient_checkpointing": False,
        "learning_rate": LR,
        "max_grad_norm": CLIP,
        "report_to": [],
        "per_device_train_batch_size": len(inputs["input_ids"]),
        "disable_tqdm": True,
    }
    example = {"prompt": "w5 w6", "chosen": " w7 w8", "rejected": " w9", "completion": " w7 w8"}
    if kind == "sft":
        data = Dataset.from_list([{k: example[k] for k in ("prompt", "completion")}] * 2)
        args: Any = SFTConfig(completion_only_loss=True, **common)
        trainer: Any = SFTTrainer(theirs, args=args, train_dataset=data, processing_class=tokenizer_of(vocabulary))
    else:
        data = Dataset.from_list([{k: example[k] for k in ("prompt", "chosen", "rejected")}] * 2)
        args = DPOConfig(beta=BETA, precompute_ref_log_probs=True, **common)
        trainer = DPOTrainer(theirs, args=args, train_dataset=data, processing_class=tokenizer_of(vocabulary))
    trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = 1
    tokens = (inputs["labels"] != -100).sum() if "labels" in inputs else None
    theirs.train()

    def step() -> Tensor:
        loss = trainer.training_step(theirs, dict(inputs), num_items_in_batch=tokens)
        nn.utils.clip_grad_norm_(theirs.parameters(), CLIP)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()
        return loss

    return step


def tokenizer_of(vocabulary: int) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<eos>": 1, "<unk>": 2, **{f"w{i}": i for i in range(3, vocabulary)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
