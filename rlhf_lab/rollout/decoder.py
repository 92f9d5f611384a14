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
            return x * x.square().mean(-1, keepdim=True).add_(self.eps).rsqrt_() * self.weight
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
        embed_Vd, position_Td: token and learned position embeddings.
        turn_Th: rotary models instead turn query and key by these complex numbers, head_dim/2 per position. Their heads
            are stored with the two halves of each pair side by side, which leaves every dot product as it is.
        heads, kv_heads, head_dim: attention sizes; query heads share key heads in groups of heads // kv_heads.
    """

    layers: list[Layer]
    final_norm: Norm
    embed_Vd: Tensor
    head_Vd: Tensor
    position_Td: Tensor | None
    turn_Th: Tensor | None
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

    def _project(self, layer: Layer, x: Tensor, turn: Tensor | None) -> tuple[Tensor, ...]:
        """float32 query (…, heads, head_dim), key and value (…, kv_heads, head_dim), rotated by `turn`."""
        qkv = self._linear(layer.norm_1(x), layer.qkv).unflatten(-1, (-1, self.head_dim))
        qk, v = qkv.split([self.heads + self.kv_heads, self.kv_heads], dim=-2)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = qk.split([self.heads, self.kv_heads], dim=-2)
            qk = torch.cat([layer.q_norm(q), layer.k_norm(k)], dim=-2)
        if turn is not None:
            qk = torch.view_as_real(torch.view_as_complex(qk.unflatten(-1, (-1, 2))) * turn).flatten(-2)
        return *qk.split([self.heads, self.kv_heads], dim=-2), v

    def _turn(self, position: Tensor) -> Tensor | None:
        """Rotations (…, 1, head_dim/2) of positions as complex numbers, None where positions are learned."""
        return None if self.turn_Th is None else self.turn_Th[position][..., None, :]

    def _linear(self, x: Tensor, parameters: tuple[Tensor, Tensor | None]) -> Tensor:
        """A projection in the weights' dtype; float32 in and out."""
        return F.linear(x.to(self.embed_Vd.dtype), *parameters).float()

    def _mlp(self, layer: Layer, x: Tensor) -> Tensor:
        hidden = F.linear(layer.norm_2(x).to(self.embed_Vd.dtype), *layer.up)
        if self.gated:
            gate, up = hidden.chunk(2, dim=-1)
            return self._linear(self.activation(gate) * up, layer.down)
        return self._linear(self.activation(hidden), layer.down)

    def _embed(self, tokens: Tensor, position: Tensor) -> Tensor:
        x = self.embed_Vd[tokens]
        return (x if self.position_Td is None else x + self.position_Td[position]).float()

    def logits(self, x: Tensor) -> Tensor:
        """float32 logits of hidden states."""
        return self._linear(self.final_norm(x), (self.head_Vd, None))

    def prefill(self, tokens_BT: Tensor, length_B: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Run right-padded prompts. Returns the last real token's hidden state (B, d) and per layer the keys
        (B·kv_heads, head_dim, T) and values (B·kv_heads, T, head_dim)."""
        rows, width = tokens_BT.shape
        position = torch.arange(width, device=tokens_BT.device)
        x, turn, cache = self._embed(tokens_BT, position), self._turn(position), []
        for layer in self.layers:
            q, k, v = (part.transpose(1, 2) for part in self._project(layer, x, turn))
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
            x = x + self._linear(attended.transpose(1, 2).flatten(2), layer.out)
            x = x + self._mlp(layer, x)
            flat = rows * self.kv_heads
            cache.append((k.transpose(2, 3).reshape(flat, -1, width), v.reshape(flat, width, -1)))
        return x[torch.arange(rows, device=x.device), length_B - 1], cache

    def step(self, tokens_R: Tensor, position_R: Tensor, cache: GroupCache) -> Tensor:
        """Feed one new token per row (R = groups · G); writes the cache's next slot. Returns hidden states (R, d)."""
        x, turn = self._embed(tokens_R, position_R), self._turn(position_R)
        for index, layer in enumerate(self.layers):
            q, k, v = self._project(layer, x, turn)
            x = x + self._linear(cache.attend(index, q, k, v), layer.out)
            x = x + self._mlp(layer, x)
        cache.used += 1
        return x


@dataclass
class GroupCache:
    """Keys and values of B prompts, each shared by G rows, and of the tokens those rows have generated.

    Heads are laid out (prompt, kv head, sample of the group), so that one bmm over prompts·kv serves the whole group and
    one over prompts·kv·G serves each row's own past, without rearranging. float32 whatever the weights' dtype, like
    the residual stream: attention over a slice of a bf16 buffer copies the slice.

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
        q = q.reshape(prompts, group, kv, shared, dim).transpose(1, 2) * dim**-0.5
        over_prompt = torch.bmm(q.reshape(prompts * kv, group * shared, dim), pk)
        if self.mask_BT is not None:
            over_prompt.view(prompts, kv, -1, width).add_(self.mask_BT[:, None, None])
        over_own = torch.bmm(q.reshape(prompts * kv * group, shared, dim), gk[:, :, :end])
        scores = torch.cat([over_prompt.view(-1, width), over_own.view(-1, end)], dim=1)
        weight = scores.softmax(1)
        mixed = torch.bmm(weight[:, :width].view(prompts * kv, group * shared, width), pv).view(-1, shared, dim)
        mixed.baddbmm_(weight[:, width:].view(-1, shared, end), gv[:, :end])
        mixed = mixed.view(prompts, kv, group, shared, dim).transpose(1, 2)
        return mixed.reshape(rows, heads * dim)

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


def _read_llama(model: Any, dtype: torch.dtype, positions: int) -> Decoder:
    config, body = model.config, model.model
    attention = body.layers[0].self_attn

    def fuse(*modules: nn.Linear) -> tuple[Tensor, Tensor | None]:
        weight = torch.cat([m.weight for m in modules]).to(dtype)
        return weight, None if modules[0].bias is None else torch.cat([m.bias for m in modules]).to(dtype)

    def norm(module: Any) -> Norm:
        return Norm(module.weight.detach().float(), None, module.variance_epsilon)

    def paired(x: Tensor) -> Tensor:
        """Rows of each head from (first half, second half) to pairs side by side."""
        return x.unflatten(0, (-1, 2, attention.head_dim // 2)).transpose(1, 2).flatten(0, 2)

    def pair_norm(module: Any) -> Norm:
        return Norm(paired(module.weight.detach().float()), None, module.variance_epsilon)

    def fuse_qkv(q: nn.Linear, k: nn.Linear, v: nn.Linear) -> tuple[Tensor, Tensor | None]:
        weight = torch.cat([paired(q.weight), paired(k.weight), v.weight]).to(dtype)
        return weight, None if q.bias is None else torch.cat([paired(q.bias), paired(k.bias), v.bias]).to(dtype)

    layers = [
        Layer(
            norm_1=norm(block.input_layernorm),
            qkv=fuse_qkv(block.self_attn.q_proj, block.self_attn.k_proj, block.self_attn.v_proj),
            q_norm=pair_norm(block.self_attn.q_norm) if hasattr(block.self_attn, "q_norm") else None,
            k_norm=pair_norm(block.self_attn.k_norm) if hasattr(block.self_attn, "k_norm") else None,
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
        turn_Th=torch.complex(cos[0], sin[0])[:, : attention.head_dim // 2],
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
        return Norm(module.weight.detach().float(), module.bias.detach().float(), module.eps)

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
        turn_Th=None,
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
