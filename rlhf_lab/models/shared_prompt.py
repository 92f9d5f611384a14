"""Hidden states before the reply tokens, without computing padding or a shared prompt more often than it pays.

There are three ways, and the cheapest is taken batch by batch:

- Whole rows, padded to the longest.
- Packed rows (`packing.py`): one pass over fewer, fuller rows, in which a prompt stands once for several replies, under
  a mask. Attention computes the masked pairs too, so it pays where lengths differ or prompts are long.
- Two passes: the distinct prompts fill a cache, and the replies go on from it, under a mask that lets every reply see
  its prompt and itself. Gradients flow through the cache. It pays where lengths are alike. A divided or checkpointed
  model cannot do it: all processes must run the same passes, and a block computed again would fill the cache twice.

Flash attention takes no mask but knows rows laid end to end by their positions, which begin again at 0. They have no
padding at all, and are always taken there. The result is that of whole rows to rounding in each way.
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
"""Share of a batch's token slots that must be saved to be worth a second pass, or packing."""
TRIAL_ROWS = [([1, 2, 3], [4, 5]), ([1, 2, 3], [6, 7, 8]), ([2, 3], [4]), ([2, 3], [5, 6])]
"""Prompts and replies of different lengths, so that padding and positions are tried as well."""
ROUNDING = 0.05
"""Largest difference in a trial where weights or arithmetic are bfloat16, as a share of the largest state."""
TWO_PASSES_COST = 1.1
"""Time of two passes over that of one with as many slots and pairs: the cache is copied to every row."""


Way = Literal["whole rows", "two passes", "packed rows"]

_prescribed: ContextVar[Way | None] = ContextVar("prescribed", default=None)


@contextmanager
def computed_as(way: Way) -> Iterator[None]:
    """In this block batches are computed in one way whatever it costs, to compare it with another.

    Two passes need a batch that shares prompts. The caller knows that the model can compute in this way.
    """
    token = _prescribed.set(way)
    try:
        yield
    finally:
        _prescribed.reset(token)


def hidden_states(backbone: nn.Module, batch: TokenBatch, row_N: torch.Tensor, column_N: torch.Tensor) -> torch.Tensor:
    """Last hidden state of `backbone` at column − 1 of each (row, column), (N, d)."""
    way, packing = _cheapest_way(backbone, batch)
    if packing is not None:
        return _packed(backbone, batch, packing, row_N, column_N)
    if way == "two passes":
        return _prompts_then_replies(backbone, batch, row_N, column_N)
    return _whole_rows(backbone, batch, row_N, column_N)


def _cheapest_way(backbone: nn.Module, batch: TokenBatch) -> tuple[Way, Packing | None]:
    """How a batch is computed, and the layout where it is packed."""
    prescribed = _prescribed.get()
    if prescribed is not None:
        return prescribed, _any_packing(backbone, batch) if prescribed == "packed rows" else None
    if takes_flash_attention(backbone.config):
        return ("packed rows", end_to_end(Lengths.of(batch))) if can_pack(backbone) else ("whole rows", None)
    if not may_be_masked(backbone.config, batch.tokens_BT.shape[1]):
        return "whole rows", None
    saves_prompts = batch.prompt_of is not None and _saved(batch) >= SHARE_FROM
    unpacked: Way = "two passes" if saves_prompts and can_take_two_passes(backbone) else "whole rows"
    packing = best_packing(backbone.config, batch, unpacked, kept_blocks=_kept_blocks(backbone))
    if packing is not None and can_pack(backbone):
        return "packed rows", packing
    return unpacked, None


def _any_packing(backbone: nn.Module, batch: TokenBatch) -> Packing:
    """A packing that shares what can be shared, whether or not it pays."""
    lengths = Lengths.of(batch)
    return end_to_end(lengths) if takes_flash_attention(backbone.config) else pack(lengths, sum(lengths.slots))


