"""Hidden states before the response tokens, computed with as little padding and as few repeated prompts as pays.

There are three layouts, and the cheapest is chosen for each batch:

- Whole rows, padded to the longest row.
- Packed rows (`packing.py`): one pass over fewer, fuller rows under a mask. A prompt appears once for several
  responses. Attention also computes the masked pairs, so this pays if lengths differ or prompts are long.
- Two passes: the distinct prompts fill a KV cache, and the responses continue from it. A mask lets every response see
  its prompt and itself. Gradients flow through the cache. This pays if lengths are similar. A sharded or checkpointed
  model cannot use it: all processes must run the same passes, and a recomputed block would fill the cache twice.

Flash attention accepts no mask, but recognises concatenated rows by their positions, which restart at 0. Such rows have
no padding, so they are always used with it. All layouts give the result of whole rows up to rounding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Literal

import torch
from torch import nn
from transformers import DynamicCache

from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.packing import Lengths, PackedRows, Packing, cost, end_to_end, pack, packings

CAN_TAKE_TWO_PASSES = "_rlhf_lab_can_take_two_passes"
CAN_PACK = "_rlhf_lab_can_pack"
SHARE_FROM = 0.1
"""Minimum fraction of a batch's token slots that a second pass, or packing, must save to be used."""
TRIAL_ROWS = [([1, 2, 3], [4, 5]), ([1, 2, 3], [6, 7, 8]), ([2, 3], [4]), ([2, 3], [5, 6])]
"""Token ids of prompts and responses on which a layout is tried before use. Their lengths differ, so that the trial
covers padding and positions as well."""
ROUNDING = 0.05
"""Maximum difference between the hidden states of two layouts in a trial with bfloat16 weights or computation, relative
to the largest state."""
TWO_PASSES_COST = 1.1
"""Time of two passes relative to one with as many slots and pairs: the cache is copied to every row."""


RowLayout = Literal["whole rows", "two passes", "packed rows"]

_prescribed: ContextVar[RowLayout | None] = ContextVar("prescribed", default=None)


@contextmanager
def computed_as(layout: RowLayout) -> Iterator[None]:
    """Compute batches in this layout while the context is open, whatever it costs, to compare layouts.

    Two passes need a batch with shared prompts. The caller must know that the model supports the layout.
    """
    token = _prescribed.set(layout)
    try:
        yield
    finally:
        _prescribed.reset(token)


def hidden_states(backbone: nn.Module, batch: TokenBatch, row_N: torch.Tensor, column_N: torch.Tensor) -> torch.Tensor:
    """Return the last hidden state of `backbone` at column − 1 of each (row, column), (N, d)."""
    layout, packing = _cheapest_layout(backbone, batch)
    if packing is not None:
        return _packed(backbone, batch, packing, row_N, column_N)
    if layout == "two passes":
        return _prompts_then_responses(backbone, batch, row_N, column_N)
    return _full_rows(backbone, batch, row_N, column_N)


def _cheapest_layout(backbone: nn.Module, batch: TokenBatch) -> tuple[RowLayout, Packing | None]:
    prescribed = _prescribed.get()
    if prescribed == "packed rows":
        return prescribed, _any_packing(backbone, batch)
    if prescribed is not None:
        return prescribed, None
    # flash attention accepts no mask, so only rows without padding are possible
    if takes_flash_attention(backbone.config):
        return ("packed rows", end_to_end(Lengths.of(batch))) if can_pack(backbone) else ("whole rows", None)
    if not may_be_masked(backbone.config, batch.tokens_BT.shape[1]):
        return "whole rows", None
    saved = 1 - _two_pass_slots(batch) / batch.tokens_BT.numel()  # fraction of token slots that two passes avoid
    saves_prompts = batch.prompt_of is not None and saved >= SHARE_FROM
    unpacked: RowLayout = "two passes" if saves_prompts and can_take_two_passes(backbone) else "whole rows"
    packing = best_packing(backbone.config, batch, unpacked, kept_blocks=_kept_blocks(backbone))
    if packing is not None and can_pack(backbone):
        return "packed rows", packing
    return unpacked, None


