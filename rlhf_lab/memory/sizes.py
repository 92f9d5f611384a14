"""Sizes of a transformer and quantities derived from them: numbers of parameters, adapters, KV cache.

There are two families: GPT-2, and Llama with its relatives (Mistral, Qwen2, Qwen3, the Gemmas, Mixtral, Qwen3-MoE). The
published shapes are copied from public configs, so nothing is downloaded to use them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a causal language model, or of one with a scalar head instead of the output head.

    Attributes:
        hidden, layers, heads, kv_heads, head_dim, mlp: sizes; heads // kv_heads query heads share a key head.
        vocabulary: number of rows of the token embedding.
        positions: number of learned positions; 0 for rotary positions.
        tied: True if the output head is the token embedding.
        outputs: number of outputs of a scalar head; 0 for a language model.
        qkv_bias, out_bias: True if the attention's projections have biases (Llama's family; GPT-2 has all).
        head_norm: True if each query and key head has a norm (Qwen3, Gemma 3).
        experts, active: MLPs in each block, all in memory, and MLPs that process a token; 0 is one MLP.
        scaled_norms: True if norms compute in float32 and multiply by 1 + weight (Gemma).
        post_norms: True if attention and MLP are also followed by norms (Gemma 2 and 3).
        capped_scores: True if attention scores are capped, which no fused kernel of PyTorch does (Gemma 2).
        capped_logits: True if logits are capped, and recomputed in the backward pass (Gemma 2).
        own_decoder: True if the built-in sampler has a decoder for it; otherwise it calls the model's forward pass.
    """

    family: Literal["llama", "gpt2"]
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocabulary: int
    positions: int = 0
    tied: bool = True
    outputs: int = 0
    qkv_bias: bool = False
    out_bias: bool = False
    head_norm: bool = False
    experts: int = 0
    active: int = 0
    scaled_norms: bool = False
    post_norms: bool = False
    capped_scores: bool = False
    capped_logits: bool = False
    own_decoder: bool = True
    name: str = ""

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """Linear layers of a block, without experts: end of the module's name → (inputs, outputs)."""
        h = self.hidden
        q = self.heads * self.head_dim
        kv = self.kv_heads * self.head_dim
        m = self.mlp
        if self.family == "gpt2":
            return {
                "attn.c_attn": (h, 3 * q),  # query, key and value in one matrix
                "attn.c_proj": (q, h),
                "mlp.c_fc": (h, m),
                "mlp.c_proj": (m, h),
            }
        attention = {"q_proj": (h, q), "k_proj": (h, kv), "v_proj": (h, kv), "o_proj": (q, h)}
        if self.experts:
            return attention
        mlp = {"gate_proj": (h, m), "up_proj": (h, m), "down_proj": (m, h)}
        return attention | mlp

    @property
    def block_matrices(self) -> int:
        """Number of entries of a block's matrices, including experts and their router."""
        layers = sum(inputs * outputs for inputs, outputs in self.matrices.values())
        return layers + self.expert_weights + self.experts * self.hidden

    @property
    def expert_weights(self) -> int:
        """Number of entries of a block's experts."""
        # gate, up and down projection of each expert
        return self.experts * 3 * self.hidden * self.mlp

    @property
    def largest(self) -> int:
        """Entries of the largest MLP tensor with a gradient; gate and up projection of experts are one tensor."""
        return self.hidden * self.mlp * (2 * self.experts or 1)

    @property
    def mlp_width(self) -> int:
        """Total MLP width that processes a token."""
        return self.mlp * (self.active or 1)

    @property
    def norms(self) -> int:
        """Number of norms of the hidden size in a block."""
        return 4 if self.post_norms else 2

    @property
    def block(self) -> int:
        """Number of parameters of a block: matrices, biases, norms."""
        if self.family == "gpt2":
            biases = sum(outputs for _, outputs in self.matrices.values())
            norms = 4 * self.hidden  # two layer norms with weight and bias
            return self.block_matrices + biases + norms
        qkv_heads = self.heads + 2 * self.kv_heads
        qkv_biases = self.qkv_bias * qkv_heads * self.head_dim
        out_biases = self.out_bias * self.hidden
        head_norms = self.head_norm * 2 * self.head_dim  # one weight vector for queries, one for keys
        norms = self.norms * self.hidden + head_norms
        return self.block_matrices + qkv_biases + out_biases + norms

    @property
    def embedding(self) -> int:
        """Number of parameters of the token and position embeddings."""
        return (self.vocabulary + self.positions) * self.hidden

    @property
    def head(self) -> int:
        """Number of parameters of the output or scalar head; 0 if the head is the embedding."""
        if self.outputs:
            return self.outputs * self.hidden
        return 0 if self.tied else self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """Number of parameters, each counted once."""
        # GPT-2's layer norm has a weight and a bias, RMSNorm only a weight
        final_norm = self.hidden * (2 if self.family == "gpt2" else 1)
        return self.embedding + self.layers * self.block + final_norm + self.head

    @property
    def root(self) -> int:
        """Number of parameters outside the blocks: embeddings, last norm, head."""
        return self.parameters - self.layers * self.block

    @property
    def hidden_matrices(self) -> int:
        """Number of entries of the matrices of all blocks."""
        return self.layers * self.block_matrices

    @property
    def multiplied(self) -> int:
        """Number of entries of the matrices that multiply hidden states: those of the blocks and of the output head."""
        return self.hidden_matrices + (self.outputs or self.vocabulary) * self.hidden

    @property
    def outer_matrices(self) -> int:
        """Number of entries of the matrices outside the blocks: embeddings, and an untied output head."""
        return self.embedding + (0 if self.outputs else self.head)

    def adapter(self, rank: int, targets: Sequence[str] | None = None) -> int:
        """Return the number of parameters of a LoRA adapter: rank·(inputs + outputs) for each adapted matrix.

        Args:
            targets: names of the adapted layers, matched at their end; None is all of them.
        """
        per_block = sum(rank * (inputs + outputs) for inputs, outputs in self._adapted(targets))
        return self.layers * per_block

    def adapted(self, targets: Sequence[str] | None = None) -> int:
        """Return the number of adapted matrices per block."""
        return len(self._adapted(targets))

    def _adapted(self, targets: Sequence[str] | None) -> list[tuple[int, int]]:
        """Return (inputs, outputs) of the adapted matrices."""
        if targets is None:
            return list(self.matrices.values())
        # a dot before each name, so that `c_proj` matches `mlp.c_proj` but `proj` does not
        ends = tuple(f".{target}" for target in targets)
        return [sizes for name, sizes in self.matrices.items() if f".{name}".endswith(ends)]

    def kv_bytes(self, tokens: int, bytes_each: int = 4) -> int:
        """Return the bytes of the KV cache of `tokens` tokens in all layers."""
        kv_width = self.kv_heads * self.head_dim
        return 2 * self.layers * kv_width * bytes_each * tokens

    def scalar(self, outputs: int = 1) -> ModelShape:
        """Return the same trunk with a scalar head, i.e. a reward model."""
        return replace(self, outputs=outputs)