def _kept_blocks(backbone: nn.Module) -> int:
    """A lower bound of the number of blocks whose activations exist at once."""
    # checkpointing keeps those of one block at a time; `forbid_two_passes` is called for models that use it
    keeps_all = torch.is_grad_enabled() and backbone.__dict__.get(CAN_TAKE_TWO_PASSES) is not False
    config: Any = backbone.config
    return config.get_text_config().num_hidden_layers if keeps_all else 1


def best_packing(config: Any, batch: TokenBatch, unpacked: Way, *, kept_blocks: int = 1) -> Packing | None:
    """The packing that costs least; None where padded rows, or two passes over them, cost less.

    What is kept for the backward pass is never more than what memory is planned for, that of padded rows or of two
    passes over them (`memory/work.py`).

    Args:
        unpacked: how the batch is computed otherwise.
        kept_blocks: blocks whose activations exist at once; the mask is one for all of them.
    """
    lengths = Lengths.of(batch)
    if not lengths.least:  # nothing but the first token of each row, which nothing predicts
        return None
    rows, width = batch.tokens_BT.shape
    most_slots = _two_pass_slots(batch) if unpacked == "two passes" else rows * width
    if lengths.least > min(most_slots, (1 - SHARE_FROM) * rows * width):
        return None
    text_config = config.get_text_config()
    hidden = text_config.hidden_size
    keeps_probabilities = text_config._attn_implementation == "eager"
    lowest_cost = _unpacked_cost(batch, hidden, unpacked)
    best = None
    for packing in packings(lengths):
        # With mask and scores, a block needs up to 1/6h of a slot's memory for a pair.
        memory_slots = packing.slots + packing.pairs / (6 * hidden * kept_blocks)
        if packing.slots > most_slots or memory_slots > (1 - SHARE_FROM) * rows * width:
            continue
        if keeps_probabilities and packing.pairs > rows * width**2:
            continue
        packing_cost = cost(packing.slots, packing.pairs, hidden)
        if packing_cost < lowest_cost:
            best, lowest_cost = packing, packing_cost
    return best


def _unpacked_cost(batch: TokenBatch, hidden: int, unpacked: Way) -> float:
    """`cost` of padded rows, or of two passes over them."""
    rows, width = batch.tokens_BT.shape
    if unpacked == "whole rows":
        return cost(rows * width, rows * width**2, hidden)
    prompt_pairs = batch.prompts * batch.prompts_width**2
    reply_slots = batch.replies_width - 1
    reply_pairs = rows * reply_slots * (batch.prompts_width + reply_slots)
    return TWO_PASSES_COST * cost(_two_pass_slots(batch), prompt_pairs + reply_pairs, hidden)


def takes_flash_attention(config: Any) -> bool:
    """Whether attention takes packed rows by their positions and no mask of ours."""
    return "flash" in str(config.get_text_config()._attn_implementation)


def may_be_masked(config: Any, width: int) -> bool:
    """Whether rows of `width` tokens may be computed under a mask of our own, with positions of our own.

    A mask would open a sliding window. Rotations that change with the largest position of a pass (dynamic and longrope
    scaling) would change with the layout.
    """
    return attention_window(config) > width and not _rotates_by_length(config, width)


def _rotates_by_length(config: Any, width: int) -> bool:
    """Whether rotary positions of a pass over `width` tokens depend on how many there are."""
    text_config = config.get_text_config()
    parameters = getattr(text_config, "rope_parameters", None) or {}
    # one set of parameters, or one for each type of layer
    for rope in (parameters, *(value for value in parameters.values() if isinstance(value, dict))):
        trained_on = rope.get("original_max_position_embeddings") or text_config.max_position_embeddings
        if rope.get("rope_type") in ("dynamic", "longrope") and width > trained_on:
            return True
    return False