def _any_packing(backbone: nn.Module, batch: TokenBatch) -> Packing:
    """Return a packing that shares as many prompts as possible, whether or not it pays."""
    lengths = Lengths.of(batch)
    return end_to_end(lengths) if takes_flash_attention(backbone.config) else pack(lengths, sum(lengths.slots))


def _kept_blocks(backbone: nn.Module) -> int:
    """Return a lower bound of the number of blocks whose activations exist at the same time."""
    # Checkpointing keeps the activations of one block at a time. `forbid_two_passes` is called for such models.
    keeps_all = torch.is_grad_enabled() and backbone.__dict__.get(CAN_TAKE_TWO_PASSES) is not False
    config: Any = backbone.config
    return config.get_text_config().num_hidden_layers if keeps_all else 1


def best_packing(config: Any, batch: TokenBatch, unpacked: RowLayout, *, kept_blocks: int = 1) -> Packing | None:
    """Return the packing with the lowest cost; None if padded rows, or two passes over them, cost less.

    What is kept for the backward pass never exceeds the planned memory, which is that of padded rows or of two passes
    over them (`memory/work.py`).

    Args:
        kept_blocks: number of blocks whose activations exist at the same time; all of them share one mask.
    """
    lengths = Lengths.of(batch)
    if not lengths.minimum:  # only the first token of each row, which nothing predicts
        return None
    rows, width = batch.tokens_BT.shape
    max_slots = _two_pass_slots(batch) if unpacked == "two passes" else rows * width
    if lengths.minimum > min(max_slots, (1 - SHARE_FROM) * rows * width):
        return None
    text_config = config.get_text_config()
    hidden = text_config.hidden_size
    keeps_probabilities = text_config._attn_implementation == "eager"
    lowest_cost = _unpacked_cost(batch, hidden, unpacked)
    best = None
    for packing in packings(lengths):
        # Mask and scores need up to 1/6h of a slot's memory for each pair, per block.
        memory_slots = packing.slots + packing.pairs / (6 * hidden * kept_blocks)
        max_memory_slots = (1 - SHARE_FROM) * rows * width
        if packing.slots > max_slots or memory_slots > max_memory_slots:
            continue
        # eager attention also keeps the probabilities of all pairs for the backward pass
        if keeps_probabilities and packing.pairs > rows * width**2:
            continue
        packing_cost = cost(packing.slots, packing.pairs, hidden)
        if packing_cost < lowest_cost:
            best, lowest_cost = packing, packing_cost
    return best


def _unpacked_cost(batch: TokenBatch, hidden: int, unpacked: RowLayout) -> float:
    """Return the `cost` of padded rows, or of two passes over them."""
    rows, width = batch.tokens_BT.shape
    if unpacked == "whole rows":
        return cost(rows * width, rows * width**2, hidden)
    prompt_pairs = batch.prompts * batch.prompts_width**2
    response_slots = batch.responses_width - 1  # the last token of a response predicts nothing
    response_pairs = rows * response_slots * (batch.prompts_width + response_slots)
    return TWO_PASSES_COST * cost(_two_pass_slots(batch), prompt_pairs + response_pairs, hidden)


def takes_flash_attention(config: Any) -> bool:
    """Return True if attention recognises packed rows by their positions and accepts no mask."""
    return "flash" in str(config.get_text_config()._attn_implementation)


def may_be_masked(config: Any, width: int) -> bool:
    """Return True if rows of `width` tokens may be computed with custom masks and positions.

    A custom mask would disable a sliding window. Rotations that change with the largest position of a pass (dynamic and
    longrope scaling) would change with the layout.
    """
    return attention_window(config) > width and not _rotates_by_length(config, width)


