"""A bare decoder for the two most common families: GPT-2, and Llama with its relatives (Mistral, Qwen).

It reads the weights of a Hugging Face model and decodes without its module tree. The KV cache does not grow by one
token per step:

- each prompt is run once per group, and the group's samples share its KV cache;
- all rows generate in step: slot t is the t-th new token of every row, and only positions differ between rows;
- large projections hold their weights packed for the CPU (`linear.py`);
- norm weights, √d, the attention scale and an adapter's product are multiplied into the weights once;
- a model that is stored in bfloat16 or four bits (`model.weights`) is not copied: its own layers are called.

Not supported: sliding windows shorter than the sequence, cross-attention, mixture of experts. `Decoder.of` returns None
for a model that it does not support, and the sampler then uses the model's own forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlhf_lab.models.by_block import BlockByBlock, gather_context_of
from rlhf_lab.models.shared_prompt import attention_window
from rlhf_lab.models.weights import stored_as
from rlhf_lab.sampling.cache import GroupCache, StepCost
from rlhf_lab.sampling.linear import ACTIVATIONS, Activation, InPlace, Linear, LinearSource

Projection = Linear | InPlace


@dataclass
class DecoderLayer:
    """Weights of one block. `qkv` is fused; with a gated MLP, `up` holds both the gate and the up projection.

    Attributes:
        head_norm: weights (heads + kv_heads, head_dim) of the norm of each query and key head, or None.
    """

    norm_1: Activation
    qkv: Projection
    head_norm: Tensor | None
    out: Projection
    norm_2: Activation
    up: Projection
    down: Projection


def _rms(x: Tensor, floor: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return x/√(Σx² + floor²) with floor = √(d·ε), times `weight` if the next projection does not include it."""
    normed = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot_(floor)
    return normed if weight is None else normed * weight