def attention_window(config: Any) -> float:
    """Tokens that the narrowest attention layer looks back over; infinite without a sliding window."""
    config = config.get_text_config()
    window = getattr(config, "sliding_window", None)
    # A config that does not list its layers uses the window in all of them; Qwen 2 has one and a switch for it.
    layer_types = getattr(config, "layer_types", None) or ["sliding_attention"]
    is_used = getattr(config, "use_sliding_window", True) and "sliding_attention" in layer_types
    return window if window and is_used else float("inf")


def forbid_two_passes(model: nn.Module) -> Callable[[], None]:
    """Compute every batch of this model in one pass. Returns what undoes it."""
    # Any of these modules may be the backbone that `hidden_states` is asked about.
    modules = [module for module in model.modules() if getattr(module, "config", None) is not None]
    previous_values = [module.__dict__.get(CAN_TAKE_TWO_PASSES) for module in modules]
    for module in modules:
        module.__dict__[CAN_TAKE_TWO_PASSES] = False

    def restore() -> None:
        for module, previous in zip(modules, previous_values, strict=True):
            module.__dict__[CAN_TAKE_TWO_PASSES] = previous

    return restore


def _saved(batch: TokenBatch) -> float:
    """Share of the token slots of whole rows that two passes need not compute."""
    return 1 - _two_pass_slots(batch) / batch.tokens_BT.numel()


def _two_pass_slots(batch: TokenBatch) -> int:
    return batch.prompts * batch.prompts_width + len(batch.tokens_BT) * (batch.replies_width - 1)


def _whole_rows(backbone: nn.Module, batch: TokenBatch, row_N: torch.Tensor, column_N: torch.Tensor) -> torch.Tensor:
    body: Any = backbone
    return body(input_ids=batch.tokens_BT, use_cache=False).last_hidden_state[row_N, column_N - 1]


def _packed(
    backbone: nn.Module, batch: TokenBatch, packing: Packing, row_N: torch.Tensor, column_N: torch.Tensor
) -> torch.Tensor:
    """`hidden_states` in one pass over packed rows."""
    body: Any = backbone
    packed = PackedRows.of(batch, packing)
    mask = None if takes_flash_attention(body.config) else packed.mask(_attention_dtype(backbone))
    states_RWd = body(
        input_ids=packed.tokens_RW, position_ids=packed.position_RW, attention_mask=mask, use_cache=False
    ).last_hidden_state
    return states_RWd.flatten(0, 1)[packed.slots_before(row_N, column_N)]


def _attention_dtype(backbone: nn.Module) -> torch.dtype:
    """The dtype of queries and keys: a mask of another one would be converted in every layer, or refused."""
    parameter = next(p for p in backbone.parameters() if p.is_floating_point())
    device = parameter.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else parameter.dtype


