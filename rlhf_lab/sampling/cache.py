"""The decoder's cache: prompts shared by a group of samples, and the tokens that each sample has generated."""

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
    and one over prompts·kv·G serves the tokens of each row. Generated slots are read to the end of the buffer and
    masked: a product over part of a buffer is slower than over all of it. So the buffer grows, by at least `CHUNK`
    slots.

    Attributes:
        prompts: per layer keys and values (2, B·kv, T, h).
        generated: per layer keys and values (2, B·kv·G, slots, h) of generated tokens.
        mask_BT: over the slots of the prompt, then of generated tokens: 0 where a token is, −inf elsewhere.
        used: slots of generated tokens that are filled.
    """

    prompts: list[Tensor]
    generated: list[Tensor]
    mask_BT: Tensor
    group: int
    kv_heads: int
    used: int = 0

    def open_slot(self) -> None:
        """Make room for the next token of every row."""
        slots = self.generated[0].shape[2]
        if self.used == slots:
            # growing copies the whole buffer: a quarter of its size at a time keeps the copies of long replies few
            new_slots = max(CHUNK, slots // 4 // CHUNK * CHUNK)
            self.generated = [F.pad(keys_values, (0, 0, 0, new_slots)) for keys_values in self.generated]
            self.mask_BT = F.pad(self.mask_BT, (0, new_slots), value=-torch.inf)
        self.mask_BT[:, self.prompts[0].shape[2] + self.used] = 0.0
        self.used += 1

    def attend(self, layer: int, qkv: Tensor) -> Tensor:
        """A new token per row attends over prompt and generated tokens. qkv (R, heads + 2·kv, h) → (R, heads·h)."""
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

        # write the new token's keys and values into the open slot
        new_kv = qkv[:, heads:].view(prompts, group, 2, kv, dim).permute(2, 0, 3, 1, 4)
        generated.view(2, prompts, kv, group, slots, dim)[..., self.used - 1, :] = new_kv

        # one softmax over both: the scores of the prompt and of generated tokens lie side by side
        dtype = prompt_k.dtype
        q = qkv[:, :heads].to(dtype).view(prompts, group, kv, heads_per_kv, dim)
        q = q.transpose(1, 2).reshape(prompts * kv, -1, dim)
        prompt_scores = torch.bmm(q, prompt_k.transpose(1, 2)).view(-1, width)
        generated_scores = torch.bmm(q.reshape(-1, heads_per_kv, dim), generated[0].transpose(1, 2)).view(-1, slots)
        scores = torch.cat([prompt_scores, generated_scores], dim=1).view(prompts, -1, width + slots)
        weight = scores.float().add_(self.mask_BT[:, None]).softmax(-1).to(dtype).view(-1, width + slots)

        prompt_weight = weight[:, :width].view(prompts * kv, -1, width)
        attended = torch.bmm(prompt_weight, prompt_v).view(-1, heads_per_kv, dim)
        attended.baddbmm_(weight[:, width:].view(-1, heads_per_kv, slots), generated[1])
        attended = attended.view(prompts, kv, group, heads_per_kv, dim).transpose(1, 2)
        return attended.reshape(rows, heads * dim).float()

    def keep(self, row_Bg: Tensor) -> None:
        """Drop all but these rows; the g rows of a line share one copy of their prompt from here on."""
        kv = self.kv_heads
        prompt_B = row_Bg[:, 0] // self.group
        prompt_head = prompt_B[:, None] * kv + torch.arange(kv, device=row_Bg.device)  # (lines, kv)
        generated_head = prompt_head[..., None] * self.group + (row_Bg % self.group)[:, None]  # (lines, kv, g)
        self.prompts = [keys_values[:, prompt_head.flatten()] for keys_values in self.prompts]
        self.generated = [keys_values[:, generated_head.flatten()] for keys_values in self.generated]
        self.mask_BT = self.mask_BT[prompt_B]
        self.group = row_Bg.shape[1]
