"""A bare decoder for the two families the lab meets most: GPT-2, and Llama with its relatives (Mistral, Qwen).

It reads the weights of a Hugging Face model and decodes without modules or a cache that grows by a token a step:

- the prompt is run once per group; its keys and values are shared by the group's samples;
- all rows generate in step, so slot t is the t-th new token of every row and only positions differ between rows;
- large projections hold their weights packed for the CPU (`linear.py`);
- norm weights, √d and the attention scale are multiplied into the weights once, and so is an adapter's product.

Left out: sliding windows shorter than the sequence, cross-attention, mixture of experts. `Decoder.of` returns None for
a model it does not know, and the sampler then uses the model's own forward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlhf_lab.models.lora import effective_weight
from rlhf_lab.models.shared_prompt import attention_window
from rlhf_lab.sampling.cache import GroupCache
from rlhf_lab.sampling.linear import ACTIVATIONS, Activation, Linear


@dataclass
class Layer:
    """One block. `qkv` is fused, and so are gate and up projection in `up` where the MLP is gated.

    Attributes:
        head_norm: weights (heads + kv_heads, head_dim) of the norm of each query and key head, or None.
    """

    norm_1: Activation
    qkv: Linear
    head_norm: Tensor | None
    out: Linear
    norm_2: Activation
    up: Linear
    down: Linear


def _rms(x: Tensor, floor: Tensor) -> Tensor:
    """x/√(Σx² + floor²), floor = √(d·ε). The weights of the next projection hold the norm's own weight and √d."""
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot_(floor)


