"""A bare decoder for the two transformer families the lab meets most: GPT-2, and Llama with its relatives (Mistral, Qwen).

It reads the weights of a Hugging Face model and decodes without modules, masks or a growing cache:

- the prompt is run once per group; its keys and values are shared by the group's samples;
- generated keys live in a preallocated [rows·heads, head_dim, slots] buffer, and no cache is ever concatenated;
- all rows generate in step, so slot t is the t-th new token of every row and only positions differ between rows.

Left out: sliding windows shorter than the sequence, cross-attention, mixture of experts. `Decoder.of` returns None for a
model it does not know, and the sampler then uses the model's own forward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass
class Norm:
    """RMSNorm when `bias` is None, else LayerNorm."""

    weight: Tensor
    bias: Tensor | None
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        if self.bias is None:  # a few plain kernels: torch's own rms_norm takes three times as long on a CPU
            wide = x.float()
            scale = wide.square().mean(-1, keepdim=True).add_(self.eps).rsqrt_()
            return (wide * scale).to(x.dtype) * self.weight
        return F.layer_norm(x, (x.shape[-1],), self.weight, self.bias, self.eps)


@dataclass
class Layer:
    """One block. `qkv` and `up` are (weight, bias) of fused projections; `up` holds gate and up when `gated`."""

    norm_1: Norm
    qkv: tuple[Tensor, Tensor | None]
    q_norm: Norm | None
    k_norm: Norm | None
    out: tuple[Tensor, Tensor | None]
    norm_2: Norm
    up: tuple[Tensor, Tensor | None]
    down: tuple[Tensor, Tensor | None]


@dataclass
class Decoder:
    """Weights and sizes; see `prefill` and `step`.

    Attributes:
        embed_Vd, position_Td: token and learned position embeddings; rotary models have `cos_Th`, `sin_Th` instead.
        heads, kv_heads, head_dim: attention sizes; query heads share key heads in groups of heads // kv_heads.
    """

    layers: list[Layer]
    final_norm: Norm
    embed_Vd: Tensor
    head_Vd: Tensor
    position_Td: Tensor | None
    cos_Th: Tensor | None
    sin_Th: Tensor | None
    heads: int
    kv_heads: int
    head_dim: int
    gated: bool
    activation: Callable[[Tensor], Tensor]

    @staticmethod
    def of(model: nn.Module, dtype: torch.dtype, positions: int) -> Decoder | None:
        """A decoder with the weights of `model` in `dtype` for sequences of up to `positions` tokens, or None."""
        config: Any = model.config
        read = FAMILIES.get(config.model_type)
        window = getattr(config, "sliding_window", None)
        windowed = window is not None and window < positions and getattr(config, "use_sliding_window", True)
        return None if read is None or windowed else read(model, dtype, positions)

    def _project(self, layer: Layer, x: Tensor, angles: tuple[Tensor, Tensor] | None) -> tuple[Tensor, ...]:
        """Query (…, heads, head_dim), key and value (…, kv_heads, head_dim), rotated by `angles`."""
        qkv = F.linear(layer.norm_1(x), *layer.qkv).unflatten(-1, (-1, self.head_dim))
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], dim=-2)
            qkv = torch.cat([layer.q_norm(q), layer.k_norm(k), v], dim=-2)
        if angles is not None:
            qk, v = qkv.split([self.heads + self.kv_heads, self.kv_heads], dim=-2)
            q, k = _rotate(qk, *angles).split([self.heads, self.kv_heads], dim=-2)
            return q, k, v
        return qkv.split([self.heads, self.kv_heads, self.kv_heads], dim=-2)

    def _angles(self, position: Tensor) -> tuple[Tensor, Tensor] | None:
        """Cosines and sines (…, 1, head_dim) of positions, None where positions are learned."""
        if self.cos_Th is None or self.sin_Th is None:
            return None
        return self.cos_Th[position][..., None, :], self.sin_Th[position][..., None, :]

    def _mlp(self, layer: Layer, x: Tensor) -> Tensor:
        hidden = F.linear(layer.norm_2(x), *layer.up)
        if self.gated:
            gate, up = hidden.chunk(2, dim=-1)
            return F.linear(self.activation(gate) * up, *layer.down)
        return F.linear(self.activation(hidden), *layer.down)

    def _embed(self, tokens: Tensor, position: Tensor) -> Tensor:
        x = self.embed_Vd[tokens]
        return x if self.position_Td is None else x + self.position_Td[position]

    def logits(self, x: Tensor) -> Tensor:
        """float32 logits of hidden states."""
        return (self.final_norm(x) @ self.head_Vd.T).float()

    def prefill(self, tokens_BT: Tensor, length_B: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Run right-padded prompts. Returns the last real token's hidden state (B, d) and per layer the keys
        (B·kv_heads, head_dim, T) and values (B·kv_heads, T, head_dim)."""
        rows, width = tokens_BT.shape
        position = torch.arange(width, device=tokens_BT.device)
        x, angles, cache = self._embed(tokens_BT, position), self._angles(position), []
        for layer in self.layers:
            q, k, v = (part.transpose(1, 2) for part in self._project(layer, x, angles))
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
            x = x + F.linear(attended.transpose(1, 2).flatten(2), *layer.out)
            x = x + self._mlp(layer, x)
            flat = rows * self.kv_heads
            keys, values = k.float().transpose(2, 3), v.float()
            cache.append((keys.reshape(flat, -1, width), values.reshape(flat, width, -1)))
        return x[torch.arange(rows, device=x.device), length_B - 1], cache

    def step(self, tokens_R: Tensor, position_R: Tensor, cache: GroupCache) -> Tensor:
        """Feed one new token per row (R = groups · G); writes the cache's next slot. Returns hidden states (R, d)."""
        x, angles = self._embed(tokens_R, position_R), self._angles(position_R)
        for index, layer in enumerate(self.layers):
            q, k, v = self._project(layer, x, angles)
            x = x + F.linear(cache.attend(index, q, k, v), *layer.out)
            x = x + self._mlp(layer, x)
        cache.used += 1
        return x


