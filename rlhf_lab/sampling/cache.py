"""The decoder's KV cache: prompts shared by a group of samples, and the tokens that each sample has generated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK = 16  # minimum number of slots by which the cache of generated tokens grows


class StepCost(NamedTuple):
    """Cost of a decoding step, in any unit: a fixed part, a part per row, and a part per copy of a prompt."""

    step: int
    row: int
    prompt: int


@dataclass
class GroupCache:
    """KV cache of B prompts, each shared by G rows, and of the tokens that those rows have generated.

    Heads are laid out as (prompt, kv head, sample of the group). One bmm over prompts·kv therefore serves the entire
    group, and one over prompts·kv·G serves the tokens of each row. Generated slots are read to the end of the buffer
    and masked, because a product over part of a buffer is slower than over all of it. The buffer therefore grows in
    steps, by at least `CHUNK` slots.

    Attributes:
        prompts: keys and values of the prompts, per layer (2, B·kv, T, h).
        generated: keys and values of generated tokens, per layer (2, B·kv·G, slots, h).
        mask_BT: additive mask over the slots of the prompt, then of generated tokens: 0 for a token, −inf elsewhere.
        group: rows per prompt (G).
        used: number of filled slots of generated tokens.
        first_B: slot of the first generated token of each prompt's rows; larger for rows that joined later.
        max_slots: expected maximum of `used`; close to it the buffer grows in small steps.
    """

    prompts: list[Tensor]
    generated: list[Tensor]
    mask_BT: Tensor
    group: int
    kv_heads: int
    used: int = 0
    max_slots: int = 2**31
    first_B: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.first_B = torch.zeros(len(self.mask_BT), dtype=torch.long, device=self.mask_BT.device)

    @property
    def width(self) -> int:
        """Number of slots of the longest prompt."""
        return self.prompts[0].shape[2]

    @property
    def slots(self) -> int:
        """Number of allocated slots of generated tokens."""
        return self.generated[0].shape[2]

    def open_slot(self) -> None:
        """Reserve a slot of the cache for the next token of every row; grow the buffer if it is full."""
        if self.used == self.slots:
            # Growing copies the buffer. Steps of a quarter of its size keep the copies of long responses few.
            quarter = self.slots // 4 // CHUNK * CHUNK
            new_slots = max(CHUNK, min(quarter, self.max_slots - self.slots))
            for layer, keys_values in enumerate(self.generated):
                # layer by layer, so that only one layer's old buffer is in memory next to the new one
                self.generated[layer] = F.pad(keys_values, (0, 0, 0, new_slots))
            self.mask_BT = F.pad(self.mask_BT, (0, new_slots), value=-torch.inf)
        self.mask_BT[:, self.width + self.used] = 0.0
        self.used += 1

    def attend(self, layer: int, qkv: Tensor) -> Tensor:
        """Let a new token per row attend over prompt and generated tokens. qkv (R, heads + 2·kv, h) → (R, heads·h)."""
        prompt_k, prompt_v = self.prompts[layer]
        generated = self.generated[layer]
        kv = self.kv_heads
        group = self.group
        width = prompt_k.shape[1]
        slots = generated.shape[2]
        rows, all_heads, dim = qkv.shape
        heads = all_heads - 2 * kv
        heads_per_kv = heads // kv
        prompts = rows // group

        # the view splits the heads into keys and values; the permutation brings them into the layout of `generated`
        new_kv = qkv[:, heads:].view(prompts, group, 2, kv, dim).permute(2, 0, 3, 1, 4)
        by_prompt = generated.view(2, prompts, kv, group, slots, dim)
        by_prompt[..., self.used - 1, :] = new_kv

        # one softmax over both: the scores of prompt tokens and of generated tokens are concatenated
        dtype = prompt_k.dtype
        q = qkv[:, :heads].to(dtype).view(prompts, group, kv, heads_per_kv, dim)
        q = q.transpose(1, 2).reshape(prompts * kv, -1, dim)
        prompt_scores = torch.bmm(q, prompt_k.transpose(1, 2)).view(-1, width)
        # keys of generated tokens differ between rows, so this product is batched over rows as well
        generated_k = generated[0].transpose(1, 2)
        generated_scores = torch.bmm(q.reshape(-1, heads_per_kv, dim), generated_k).view(-1, slots)
        scores = torch.cat([prompt_scores, generated_scores], dim=1).view(prompts, -1, width + slots)
        # softmax in float32, with the result in the dtype of the cache for the next products
        scores = scores.float().add_(self.mask_BT[:, None])
        weight = scores.softmax(-1).to(dtype).view(-1, width + slots)

        prompt_weight = weight[:, :width].view(prompts * kv, -1, width)
        attended = torch.bmm(prompt_weight, prompt_v).view(-1, heads_per_kv, dim)
        generated_weight = weight[:, width:].view(-1, heads_per_kv, slots)
        attended.baddbmm_(generated_weight, generated[1])  # adds the generated part in place
        attended = attended.view(prompts, kv, group, heads_per_kv, dim).transpose(1, 2)
        return attended.reshape(rows, heads * dim).float()

    def keep(self, row_Bg: Tensor) -> None:
        """Keep only the rows `row_Bg`; from now on the g rows of a row group share one copy of their prompt.

        The slots before the first token of the oldest row group are dropped as well.
        """
        kv = self.kv_heads
        prompt_B = row_Bg[:, 0] // self.group
        prompt_head = prompt_B[:, None] * kv + torch.arange(kv, device=row_Bg.device)  # (row groups, kv)
        generated_head = prompt_head[..., None] * self.group + (row_Bg % self.group)[:, None]  # (row groups, kv, g)
        prompt_heads, generated_heads = prompt_head.flatten(), generated_head.flatten()
        first_B = self.first_B[prompt_B]
        unread = int(first_B.min())  # no remaining row group has tokens in the slots before this one
        self.first_B = first_B - unread
        self.used -= unread
        mask_BT = self.mask_BT[prompt_B]
        prompt_mask_BT = mask_BT[:, : self.width]
        generated_mask_BT = mask_BT[:, self.width + unread :]
        self.mask_BT = torch.cat([prompt_mask_BT, generated_mask_BT], dim=1)
        for layer in range(len(self.prompts)):
            self.prompts[layer] = self.prompts[layer][:, prompt_heads]
            self.generated[layer] = self.generated[layer][:, generated_heads, unread:]
        self.group = row_Bg.shape[1]

    def join(self, lines: GroupCache) -> None:
        """Add row groups of the same size that have generated nothing yet; their first token is the next one."""
        width = max(self.width, lines.width)
        own_mask_BT = self._wider_mask(width, 0)
        joined_mask_BT = lines._wider_mask(width, self.slots)  # all slots so far are masked for the new rows
        self.mask_BT = torch.cat([own_mask_BT, joined_mask_BT])
        joined_first_B = torch.full_like(lines.first_B, self.used)
        self.first_B = torch.cat([self.first_B, joined_first_B])
        for layer, (prompts, generated) in enumerate(zip(lines.prompts, lines.generated, strict=True)):
            both = [
                F.pad(keys_values, (0, 0, 0, width - keys_values.shape[2]))
                for keys_values in (self.prompts[layer], prompts)
            ]
            self.prompts[layer] = torch.cat(both, dim=1)
            lines.prompts[layer] = prompts[:, :0]  # free the source, so that it is not in memory twice
            nothing = F.pad(generated, (0, 0, 0, self.generated[layer].shape[2]))
            self.generated[layer] = torch.cat([self.generated[layer], nothing], dim=1)

    def _wider_mask(self, width: int, slots: int) -> Tensor:
        """Return `mask_BT` padded to prompts of `width` slots and with `slots` more slots of generated tokens."""
        prompt_BT = F.pad(self.mask_BT[:, : self.width], (0, width - self.width), value=-torch.inf)
        generated_BT = F.pad(self.mask_BT[:, self.width :], (0, slots), value=-torch.inf)
        return torch.cat([prompt_BT, generated_BT], dim=1)
