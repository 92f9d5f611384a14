"""The decoder's cache: prompts shared by a group of samples, and the tokens that each sample has generated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK = 16  # slots by which the cache of generated tokens grows, at least


class StepCost(NamedTuple):
    """What a step of decoding costs, in any unit: by itself, with each row, and with each copy of a prompt."""

    step: int
    row: int
    prompt: int


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
        first_B: slot of the first token that the rows of each prompt have generated; later ones joined later.
        most_slots: that will be in use; the buffer grows in small steps as it comes near.
    """

    prompts: list[Tensor]
    generated: list[Tensor]
    mask_BT: Tensor
    group: int
    kv_heads: int
    used: int = 0
    most_slots: int = 2**31
    first_B: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.first_B = torch.zeros(len(self.mask_BT), dtype=torch.long, device=self.mask_BT.device)

    @property
    def width(self) -> int:
        """Slots of the longest prompt."""
        return self.prompts[0].shape[2]

    @property
    def slots(self) -> int:
        """Slots of generated tokens."""
        return self.generated[0].shape[2]

    def open_slot(self) -> None:
        """Make room for the next token of every row."""
        if self.used == self.slots:
            # growing copies the whole buffer: a quarter of its size at a time keeps the copies of long replies few
            quarter = self.slots // 4 // CHUNK * CHUNK
            new_slots = max(CHUNK, min(quarter, self.most_slots - self.slots))
            for layer, keys_values in enumerate(self.generated):  # one by one: the old buffer of one layer is alive
                self.generated[layer] = F.pad(keys_values, (0, 0, 0, new_slots))
            self.mask_BT = F.pad(self.mask_BT, (0, new_slots), value=-torch.inf)
        self.mask_BT[:, self.width + self.used] = 0.0
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
        """Drop all but these rows; the g rows of a line share one copy of their prompt from here on.

        Slots before the first token of the oldest line are dropped as well.
        """
        kv = self.kv_heads
        prompt_B = row_Bg[:, 0] // self.group
        prompt_head = prompt_B[:, None] * kv + torch.arange(kv, device=row_Bg.device)  # (lines, kv)
        generated_head = prompt_head[..., None] * self.group + (row_Bg % self.group)[:, None]  # (lines, kv, g)
        prompt_heads, generated_heads = prompt_head.flatten(), generated_head.flatten()
        first_B = self.first_B[prompt_B]
        unread = int(first_B.min())
        self.first_B = first_B - unread
        self.used -= unread
        mask_BT = self.mask_BT[prompt_B]
        self.mask_BT = torch.cat([mask_BT[:, : self.width], mask_BT[:, self.width + unread :]], dim=1)
        for layer in range(len(self.prompts)):
            self.prompts[layer] = self.prompts[layer][:, prompt_heads]
            self.generated[layer] = self.generated[layer][:, generated_heads, unread:]
        self.group = row_Bg.shape[1]

    def join(self, lines: GroupCache) -> None:
        """Add lines, of as many rows each, that have generated nothing yet: their first token is the next one."""
        width = max(self.width, lines.width)
        self.mask_BT = torch.cat([self._wider_mask(width, 0), lines._wider_mask(width, self.slots)])
        self.first_B = torch.cat([self.first_B, torch.full_like(lines.first_B, self.used)])
        for layer, (prompts, generated) in enumerate(zip(lines.prompts, lines.generated, strict=True)):
            both = [
                F.pad(keys_values, (0, 0, 0, width - keys_values.shape[2]))
                for keys_values in (self.prompts[layer], prompts)
            ]
            self.prompts[layer] = torch.cat(both, dim=1)
            lines.prompts[layer] = prompts[:, :0]  # not to be held twice
            nothing = F.pad(generated, (0, 0, 0, self.generated[layer].shape[2]))
            self.generated[layer] = torch.cat([self.generated[layer], nothing], dim=1)

    def _wider_mask(self, width: int, slots: int) -> Tensor:
        """`mask_BT` for prompts of `width` slots and `slots` more of generated tokens."""
        prompt_BT = F.pad(self.mask_BT[:, : self.width], (0, width - self.width), value=-torch.inf)
        generated_BT = F.pad(self.mask_BT[:, self.width :], (0, slots), value=-torch.inf)
        return torch.cat([prompt_BT, generated_BT], dim=1)