@dataclass
class GroupCache:
    """Keys and values of B prompts, each shared by G rows, and of the tokens those rows have generated.

    Heads are laid out (prompt, kv head, sample of the group), so that one bmm over prompts·kv serves the whole group and
    one over prompts·kv·G serves each row's own past, without rearranging. Held in float32 whatever the weights' dtype:
    attention over a slice of a bf16 buffer copies the slice.

    Attributes:
        prompts: per layer keys (B·kv, h, T) and values (B·kv, T, h).
        mask_BT: 0 on prompt tokens, −inf on padding; None when no prompt is padded.
        generated: per layer keys (B·kv·G, h, slots) and values (B·kv·G, slots, h).
        used: slots filled.
    """

    prompts: list[tuple[Tensor, Tensor]]
    mask_BT: Tensor | None
    generated: list[tuple[Tensor, Tensor]]
    group: int
    kv_heads: int
    used: int = 0

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of one new query per row over its prompt and its own past. q (R, heads, h) → (R, heads·h)."""
        (pk, pv), (gk, gv) = self.prompts[layer], self.generated[layer]
        rows, heads, dim = q.shape
        kv, group, end = self.kv_heads, self.group, self.used + 1
        shared, prompts, width = heads // kv, rows // group, pk.shape[2]
        gk.view(prompts, kv, group, dim, -1)[..., self.used] = k.view(prompts, group, kv, dim).transpose(1, 2)
        gv.view(prompts, kv, group, -1, dim)[..., self.used, :] = v.view(prompts, group, kv, dim).transpose(1, 2)
        q = q.reshape(prompts, group, kv, shared, dim).transpose(1, 2).float() * dim**-0.5
        over_prompt = torch.bmm(q.reshape(prompts * kv, group * shared, dim), pk)
        if self.mask_BT is not None:
            over_prompt.view(prompts, kv, -1, width).add_(self.mask_BT[:, None, None])
        over_own = torch.bmm(q.reshape(prompts * kv * group, shared, dim), gk[:, :, :end])
        scores = torch.cat([over_prompt.view(-1, width), over_own.view(-1, end)], dim=1)
        weight = scores.softmax(1)
        mixed = torch.bmm(weight[:, :width].view(prompts * kv, group * shared, width), pv).view(-1, shared, dim)
        mixed.baddbmm_(weight[:, width:].view(-1, shared, end), gv[:, :end])
        mixed = mixed.view(prompts, kv, group, shared, dim).transpose(1, 2)
        return mixed.reshape(rows, heads * dim).to(k.dtype)

    def keep(self, row_R: Tensor) -> None:
        """Keep only these rows (ascending). Rows stop sharing their prompt's copy: each gets its own (G becomes 1)."""
        kv, prompt_R, sample_R = self.kv_heads, row_R // self.group, row_R % self.group
        head_RK = prompt_R[:, None] * kv + torch.arange(kv, device=row_R.device)
        prompt_index, own_index = head_RK.flatten(), (head_RK * self.group + sample_R[:, None]).flatten()
        self.generated = [(k[own_index], v[own_index]) for k, v in self.generated]
        if self.group > 1 or len(row_R) < len(self.prompts[0][0]) // kv:
            self.prompts = [(k[prompt_index], v[prompt_index]) for k, v in self.prompts]
            self.mask_BT = None if self.mask_BT is None else self.mask_BT[prompt_R]
        self.group = 1


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