@dataclass
class Decoder:
    """Weights and sizes; see `start` and `step`. The residual stream and attention are float32 in any dtype.

    Attributes:
        embed_Vd, position_Td: token and learned position embeddings.
        turn_Th: rotary models instead turn query and key by these complex numbers, head_dim/2 per position. Their heads
            are stored with the two halves of each pair side by side, which leaves every dot product as it is.
        heads, kv_heads, head_dim: attention sizes; query heads share key heads in groups of heads // kv_heads.
    """

    layers: list[Layer]
    final_norm: Activation
    embed_Vd: Tensor
    head: Linear
    position_Td: Tensor | None
    turn_Th: Tensor | None
    heads: int
    kv_heads: int
    head_dim: int
    head_eps: float
    gated: bool
    activation: tuple[Activation, str, str]

    @staticmethod
    def of(model: nn.Module, dtype: torch.dtype, positions: int) -> Decoder | None:
        """A decoder with the weights of `model` in `dtype` for sequences of up to `positions` tokens, or None."""
        config: Any = model.config
        read = FAMILIES.get(config.model_type)
        windowed = attention_window(config) < positions
        return None if read is None or windowed else read(model, dtype, positions)

    def _project(self, layer: Layer, x: Tensor, turn: Tensor | None) -> Tensor:
        """float32 (…, heads + 2·kv_heads, head_dim): scaled queries and keys, both turned, then values."""
        qkv = layer.qkv(layer.norm_1(x)).float().unflatten(-1, (-1, self.head_dim))
        qk = qkv[..., : self.heads + self.kv_heads, :]
        if layer.head_norm is not None:
            qk.copy_(F.rms_norm(qk, (self.head_dim,), None, self.head_eps) * layer.head_norm)
        if turn is not None:
            torch.view_as_complex(qk.unflatten(-1, (-1, 2))).mul_(turn)
        return qkv

    def _turn(self, position: Tensor) -> Tensor | None:
        """Rotations (…, 1, head_dim/2) of positions as complex numbers, None where positions are learned."""
        return None if self.turn_Th is None else self.turn_Th[position][..., None, :]

    def _finish(self, layer: Layer, x: Tensor, attended: Tensor) -> Tensor:
        """The rest of a block after attention."""
        x = layer.out.plus(attended, x)
        normed = layer.norm_2(x)
        if not self.gated:
            return layer.down.plus(layer.up(normed, self.activation), x)
        gate, up = layer.up(normed).chunk(2, dim=-1)
        return layer.down.plus(self.activation[0](gate).mul_(up), x)

    def _embed(self, tokens: Tensor, position: Tensor) -> Tensor:
        x = F.embedding(tokens, self.embed_Vd)
        return (x if self.position_Td is None else x + self.position_Td[position]).float()

    def logits(self, x: Tensor) -> Tensor:
        """Logits of hidden states, in the weights' dtype."""
        return self.head(self.final_norm(x))

    def start(self, prompts: Sequence[list[int]], group: int, device: torch.device) -> tuple[Tensor, GroupCache]:
        """Run the prompts. Returns the hidden state at each one's last token (B, d), and the cache for B·group rows."""
        width, kv = max(map(len, prompts)), self.kv_heads
        tokens_BT = torch.tensor([[*p, *([0] * (width - len(p)))] for p in prompts], device=device)
        length_B = torch.tensor([len(p) for p in prompts], device=device)
        position = torch.arange(width, device=device)
        x, keys_values = self._embed(tokens_BT.flatten(), position.repeat(len(prompts))), []
        turn = self._turn(position.repeat(len(prompts)))
        for layer in self.layers:
            qkv = self._project(layer, x, turn).unflatten(0, tokens_BT.shape).transpose(1, 2)
            q, k, v = qkv.split([self.heads, kv, kv], dim=1)
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0, enable_gqa=self.heads != kv)
            x = self._finish(layer, x, attended.transpose(1, 2).flatten(2).flatten(0, 1))
            keys_values.append(torch.stack([k, v]).flatten(1, 2))
        hidden_Bd = x[torch.arange(len(prompts), device=device) * width + length_B - 1]
        mask_BT = torch.zeros_like(tokens_BT, dtype=torch.float32)
        mask_BT.masked_fill_(position >= length_B[:, None], -torch.inf)
        own = [part.new_zeros(2, len(prompts) * kv * group, 0, self.head_dim) for part in keys_values]
        return hidden_Bd, GroupCache(keys_values, own, mask_BT, group, kv)

    def step(self, token_R: Tensor, position_R: Tensor, cache: GroupCache) -> Tensor:
        """Feed one new token per row; writes the cache's next slot. Returns hidden states (R, d)."""
        cache.open_slot()
        x, turn = self._embed(token_R, position_R), self._turn(position_R)
        for index, layer in enumerate(self.layers):
            x = self._finish(layer, x, cache.attend(index, self._project(layer, x, turn)))
        return x

    def row_cost(self, cache: GroupCache) -> tuple[int, int]:
        """What a row, and what a copy of its prompt adds to a step, in tokens attended over.

        A row's matmuls take about as long as reading the keys and values of as many tokens as the model is wide.
        """
        return self.embed_Vd.shape[1] + cache.own[0].shape[2], cache.prompts[0].shape[2]


def _fuse(parts: Sequence[Tensor], biases: Sequence[Tensor | None], dtype: torch.dtype) -> Linear:
    bias = None if biases[0] is None else torch.cat([b.detach() for b in biases if b is not None]).to(dtype)
    return Linear(torch.cat([part.detach() for part in parts]).to(dtype), bias)


