"""Hidden states before the reply tokens, with the prompt of several replies computed once.

Rows that share a prompt (the samples of a group, the two sides of a pair) need its keys and values once. The forward
pass then has two halves: the distinct prompts fill a cache, and the replies go on from it under a mask that lets every
reply see its own prompt and itself. Gradients flow through the cache. The result is that of whole rows to rounding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache

from rlhf_lab.models.encoding import TokenBatch

CAN_SHARE = "_rlhf_lab_can_share"
SHARE_FROM = 0.1  # share of a batch's token slots that must be saved to be worth a second pass


def hidden_states(backbone: nn.Module, batch: TokenBatch, row_N: torch.Tensor, column_N: torch.Tensor) -> torch.Tensor:
    """Last hidden state of `backbone` at column − 1 of each (row, column), (N, d)."""
    sees_all = attention_window(backbone.config) > batch.tokens_BT.shape[1]
    if batch.prompt_of_B is not None and sees_all and _saved(batch) >= SHARE_FROM and can_share(backbone):
        return _shared(backbone, batch, row_N, column_N)
    body: Any = backbone
    return body(input_ids=batch.tokens_BT, use_cache=False).last_hidden_state[row_N, column_N - 1]


def attention_window(config: Any) -> float:
    """Tokens that the narrowest attention layer looks back over; infinite without a sliding window.

    A mask of our own would open the window, so batches that reach it are computed as whole rows.
    """
    window = getattr(config, "sliding_window", None)
    sliding = "sliding_attention" in (getattr(config, "layer_types", None) or ["sliding_attention"])
    used = getattr(config, "use_sliding_window", True) and sliding
    return window if window and used else float("inf")


def forbid_sharing(model: nn.Module) -> Callable[[], None]:
    """Compute every row of this model's batches whole. Returns what undoes it."""
    changed = [part for part in model.modules() if getattr(part, "config", None) is not None]
    before = [part.__dict__.get(CAN_SHARE) for part in changed]
    for part in changed:
        part.__dict__[CAN_SHARE] = False

    def restore() -> None:
        for part, known in zip(changed, before, strict=True):
            part.__dict__[CAN_SHARE] = known

    return restore


def _saved(batch: TokenBatch) -> float:
    """Share of the token slots of whole rows that two passes need not compute."""
    rows, width = batch.tokens_BT.shape
    return 1 - (batch.prompts * batch.prompts_width + rows * (batch.replies_width - 1)) / (rows * width)


def _shared(backbone: nn.Module, batch: TokenBatch, row_N: torch.Tensor, column_N: torch.Tensor) -> torch.Tensor:
    body: Any = backbone
    prompt_of_B, device = batch.prompt_of_B, batch.tokens_BT.device
    assert prompt_of_B is not None and batch.first_row_P is not None
    width, slots = batch.prompts_width, batch.replies_width - 1
    cache = DynamicCache(config=body.config)
    first = body(
        input_ids=batch.tokens_BT[batch.first_row_P, :width], past_key_values=cache, use_cache=True
    ).last_hidden_state
    slot_N = column_N - batch.prompt_len_B[row_N]  # 0 is the reply's first token, predicted by the prompt's last
    last_Bd = first[prompt_of_B, batch.prompt_len_B - 1]
    if slots == 0:
        return last_Bd[row_N]
    cache.batch_select_indices(prompt_of_B)
    slot_S = torch.arange(slots, device=device)
    # slots beyond a reply hold nothing: they get the last place, which the model's positions reach
    position_BS = (batch.prompt_len_B[:, None] + slot_S).clamp(max=batch.tokens_BT.shape[1] - 1)
    tokens_BS = batch.tokens_BT.gather(1, position_BS)
    sees_prompt = (torch.arange(width, device=device) < batch.prompt_len_B[:, None])[:, None].expand(-1, slots, -1)
    sees_self = (slot_S[None, :] <= slot_S[:, None]).expand(len(position_BS), -1, -1)
    mask = torch.cat([sees_prompt, sees_self], dim=2)[:, None]
    rest = body(
        input_ids=tokens_BS,
        past_key_values=cache,
        position_ids=position_BS,
        attention_mask=mask,
        use_cache=True,
    ).last_hidden_state
    return torch.cat([last_Bd[:, None], rest], dim=1)[row_N, slot_N]


def within_vocabulary(tokens: torch.Tensor, model: nn.Module) -> torch.Tensor:
    """Any token ids, for trying a model, as ids that it has, however small its vocabulary is."""
    config: Any = model.config
    return tokens % config.get_text_config().vocab_size


@torch.no_grad()
def can_share(backbone: nn.Module) -> bool:
    """True when two passes give what whole rows give, tried once per model on a few tokens."""
    known = getattr(backbone, CAN_SHARE, None)
    if known is None:
        body: Any = backbone
        rows = [([1, 2, 3], [4, 5]), ([1, 2, 3], [6, 7, 8]), ([2, 3], [4]), ([2, 3], [5, 6])]
        batch = TokenBatch.from_rows(rows, next(backbone.parameters()).device)
        batch = dataclasses.replace(batch, tokens_BT=within_vocabulary(batch.tokens_BT, backbone))
        row_N, column_N = batch.targets()
        whole = body(input_ids=batch.tokens_BT, use_cache=False).last_hidden_state[row_N, column_N - 1]
        try:
            known = torch.allclose(_shared(backbone, batch, row_N, column_N), whole, atol=1e-4, rtol=1e-3)
        except Exception:  # an architecture that cannot go on from a cache in some way of its own
            known = False
        body.__dict__[CAN_SHARE] = known
    return bool(known)