def _read_llama(model: Any, dtype: torch.dtype, positions: int) -> Decoder:
    config, body = model.config, model.model
    attention = body.layers[0].self_attn

    def fuse(*modules: nn.Linear) -> tuple[Tensor, Tensor | None]:
        weight = torch.cat([m.weight for m in modules]).to(dtype)
        return weight, None if modules[0].bias is None else torch.cat([m.bias for m in modules]).to(dtype)

    def norm(module: Any) -> Norm:
        return Norm(module.weight.detach().to(dtype), None, module.variance_epsilon)

    layers = [
        Layer(
            norm_1=norm(block.input_layernorm),
            qkv=fuse(block.self_attn.q_proj, block.self_attn.k_proj, block.self_attn.v_proj),
            q_norm=norm(block.self_attn.q_norm) if hasattr(block.self_attn, "q_norm") else None,
            k_norm=norm(block.self_attn.k_norm) if hasattr(block.self_attn, "k_norm") else None,
            out=fuse(block.self_attn.o_proj),
            norm_2=norm(block.post_attention_layernorm),
            up=fuse(block.mlp.gate_proj, block.mlp.up_proj),
            down=fuse(block.mlp.down_proj),
        )
        for block in body.layers
    ]
    position = torch.arange(positions, device=body.embed_tokens.weight.device)[None]
    cos, sin = body.rotary_emb(body.embed_tokens.weight.new_zeros(1), position)
    return Decoder(
        layers=layers,
        final_norm=norm(body.norm),
        embed_Vd=body.embed_tokens.weight.detach().to(dtype),
        head_Vd=model.lm_head.weight.detach().to(dtype),
        position_Td=None,
        cos_Th=cos[0].to(dtype),
        sin_Th=sin[0].to(dtype),
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=attention.head_dim,
        gated=True,
        activation=body.layers[0].mlp.act_fn,
    )


def _read_gpt2(model: Any, dtype: torch.dtype, positions: int) -> Decoder:
    config, body = model.config, model.transformer

    def linear(module: Any) -> tuple[Tensor, Tensor]:
        return module.weight.detach().T.contiguous().to(dtype), module.bias.detach().to(dtype)

    def norm(module: nn.LayerNorm) -> Norm:
        return Norm(module.weight.detach().to(dtype), module.bias.detach().to(dtype), module.eps)

    layers = [
        Layer(
            norm_1=norm(block.ln_1),
            qkv=linear(block.attn.c_attn),
            q_norm=None,
            k_norm=None,
            out=linear(block.attn.c_proj),
            norm_2=norm(block.ln_2),
            up=linear(block.mlp.c_fc),
            down=linear(block.mlp.c_proj),
        )
        for block in body.h
    ]
    return Decoder(
        layers=layers,
        final_norm=norm(body.ln_f),
        embed_Vd=body.wte.weight.detach().to(dtype),
        head_Vd=model.lm_head.weight.detach().to(dtype),
        position_Td=body.wpe.weight.detach().to(dtype),
        cos_Th=None,
        sin_Th=None,
        heads=config.n_head,
        kv_heads=config.n_head,
        head_dim=config.n_embd // config.n_head,
        gated=False,
        activation=body.h[0].mlp.act,
    )


FAMILIES: dict[str, Callable[[Any, torch.dtype, int], Decoder]] = {
    "llama": _read_llama,
    "mistral": _read_llama,
    "qwen2": _read_llama,
    "qwen3": _read_llama,
    "gpt2": _read_gpt2,
}