def _read_llama(model: Any, dtype: torch.dtype, positions: int) -> Decoder:
    config, body, attention = model.config, model.model, model.model.layers[0].self_attn
    dim, hidden, eps = attention.head_dim, config.hidden_size, body.norm.variance_epsilon
    normed_heads = hasattr(attention, "q_norm")
    scale = 1.0 if normed_heads else attention.scaling
    norm = partial(_rms, floor=torch.tensor((hidden * eps) ** 0.5, device=model.device))

    def paired(x: Tensor | None) -> Tensor | None:
        """Rows of each head from (first half, second half) to pairs side by side."""
        return None if x is None else x.detach().float().unflatten(0, (-1, 2, dim // 2)).transpose(1, 2).flatten(0, 2)

    def after(normed: Any, *parts: tuple[Tensor | None, Tensor | None]) -> Linear:
        """A projection of (weight, bias) parts after an RMSNorm, whose weight and √d it takes over."""
        by_d = normed.weight.detach().float() * hidden**0.5
        return _fuse([weight * by_d for weight, _ in parts if weight is not None], [bias for _, bias in parts], dtype)

    def qkv(block: Any) -> Linear:
        a = block.self_attn
        bias = a.q_proj.bias
        q = (paired(effective_weight(a.q_proj) * scale), paired(None if bias is None else bias * scale))
        k = (paired(effective_weight(a.k_proj)), paired(a.k_proj.bias))
        return after(block.input_layernorm, q, k, (effective_weight(a.v_proj), a.v_proj.bias))

    def head_norm(a: Any) -> Tensor | None:
        if not normed_heads:
            return None
        q, k = paired(a.q_norm.weight), paired(a.k_norm.weight)
        assert q is not None and k is not None
        return torch.stack([q * attention.scaling] * config.num_attention_heads + [k] * config.num_key_value_heads)

    def layer(block: Any) -> Layer:
        a, mlp, gate_up = block.self_attn, block.mlp, (block.mlp.gate_proj, block.mlp.up_proj)
        return Layer(
            norm_1=norm,
            qkv=qkv(block),
            head_norm=head_norm(a),
            out=_fuse([effective_weight(a.o_proj)], [a.o_proj.bias], dtype),
            norm_2=norm,
            up=after(block.post_attention_layernorm, *((effective_weight(m), m.bias) for m in gate_up)),
            down=_fuse([effective_weight(mlp.down_proj)], [mlp.down_proj.bias], dtype),
        )

    position = torch.arange(positions, device=body.embed_tokens.weight.device)[None]
    cos, sin = body.rotary_emb(body.embed_tokens.weight.new_zeros(1, dtype=torch.float32), position)
    return Decoder(
        layers=[layer(block) for block in body.layers],
        final_norm=norm,
        embed_Vd=body.embed_tokens.weight.detach(),
        head=after(body.norm, (model.lm_head.weight, model.lm_head.bias)),
        position_Td=None,
        turn_Th=torch.complex(cos[0], sin[0])[:, : dim // 2],
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=dim,
        head_eps=attention.q_norm.variance_epsilon if normed_heads else 0.0,
        gated=True,
        activation=_activation(config.hidden_act, body.layers[0].mlp.act_fn),
    )


def _read_gpt2(model: Any, dtype: torch.dtype, positions: int) -> Decoder:
    config, body = model.config, model.transformer
    hidden = config.n_embd

    def linear(module: Any, scale_D: Tensor | float = 1.0) -> Linear:
        return _fuse([(effective_weight(module) * scale_D).T], [module.bias * scale_D], dtype)

    def norm(module: nn.LayerNorm) -> Activation:
        weight, bias = module.weight.detach().float(), module.bias.detach().float()
        return partial(F.layer_norm, normalized_shape=(hidden,), weight=weight, bias=bias, eps=module.eps)

    def qkv(attention: Any) -> Linear:
        scale_D = torch.ones(3 * hidden, device=model.device)
        scale_D[:hidden] = attention.scaling
        return linear(attention.c_attn, scale_D)

    layers = [
        Layer(
            norm_1=norm(block.ln_1),
            qkv=qkv(block.attn),
            head_norm=None,
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
        embed_Vd=body.wte.weight.detach(),
        head=_fuse([model.lm_head.weight], [model.lm_head.bias], dtype),
        position_Td=body.wpe.weight.detach(),
        turn_Th=None,
        heads=config.n_head,
        kv_heads=config.n_head,
        head_dim=hidden // config.n_head,
        head_eps=0.0,
        gated=False,
        activation=_activation(config.activation_function, body.h[0].mlp.act),
    )


def _activation(name: str, module: Activation) -> tuple[Activation, str, str]:
    return ACTIVATIONS.get(name, (module, "", ""))


FAMILIES: dict[str, Callable[[Any, torch.dtype, int], Decoder]] = {
    "llama": _read_llama,
    "mistral": _read_llama,
    "qwen2": _read_llama,
    "qwen3": _read_llama,
    "gpt2": _read_gpt2,
}