def gpt2(name: str, hidden: int, layers: int, heads: int) -> ModelShape:
    """Return a model of GPT-2's family with 50,257 tokens, 1024 positions and a tied head."""
    return ModelShape("gpt2", hidden, layers, heads, heads, hidden // heads, 4 * hidden, 50257, 1024, name=name)


def llama(
    name: str,
    hidden: int,
    layers: int,
    heads: tuple[int, int],
    mlp: int,
    vocabulary: int,
    *,
    tied: bool = False,
    qkv_bias: bool = False,
) -> ModelShape:
    """Return a model of Llama's family; `heads` are the numbers of query heads and of key heads."""
    return ModelShape(
        *("llama", hidden, layers, *heads, hidden // heads[0], mlp, vocabulary), tied=tied, qkv_bias=qkv_bias, name=name
    )


PUBLISHED = {
    "gpt2": gpt2("GPT-2 124M", 768, 12, 12),
    "gpt2-medium": gpt2("GPT-2 355M", 1024, 24, 16),
    "Qwen/Qwen2.5-0.5B-Instruct": llama("Qwen2.5 0.5B", 896, 24, (14, 2), 4864, 151936, tied=True, qkv_bias=True),
    "gpt2-large": gpt2("GPT-2 774M", 1280, 36, 20),
    "Qwen/Qwen2.5-1.5B-Instruct": llama("Qwen2.5 1.5B", 1536, 28, (12, 2), 8960, 151936, tied=True, qkv_bias=True),
    "gpt2-xl": gpt2("GPT-2 1.5B", 1600, 48, 25),
    "Qwen/Qwen2.5-3B-Instruct": llama("Qwen2.5 3B", 2048, 36, (16, 2), 11008, 151936, tied=True, qkv_bias=True),
    "Qwen/Qwen2.5-7B-Instruct": llama("Qwen2.5 7B", 3584, 28, (28, 4), 18944, 152064, qkv_bias=True),
    "meta-llama/Llama-3.1-8B-Instruct": llama("Llama 3.1 8B", 4096, 32, (32, 8), 14336, 128256),
    "meta-llama/Llama-2-13b-hf": llama("Llama 2 13B", 5120, 40, (40, 40), 13824, 32000),
    "Qwen/Qwen2.5-14B-Instruct": llama("Qwen2.5 14B", 5120, 48, (40, 8), 13824, 152064, qkv_bias=True),
    "Qwen/Qwen2.5-32B-Instruct": llama("Qwen2.5 32B", 5120, 64, (40, 8), 27648, 152064, qkv_bias=True),
    "meta-llama/Llama-3.1-70B-Instruct": llama("Llama 3.1 70B", 8192, 80, (64, 8), 28672, 128256),
}
"""Hub id → shape, in ascending order of size. GPT-2 124M is the model that its paper calls 117M."""