@dataclass
class Decoder:
    """Weights and sizes of a model; see `start` and `step`. The residual stream is float32 with any weight dtype.

    Attributes:
        embed_Vd, position_Td: token embeddings, and learned position embeddings (None for rotary models).
        rotation_Th: rotations of rotary models, as head_dim/2 complex numbers per position. Query and key heads are
            stored with the two halves of each pair next to each other, which leaves every dot product unchanged.
        heads, kv_heads, head_dim: attention sizes; heads // kv_heads query heads share a key head.
        head_eps: ε of the norm of each query and key head; 0 without such a norm.
        gated: True if the MLP multiplies its activation by a second projection (SwiGLU).
        refills: True if new rows may join rows that have already started.
    """

    refills: ClassVar[bool] = True
    layers: Iterable[DecoderLayer]
    final_norm: Activation
    embed_Vd: Tensor
    head: Projection
    position_Td: Tensor | None
    rotation_Th: Tensor | None
    heads: int
    kv_heads: int
    head_dim: int
    head_eps: float
    gated: bool
    activation: Activation
    cache_dtype: torch.dtype

    @staticmethod
    def of(model: nn.Module, dtype: torch.dtype, positions: int) -> Decoder | None:
        """Return a decoder with the weights of `model` in `dtype` for up to `positions` tokens, or None."""
        config: Any = model.config
        read_weights = FAMILIES.get(config.model_type)
        slides = attention_window(config) < positions
        if read_weights is None or slides:
            return None
        return read_weights(model, dtype, positions)

    def _project_qkv(self, layer: DecoderLayer, x: Tensor, rotation: Tensor | None) -> Tensor:
        """Return queries (scaled), keys and values, float32 (…, heads + 2·kv_heads, head_dim); q and k are rotated."""
        qkv = layer.qkv(layer.norm_1(x)).float()
        qkv = qkv.unflatten(-1, (-1, self.head_dim))
        qk = qkv[..., : self.heads + self.kv_heads, :]  # a view: the norm and the rotation modify `qkv` in place
        if layer.head_norm is not None:
            qk.copy_(F.rms_norm(qk, (self.head_dim,), None, self.head_eps) * layer.head_norm)
        if rotation is not None:
            torch.view_as_complex(qk.unflatten(-1, (-1, 2))).mul_(rotation)
        return qkv

    def _rotation(self, position: Tensor) -> Tensor | None:
        """Return the rotations of positions, complex (…, 1, head_dim/2), or None if positions are learned."""
        return None if self.rotation_Th is None else self.rotation_Th[position][..., None, :]

    def _finish_block(self, layer: DecoderLayer, x: Tensor, attended: Tensor) -> Tensor:
        """Compute the rest of a block after attention: output projection and MLP, each added to the residual stream."""
        x = layer.out.plus(attended, x)
        normed = layer.norm_2(x)
        if not self.gated:
            return layer.down.plus(layer.up(normed, self.activation), x)
        gate, up = layer.up(normed).chunk(2, dim=-1)  # one matmul computes both
        return layer.down.plus(self.activation(gate).mul_(up), x)

    def _embed(self, tokens: Tensor, position: Tensor) -> Tensor:
        x = F.embedding(tokens, self.embed_Vd).float()
        if self.position_Td is not None:
            x = x + self.position_Td[position]
        return x

    def logits(self, x: Tensor) -> Tensor:
        return self.head(self.final_norm(x))

    def start(self, prompts: Sequence[list[int]], group: int, device: torch.device) -> tuple[Tensor, GroupCache]:
        """Run the prompts. Returns the hidden state of each last token (B, d), and the cache for B·group rows."""
        width = max(map(len, prompts))
        kv = self.kv_heads
        # right padding: attention is causal, so prompts do not see the padding, and later steps mask it
        padded = [[*p, *([0] * (width - len(p)))] for p in prompts]
        tokens_BT = torch.tensor(padded, device=device)
        length_B = torch.tensor([len(p) for p in prompts], device=device)
        position = torch.arange(width, device=device)
        position_N = position.repeat(len(prompts))
        x = self._embed(tokens_BT.flatten(), position_N)
        rotation = self._rotation(position_N)
        prompt_cache = []
        for layer in self.layers:
            qkv = self._project_qkv(layer, x, rotation).to(self.cache_dtype)
            qkv = qkv.unflatten(0, tokens_BT.shape).transpose(1, 2)
            q, k, v = qkv.split([self.heads, kv, kv], dim=1)
            # scale=1.0 because the attention scale is included in the projection's weights
            is_grouped = self.heads != kv
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0, enable_gqa=is_grouped)
            # (B, heads, T, h) → (B·T, heads·h)
            attended = attended.transpose(1, 2).flatten(2).flatten(0, 1)
            x = self._finish_block(layer, x, attended.float())
            prompt_cache.append(torch.stack([k, v]).flatten(1, 2))
        last_token_B = torch.arange(len(prompts), device=device) * width + length_B - 1
        hidden_Bd = x[last_token_B]
        mask_BT = torch.zeros_like(tokens_BT, dtype=torch.float32)
        mask_BT.masked_fill_(position >= length_B[:, None], -torch.inf)
        rows = len(prompts) * kv * group
        generated = [kv_cache.new_zeros(2, rows, 0, self.head_dim) for kv_cache in prompt_cache]
        return hidden_Bd, GroupCache(prompt_cache, generated, mask_BT, group, kv)

    def step(self, token_R: Tensor, position_R: Tensor, cache: GroupCache) -> Tensor:
        """Feed one new token per row and write the next slot of the cache. Returns hidden states (R, d)."""
        return self.advance(self._embed(token_R, position_R), position_R, cache)

    def advance(self, x: Tensor, position_R: Tensor, cache: GroupCache) -> Tensor:
        """Do the same as `step` for inputs that are already embedded, (R, d) float32."""
        cache.open_slot()
        rotation = self._rotation(position_R)
        for index, layer in enumerate(self.layers):
            attended = cache.attend(index, self._project_qkv(layer, x, rotation))
            x = self._finish_block(layer, x, attended)
        return x

    def step_cost(self, cache: GroupCache) -> StepCost:
        """Return the cost of a step, in tokens of KV cache that are read.

        On a CPU the matmuls of a row take about as long as reading as many tokens as the model is wide. The fixed cost
        of a step is that of about 15 rows (measured, 1M to 124M parameters). On a GPU the fixed cost is reading the
        weights: about 12d² numbers per layer, against 2·kv·h per token. Reading them takes as long as multiplying
        about 300 rows by them.
        """
        width = self.embed_Vd.shape[1]
        if self.embed_Vd.device.type == "cpu":
            return StepCost(step=15 * width, row=width + cache.slots, prompt=cache.width)
        weights = 6 * width**2 // (self.kv_heads * self.head_dim)
        return StepCost(step=weights, row=weights // 300 + cache.slots, prompt=cache.width)


class LayerReader:
    """Reader of the weights of a model's layers, which returns them as projections.

    For a model stored in less than float32 the projections call the model's layers, so nothing is multiplied into
    their weights.

    Args:
        dtype: dtype of the projections' copies of the weights.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype):
        self.dtype = dtype
        self.gatherer = gather_context_of(model)
        self.in_place = stored_as(model) != "float32"

    def layers(self, blocks: Iterable[nn.Module], read: Callable[[Any], DecoderLayer]) -> Iterable[DecoderLayer]:
        """Return the layers of the blocks; if blocks are all-gathered one by one, every pass reads them again."""
        if self.gatherer is None:
            return [read(block) for block in blocks]
        return FullLayers(blocks, read, self.gatherer)

    def projection(self, *sources: LinearSource, norm_d: Tensor | None = None) -> Projection:
        """Return one projection for several layers with the same input. Either all of them have a bias or none.

        Args:
            norm_d: weight of the norm before the projection, still to be multiplied into it; None if there is none.
        """
        if self.in_place:
            return InPlace(sources)
        weights = [source.weight if norm_d is None else source.weight * norm_d for source in sources]
        all_biases = [source.bias for source in sources]
        biases = [bias for bias in all_biases if bias is not None]
        bias = torch.cat(biases).to(self.dtype) if biases else None
        return Linear(torch.cat(weights).to(self.dtype), bias)


@dataclass
class FullLayers:
    """Layers of a sharded model, read block by block: a block is all-gathered, read, and freed before the next one."""

    blocks: Iterable[nn.Module]
    read: Callable[[Any], DecoderLayer]
    gatherer: BlockByBlock

    def __iter__(self) -> Iterator[DecoderLayer]:
        for block in self.blocks:
            with self.gatherer.gathers_full_block(block):
                layer = self.read(block)
                yield layer
                # the consumer of this iterator keeps a reference to the layer until it receives the next one
                vars(layer).clear()


def read_llama(model: Any, dtype: torch.dtype, positions: int) -> Decoder:
    config = model.config
    body = model.model
    attention = body.layers[0].self_attn
    head_dim = attention.head_dim
    hidden = config.hidden_size
    eps = body.norm.variance_epsilon
    has_head_norms = hasattr(attention, "q_norm")
    # A norm of each query would undo a scale of the projection before it, so the norm's weight gets the scale instead.
    query_scale = 1.0 if has_head_norms else attention.scaling
    floor = torch.tensor((hidden * eps) ** 0.5, device=model.device)
    reader = LayerReader(model, dtype)

    def pairs(rows: int) -> Tensor:
        """Return the row order that puts the two halves of each rotary pair next to each other, for every head."""
        order = torch.arange(rows, device=model.device)
        return order.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).flatten()

    def read_norm(rms_norm: Any) -> Activation:
        # the norm's weight and √d are multiplied into the next projection, unless that one calls the model's layer
        return partial(_rms, floor=floor, weight=after_norm(rms_norm) if reader.in_place else None)

    def after_norm(rms_norm: Any) -> Tensor:
        weight: Tensor = rms_norm.weight.detach().float()
        return weight * hidden**0.5

    def read_qkv(block: Any) -> Projection:
        attn = block.self_attn
        query_pairs = pairs(config.num_attention_heads * head_dim)
        key_pairs = pairs(config.num_key_value_heads * head_dim)
        q = LinearSource(attn.q_proj, query_scale, query_pairs)
        k = LinearSource(attn.k_proj, order=key_pairs)
        return reader.projection(q, k, LinearSource(attn.v_proj), norm_d=after_norm(block.input_layernorm))

    def head_norm_weights(attn: Any) -> Tensor | None:
        if not has_head_norms:
            return None
        q = attn.q_norm.weight.detach().float()[pairs(head_dim)]
        k = attn.k_norm.weight.detach().float()[pairs(head_dim)]
        # one weight per head: query heads first, then key heads, as in `_project_qkv`
        query_norms = [q * attention.scaling] * config.num_attention_heads
        key_norms = [k] * config.num_key_value_heads
        return torch.stack(query_norms + key_norms)

    def read_layer(block: Any) -> DecoderLayer:
        attn = block.self_attn
        mlp = block.mlp
        gate_and_up = (LinearSource(mlp.gate_proj), LinearSource(mlp.up_proj))
        return DecoderLayer(
            norm_1=read_norm(block.input_layernorm),
            qkv=read_qkv(block),
            head_norm=head_norm_weights(attn),
            out=reader.projection(LinearSource(attn.o_proj)),
            norm_2=read_norm(block.post_attention_layernorm),
            up=reader.projection(*gate_and_up, norm_d=after_norm(block.post_attention_layernorm)),
            down=reader.projection(LinearSource(mlp.down_proj)),
        )

    position = torch.arange(positions, device=body.embed_tokens.weight.device)[None]
    # the rotary module uses its input only for dtype and device
    dtype_and_device = body.embed_tokens.weight.new_zeros(1, dtype=torch.float32)
    cos, sin = body.rotary_emb(dtype_and_device, position)
    return Decoder(
        layers=reader.layers(body.layers, read_layer),
        final_norm=read_norm(body.norm),
        embed_Vd=body.embed_tokens.weight.detach(),
        head=reader.projection(LinearSource(model.lm_head), norm_d=after_norm(body.norm)),
        position_Td=None,
        # Hugging Face repeats the angles for both halves of a head; one complex number per pair is sufficient
        rotation_Th=torch.complex(cos[0], sin[0])[:, : head_dim // 2],
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        head_eps=attention.q_norm.variance_epsilon if has_head_norms else 0.0,
        gated=True,
        activation=ACTIVATIONS.get(config.hidden_act, body.layers[0].mlp.act_fn),
        cache_dtype=dtype,
    )


def _read_gpt2(model: Any, dtype: torch.dtype, positions: int) -> Decoder:
    config = model.config
    body = model.transformer
    hidden = config.n_embd
    reader = LayerReader(model, dtype)

    def read_norm(module: nn.LayerNorm) -> Activation:
        weight = module.weight.detach().float()
        bias = module.bias.detach().float()
        return partial(F.layer_norm, normalized_shape=(hidden,), weight=weight, bias=bias, eps=module.eps)

    def read_qkv(attention: Any) -> Projection:
        scale_D = torch.ones(3 * hidden, device=model.device)
        scale_D[:hidden] = attention.scaling  # queries only
        return reader.projection(LinearSource(attention.c_attn, scale_D))

    def read_layer(block: Any) -> DecoderLayer:
        return DecoderLayer(
            norm_1=read_norm(block.ln_1),
            qkv=read_qkv(block.attn),
            head_norm=None,
            out=reader.projection(LinearSource(block.attn.c_proj)),
            norm_2=read_norm(block.ln_2),
            up=reader.projection(LinearSource(block.mlp.c_fc)),
            down=reader.projection(LinearSource(block.mlp.c_proj)),
        )

    return Decoder(
        layers=reader.layers(body.h, read_layer),
        final_norm=read_norm(body.ln_f),
        embed_Vd=body.wte.weight.detach(),
        head=reader.projection(LinearSource(model.lm_head)),
        position_Td=body.wpe.weight.detach(),
        rotation_Th=None,
        heads=config.n_head,
        kv_heads=config.n_head,
        head_dim=hidden // config.n_head,
        head_eps=0.0,
        gated=False,
        activation=ACTIVATIONS.get(config.activation_function, body.h[0].mlp.act),
        cache_dtype=dtype,
    )


FAMILIES: dict[str, Callable[[Any, torch.dtype, int], Decoder]] = {
    "llama": read_llama,
    "mistral": read_llama,
    "qwen2": read_llama,
    "qwen3": read_llama,
    "gpt2": _read_gpt2,
}