def _rotates_by_length(config: Any, width: int) -> bool:
    """Return True if the rotary positions of a pass over `width` tokens depend on the number of tokens."""
    text_config = config.get_text_config()
    parameters = getattr(text_config, "rope_parameters", None) or {}
    # the config has one set of parameters, or one for each type of layer
    for rope in (parameters, *(value for value in parameters.values() if isinstance(value, dict))):
        trained_on = rope.get("original_max_position_embeddings") or text_config.max_position_embeddings
        if rope.get("rope_type") in ("dynamic", "longrope") and width > trained_on:
            return True
    return False


def attention_window(config: Any) -> float:
    """Return the window of the narrowest attention layer in tokens; infinite without a sliding window."""
    config = config.get_text_config()
    window = getattr(config, "sliding_window", None)
    # A config without layer types uses the window in all layers; Qwen 2 has a window and a switch for it.
    layer_types = getattr(config, "layer_types", None) or ["sliding_attention"]
    is_used = getattr(config, "use_sliding_window", True) and "sliding_attention" in layer_types
    return window if window and is_used else float("inf")


def forbid_two_passes(model: nn.Module) -> Callable[[], None]:
    """Compute every batch of this model in one pass. Returns a function that undoes this."""
    # any of these modules may be the backbone that is passed to `hidden_states`
    modules = [module for module in model.modules() if getattr(module, "config", None) is not None]
    previous_values = [module.__dict__.get(CAN_TAKE_TWO_PASSES) for module in modules]
    for module in modules:
        module.__dict__[CAN_TAKE_TWO_PASSES] = False

    def restore() -> None:
        for module, previous in zip(modules, previous_values, strict=True):
            module.__dict__[CAN_TAKE_TWO_PASSES] = previous

    return restore


def _two_pass_slots(batch: TokenBatch) -> int:
    prompt_slots = batch.prompts * batch.prompts_width
    response_slots = len(batch.tokens_BT) * (batch.responses_width - 1)
    return prompt_slots + response_slots


def _full_rows(backbone: nn.Module, batch: TokenBatch, row_N: torch.Tensor, column_N: torch.Tensor) -> torch.Tensor:
    body: Any = backbone
    return body(input_ids=batch.tokens_BT, use_cache=False).last_hidden_state[row_N, column_N - 1]


def _packed(
    backbone: nn.Module, batch: TokenBatch, packing: Packing, row_N: torch.Tensor, column_N: torch.Tensor
) -> torch.Tensor:
    body: Any = backbone
    packed = PackedRows.of(batch, packing)
    mask = None if takes_flash_attention(body.config) else packed.mask(_attention_dtype(backbone))
    states_RWd = body(
        input_ids=packed.tokens_RW, position_ids=packed.position_RW, attention_mask=mask, use_cache=False
    ).last_hidden_state
    return states_RWd.flatten(0, 1)[packed.slots_before(row_N, column_N)]


def _attention_dtype(backbone: nn.Module) -> torch.dtype:
    """Return the dtype of queries and keys; a mask of another dtype would be converted in every layer, or rejected."""
    parameter = next(p for p in backbone.parameters() if p.is_floating_point())
    device = parameter.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else parameter.dtype