def _prompts_then_replies(
    backbone: nn.Module, batch: TokenBatch, row_N: torch.Tensor, column_N: torch.Tensor
) -> torch.Tensor:
    """`hidden_states` in two passes: over the P distinct prompts, then over S slots of each row.

    The slots hold the reply without its last token, which predicts nothing.
    """
    body: Any = backbone
    device = batch.tokens_BT.device
    prompt_of_B = batch.prompt_of_B
    assert prompt_of_B is not None and batch.first_row_P is not None
    prompts_width = batch.prompts_width
    slots = batch.replies_width - 1
    cache = DynamicCache(config=body.config)
    prompts_PTd = body(
        input_ids=batch.tokens_BT[batch.first_row_P, :prompts_width], past_key_values=cache, use_cache=True
    ).last_hidden_state
    slot_N = column_N - batch.prompt_len_B[row_N]  # 0 is the reply's first token, predicted by the prompt's last
    prompt_end_Bd = prompts_PTd[prompt_of_B, batch.prompt_len_B - 1]
    if slots == 0:
        return prompt_end_Bd[row_N]
    cache.batch_select_indices(prompt_of_B)  # from one entry per prompt to one per row
    slot_S = torch.arange(slots, device=device)
    # Slots beyond a reply hold nothing: they get the last place, which the model's positions reach.
    position_BS = (batch.prompt_len_B[:, None] + slot_S).clamp(max=batch.tokens_BT.shape[1] - 1)
    tokens_BS = batch.tokens_BT.gather(1, position_BS)
    # The cache is as wide as the longest prompt: a mask of our own hides the padding behind shorter ones.
    in_prompt_BT = torch.arange(prompts_width, device=device) < batch.prompt_len_B[:, None]
    sees_prompt_BST = in_prompt_BT[:, None].expand(-1, slots, -1)
    sees_reply_BSS = (slot_S[None, :] <= slot_S[:, None]).expand(len(position_BS), -1, -1)
    mask = torch.cat([sees_prompt_BST, sees_reply_BSS], dim=2)[:, None]
    replies_BSd = body(
        input_ids=tokens_BS,
        past_key_values=cache,
        position_ids=position_BS,
        attention_mask=mask,
        use_cache=True,
    ).last_hidden_state
    return torch.cat([prompt_end_Bd[:, None], replies_BSd], dim=1)[row_N, slot_N]


def within_vocabulary(tokens: torch.Tensor, model: nn.Module) -> torch.Tensor:
    """Token ids for a trial pass, wrapped around so that the smallest vocabulary has them."""
    config: Any = model.config
    return tokens % config.get_text_config().vocab_size


def can_take_two_passes(backbone: nn.Module) -> bool:
    """Whether two passes give what whole rows give, tried once per model on a few tokens."""

    def two_passes(batch: TokenBatch) -> torch.Tensor:
        return _prompts_then_replies(backbone, batch, *batch.targets())

    return _agrees_with_whole_rows(backbone, two_passes, CAN_TAKE_TWO_PASSES)


def can_pack(backbone: nn.Module) -> bool:
    """Whether packed rows give what whole rows give, tried once per model on a few tokens.

    GPT-Neo's local layers look back over columns, whatever the positions, which a few tokens do not show.
    """
    config: Any = backbone.config
    if "local" in (getattr(config.get_text_config(), "attention_layers", None) or ()):
        return False

    def packed_rows(batch: TokenBatch) -> torch.Tensor:
        return _packed(backbone, batch, _any_packing(backbone, batch), *batch.targets())

    return _agrees_with_whole_rows(backbone, packed_rows, CAN_PACK)


@torch.no_grad()
def _agrees_with_whole_rows(backbone: nn.Module, compute: Callable[[TokenBatch], torch.Tensor], key: str) -> bool:
    """Whether `compute` gives the hidden states of whole rows; noted under `key` of the model's `__dict__`."""
    agrees: bool | None = backbone.__dict__.get(key)
    if agrees is not None:
        return agrees
    device = next(backbone.parameters()).device
    batch = TokenBatch.from_rows(TRIAL_ROWS, device)
    batch = dataclasses.replace(batch, tokens_BT=within_vocabulary(batch.tokens_BT, backbone))
    # Float32 tells a wrong mask from rounding better; rounded weights and flash attention need autocast's dtype.
    wide = (torch.float32, torch.float64)
    is_exact = all(p.dtype in wide for p in backbone.parameters()) and not takes_flash_attention(backbone.config)
    with torch.autocast(device.type, enabled=False) if is_exact else nullcontext():
        expected = _whole_rows(backbone, batch, *batch.targets())
        try:
            states = compute(batch)
        except Exception:  # an architecture that takes no mask, cache or positions of others
            states = torch.full_like(expected, torch.nan)
    if is_exact:
        agrees = torch.allclose(states, expected, atol=1e-4, rtol=1e-3)
    else:
        agrees = bool((states - expected).abs().max() <= ROUNDING * expected.abs().max())
    backbone.__dict__[key] = agrees
    return agrees
