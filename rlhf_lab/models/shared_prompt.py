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
    sees_whole_row = attention_window(backbone.config) > batch.tokens_BT.shape[1]
    pays = batch.prompt_of_B is not None and sees_whole_row and _saved(batch) >= SHARE_FROM
    if pays and can_share(backbone):
        return _prompts_then_replies(backbone, batch, row_N, column_N)
    return _whole_rows(backbone, batch, row_N, column_N)


def attention_window(config: Any) -> float:
    """Tokens that the narrowest attention layer looks back over; infinite without a sliding window.

    A mask of our own would open the window, so batches that reach it are computed as whole rows.
    """
    window = getattr(config, "sliding_window", None)
    # A config that does not list its layers uses the window in all of them; Qwen 2 has one and a switch for it.
    layer_types = getattr(config, "layer_types", None) or ["sliding_attention"]
    is_used = getattr(config, "use_sliding_window", True) and "sliding_attention" in layer_types
    return window if window and is_used else float("inf")


def forbid_sharing(model: nn.Module) -> Callable[[], None]:
    """Compute every row of this model's batches whole. Returns what undoes it."""
    # Any of these modules may be the backbone that `hidden_states` is asked about.
    modules = [module for module in model.modules() if getattr(module, "config", None) is not None]
    previous_values = [module.__dict__.get(CAN_SHARE) for module in modules]
    for module in modules:
        module.__dict__[CAN_SHARE] = False

    def restore() -> None:
        for module, previous in zip(modules, previous_values, strict=True):
            module.__dict__[CAN_SHARE] = previous

    return restore


def _saved(batch: TokenBatch) -> float:
    """Share of the token slots of whole rows that two passes need not compute."""
    rows, width = batch.tokens_BT.shape
    computed_slots = batch.prompts * batch.prompts_width + rows * (batch.replies_width - 1)
    return 1 - computed_slots / (rows * width)


def _whole_rows(backbone: nn.Module, batch: TokenBatch, row_N: torch.Tensor, column_N: torch.Tensor) -> torch.Tensor:
    body: Any = backbone
    return body(input_ids=batch.tokens_BT, use_cache=False).last_hidden_state[row_N, column_N - 1]


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


@torch.no_grad()
def can_share(backbone: nn.Module) -> bool:
    """True when two passes give what whole rows give, tried once per model on a few tokens."""
    agrees = getattr(backbone, CAN_SHARE, None)
    if agrees is None:
        # Prompts and replies of different lengths, so that padding and positions are tried as well.
        rows = [([1, 2, 3], [4, 5]), ([1, 2, 3], [6, 7, 8]), ([2, 3], [4]), ([2, 3], [5, 6])]
        batch = TokenBatch.from_rows(rows, next(backbone.parameters()).device)
        batch = dataclasses.replace(batch, tokens_BT=within_vocabulary(batch.tokens_BT, backbone))
        row_N, column_N = batch.targets()
        expected = _whole_rows(backbone, batch, row_N, column_N)
        try:
            shared = _prompts_then_replies(backbone, batch, row_N, column_N)
            agrees = torch.allclose(shared, expected, atol=1e-4, rtol=1e-3)
        except Exception:  # an architecture that cannot go on from a cache in some way of its own
            agrees = False
        backbone.__dict__[CAN_SHARE] = agrees
    return bool(agrees)