def _prompts_then_responses(
    backbone: nn.Module, batch: TokenBatch, row_N: torch.Tensor, column_N: torch.Tensor
) -> torch.Tensor:
    """Compute `hidden_states` in two passes: over the P distinct prompts, then over S slots of each row.

    The slots contain the response without its last token, which predicts nothing.
    """
    body: Any = backbone
    device = batch.tokens_BT.device
    prompt_of_B = batch.prompt_of_B
    assert prompt_of_B is not None and batch.first_row_P is not None
    prompts_width = batch.prompts_width
    slots = batch.responses_width - 1
    cache = DynamicCache(config=body.config)
    prompts_PTd = body(
        input_ids=batch.tokens_BT[batch.first_row_P, :prompts_width], past_key_values=cache, use_cache=True
    ).last_hidden_state
    slot_N = column_N - batch.prompt_len_B[row_N]  # 0 is the response's first token, predicted by the prompt's last
    prompt_end_Bd = prompts_PTd[prompt_of_B, batch.prompt_len_B - 1]
    if slots == 0:
        return prompt_end_Bd[row_N]
    cache.batch_select_indices(prompt_of_B)  # from one entry per prompt to one per row
    slot_S = torch.arange(slots, device=device)
    # Slots after the end of a response are empty. They get the last position of the batch, which the model supports.
    last_position = batch.tokens_BT.shape[1] - 1
    position_BS = (batch.prompt_len_B[:, None] + slot_S).clamp(max=last_position)
    tokens_BS = batch.tokens_BT.gather(1, position_BS)
    # The cache is as wide as the longest prompt; the mask hides the padding after shorter ones.
    in_prompt_BT = torch.arange(prompts_width, device=device) < batch.prompt_len_B[:, None]
    sees_prompt_BST = in_prompt_BT[:, None].expand(-1, slots, -1)
    causal_SS = slot_S[None, :] <= slot_S[:, None]
    sees_response_BSS = causal_SS.expand(len(position_BS), -1, -1)
    mask = torch.cat([sees_prompt_BST, sees_response_BSS], dim=2)[:, None]
    responses_BSd = body(
        input_ids=tokens_BS, past_key_values=cache, position_ids=position_BS, attention_mask=mask, use_cache=True
    ).last_hidden_state
    states_BSd = torch.cat([prompt_end_Bd[:, None], responses_BSd], dim=1)
    return states_BSd[row_N, slot_N]


def within_vocabulary(tokens: torch.Tensor, model: nn.Module) -> torch.Tensor:
    """Return token ids for a trial pass, reduced modulo the vocabulary size so that every model has them."""
    config: Any = model.config
    return tokens % config.get_text_config().vocab_size


def can_take_two_passes(backbone: nn.Module) -> bool:
    """Return True if two passes give the result of whole rows, tried once per model on a few tokens."""

    def two_passes(batch: TokenBatch) -> torch.Tensor:
        return _prompts_then_responses(backbone, batch, *batch.targets())

    return _agrees_with_full_rows(backbone, two_passes, CAN_TAKE_TWO_PASSES)


def can_pack(backbone: nn.Module) -> bool:
    """Return True if packed rows give the result of whole rows, tried once per model on a few tokens.

    GPT-Neo's local layers look back over columns instead of positions, which a trial with few tokens does not show.
    """
    config: Any = backbone.config
    if "local" in (getattr(config.get_text_config(), "attention_layers", None) or ()):
        return False

    def packed_rows(batch: TokenBatch) -> torch.Tensor:
        return _packed(backbone, batch, _any_packing(backbone, batch), *batch.targets())

    return _agrees_with_full_rows(backbone, packed_rows, CAN_PACK)


@torch.no_grad()
def _agrees_with_full_rows(backbone: nn.Module, compute: Callable[[TokenBatch], torch.Tensor], key: str) -> bool:
    """Return True if `compute` gives the hidden states of whole rows; cached under `key` in the model's `__dict__`."""
    agrees: bool | None = backbone.__dict__.get(key)
    if agrees is not None:
        return agrees
    device = next(backbone.parameters()).device
    batch = TokenBatch.from_rows(TRIAL_ROWS, device)
    batch = dataclasses.replace(batch, tokens_BT=within_vocabulary(batch.tokens_BT, backbone))
    # Float32 separates a wrong mask from rounding better. Rounded weights and flash attention need autocast's dtype.
    wide = (torch.float32, torch.float64)
    has_wide_weights = all(p.dtype in wide for p in backbone.parameters())
    is_exact = has_wide_weights and not takes_flash_attention(backbone.config)
    with torch.autocast(device.type, enabled=False) if is_exact else nullcontext():
        expected = _full_rows(backbone, batch, *batch.targets())
        try:
            states = compute(batch)
        except Exception:  # the architecture does not support custom masks, caches or positions
            states = torch.full_like(expected, torch.nan)
    if is_exact:
        agrees = torch.allclose(states, expected, atol=1e-4, rtol=1e-3)
    else:
        largest_error = (states - expected).abs().max()
        agrees = bool(largest_error <= ROUNDING * expected.abs().max())
    backbone.__dict__[key] = agrees
    return agrees
