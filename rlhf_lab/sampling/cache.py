"""The decoder's cache: prompts shared by a group of samples, and each sample's own past."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK = 16  # slots by which the cache of generated tokens grows, at least


@dataclass
class GroupCache:
    """Keys and values of B prompts, each shared by G rows, and of the tokens those rows have generated.

    Heads are laid out (prompt, kv head, sample of the group), so that one bmm over prompts·kv serves the whole group
    and one over prompts·kv·G serves each row's own past. Generated slots are read to the end of the buffer and masked:
    a product over part of a buffer is slower than over all of it. So the buffer grows, by at least `CHUNK` slots.

    Attributes:
        prompts: per layer keys and values (2, B·kv, T, h).
        own: per layer keys and values (2, B·kv·G, slots, h) of generated tokens.
        mask_BT: over prompt, then own slots: 0 where a token is, −inf elsewhere.
        used: slots filled.
    """

    prompts: list[Tensor]
    own: list[Tensor]
    mask_BT: Tensor
    group: int
    kv_heads: int
    used: int = 0

    def open_slot(self) -> None:
        """Make room for the next token of every row."""
        slots = self.own[0].shape[2]
        if self.used == slots:
            more = max(CHUNK, slots // 4 // CHUNK * CHUNK)
            self.own = [F.pad(part, (0, 0, 0, more)) for part in self.own]
            self.mask_BT = F.pad(self.mask_BT, (0, more), value=-torch.inf)
        self.mask_BT[:, self.prompts[0].shape[2] + self.used] = 0.0
        self.used += 1

    def attend(self, layer: int, qkv: Tensor) -> Tensor:
        """One new token per row attends over its prompt and its own past. qkv (R, heads + 2·kv, h) → (R, heads·h)."""
        (prompt_k, prompt_v), own, kv, group = self.prompts[layer], self.own[layer], self.kv_heads, self.group
        (rows, heads, dim), width, slots = qkv.shape, prompt_k.shape[1], own.shape[2]
        heads -= 2 * kv
        shared, prompts = heads // kv, rows // group
        new = qkv[:, heads:].view(prompts, group, 2, kv, dim).permute(2, 0, 3, 1, 4)
        own.view(2, prompts, kv, group, slots, dim)[..., self.used - 1, :] = new
        q = qkv[:, :heads].view(prompts, group, kv, shared, dim).transpose(1, 2).reshape(prompts * kv, -1, dim)
        over_prompt = torch.bmm(q, prompt_k.transpose(1, 2)).view(-1, width)
        over_own = torch.bmm(q.reshape(-1, shared, dim), own[0].transpose(1, 2)).view(-1, slots)
        scores = torch.cat([over_prompt, over_own], dim=1).view(prompts, -1, width + slots)
        weight = scores.add_(self.mask_BT[:, None]).softmax(-1).view(-1, width + slots)
        mixed = torch.bmm(weight[:, :width].view(prompts * kv, -1, width), prompt_v).view(-1, shared, dim)
        mixed.baddbmm_(weight[:, width:].view(-1, shared, slots), own[1])
        return mixed.view(prompts, kv, group, shared, dim).transpose(1, 2).reshape(rows, heads * dim)

    def keep(self, row_Bg: Tensor) -> None:
        """Keep these rows; the g rows of a line share one copy of their prompt from here on."""
        kv, prompt_B = self.kv_heads, row_Bg[:, 0] // self.group
        head_BK = prompt_B[:, None] * kv + torch.arange(kv, device=row_Bg.device)
        own_head = head_BK[..., None] * self.group + (row_Bg % self.group)[:, None]
        self.prompts = [part[:, head_BK.flatten()] for part in self.prompts]
        self.own = [part[:, own_head.flatten()] for part in self.own]
        self.mask_BT, self.group = self.mask_BT[prompt_B], row_Bg.shape[1]
