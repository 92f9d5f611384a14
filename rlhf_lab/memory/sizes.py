"""Sizes of a transformer and what follows from them: parameters counted one by one, adapters, keys and values.

Two families: GPT-2, and Llama with its relatives (Mistral, Qwen2, Qwen3, the Gemmas, Mixtral, Qwen3-MoE). The published
shapes are numbers from public configs; nothing is downloaded to use them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class ModelShape:
    """A causal language model, or one whose output head is replaced by a scalar head.

    Attributes:
        hidden, layers, heads, kv_heads, head_dim, mlp: sizes; query heads share key heads in groups.
        vocabulary: rows of the token embedding.
        positions: learned positions; 0 where positions are rotary.
        tied: the output head is the token embedding.
        outputs: of a scalar head in place of the output head; 0 for a language model.
        qkv_bias, out_bias: biases of the attention's projections (Llama's family; GPT-2 has all).
        head_norm: a norm on each query and key head (Qwen3, Gemma 3).
        experts, active: MLPs in each block, all in memory, and how many of them a token goes through; 0 is one MLP.
        scaled_norms: norms compute in float32 and multiply by 1 + weight (Gemma).
        post_norms: norms behind attention and MLP too (Gemma 2 and 3).
        capped_scores: attention scores are capped, which no fused kernel of PyTorch does (Gemma 2).
        capped_logits: logits are capped, and computed again in the backward pass (Gemma 2).
        own_decoder: whether the lab's sampler has a decoder for it; it calls the model's own forward pass otherwise.
        name: shown in tables.
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
        """Linear layers of a block by the end of their module's name: (inputs, outputs). Experts are none."""
        h = self.hidden
        q = self.heads * self.head_dim
        kv = self.kv_heads * self.head_dim
        m = self.mlp
        if self.family == "gpt2":
            return {"attn.c_attn": (h, 3 * q), "attn.c_proj": (q, h), "mlp.c_fc": (h, m), "mlp.c_proj": (m, h)}
        attention = {"q_proj": (h, q), "k_proj": (h, kv), "v_proj": (h, kv), "o_proj": (q, h)}
        return attention if self.experts else attention | {"gate_proj": (h, m), "up_proj": (h, m), "down_proj": (m, h)}

    @property
    def block_matrices(self) -> int:
        """Entries of a block's matrices, those of experts and their router included."""
        layers = sum(inputs * outputs for inputs, outputs in self.matrices.values())
        return layers + self.expert_weights + self.experts * self.hidden

    @property
    def expert_weights(self) -> int:
        """Entries of the experts of a block."""
        return self.experts * 3 * self.hidden * self.mlp

    @property
    def largest(self) -> int:
        """Entries of the largest tensor of the MLP that gets a gradient: gate and up projection of experts are one."""
        return self.hidden * self.mlp * (2 * self.experts or 1)

    @property
    def mlp_width(self) -> int:
        """Width that a token goes through."""
        return self.mlp * (self.active or 1)

    @property
    def norms(self) -> int:
        """Norms of the hidden size in a block."""
        return 4 if self.post_norms else 2

    @property
    def block(self) -> int:
        """Parameters of a block: matrices, biases, norms."""
        if self.family == "gpt2":
            biases = sum(outputs for _, outputs in self.matrices.values())
            norms = 4 * self.hidden  # two layer norms with weight and bias
            return self.block_matrices + biases + norms
        qkv_biases = self.qkv_bias * (self.heads + 2 * self.kv_heads) * self.head_dim
        out_biases = self.out_bias * self.hidden
        norms = self.norms * self.hidden + self.head_norm * 2 * self.head_dim
        return self.block_matrices + qkv_biases + out_biases + norms

    @property
    def embedding(self) -> int:
        """Parameters of the token and position embeddings."""
        return (self.vocabulary + self.positions) * self.hidden

    @property
    def head(self) -> int:
        """Parameters of the output or scalar head; 0 where it is the embedding."""
        if self.outputs:
            return self.outputs * self.hidden
        return 0 if self.tied else self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All of them, each counted once."""
        final_norm = self.hidden * (2 if self.family == "gpt2" else 1)
        return self.embedding + self.layers * self.block + final_norm + self.head

    @property
    def root(self) -> int:
        """Parameters outside the blocks: embeddings, last norm, head."""
        return self.parameters - self.layers * self.block

    @property
    def hidden_matrices(self) -> int:
        """Entries of the matrices of all blocks."""
        return self.layers * self.block_matrices

    @property
    def multiplied(self) -> int:
        """Entries of the matrices that hidden states are multiplied by: the blocks' and the output head's."""
        return self.hidden_matrices + (self.outputs or self.vocabulary) * self.hidden

    @property
    def outer_matrices(self) -> int:
        """Entries of the matrices outside the blocks: embeddings, and an output head that is not one of them."""
        return self.embedding + (0 if self.outputs else self.head)

    def adapter(self, rank: int, targets: Sequence[str] | None = None) -> int:
        """Parameters of a LoRA adapter: rank·(inputs + outputs) for each adapted matrix.

        Args:
            targets: ends of the adapted layers' names; None is all of them.
        """
        return self.layers * sum(rank * (inputs + outputs) for inputs, outputs in self._adapted(targets))

    def adapted(self, targets: Sequence[str] | None = None) -> int:
        """Adapted matrices per block."""
        return len(self._adapted(targets))

    def _adapted(self, targets: Sequence[str] | None) -> list[tuple[int, int]]:
        """(inputs, outputs) of the adapted matrices."""
        if targets is None:
            return list(self.matrices.values())
        # dots in front, so that `c_proj` is the end of `mlp.c_proj` and `proj` is not
        ends = tuple(f".{target}" for target in targets)
        return [sizes for name, sizes in self.matrices.items() if f".{name}".endswith(ends)]

    def kv_bytes(self, tokens: int, bytes_each: int = 4) -> int:
        """Keys and values of `tokens` tokens in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * bytes_each * tokens

    def scalar(self, outputs: int = 1) -> ModelShape:
        """The same trunk with a scalar head: a reward model."""
        return replace(self, outputs=outputs)


def gpt2(name: str, hidden: int, layers: int, heads: int, *, vocabulary: int = 50257, mlp: int = 0) -> ModelShape:
    """A model of GPT-2's family with 1024 positions and a tied head."""
    mlp = mlp or 4 * hidden
    return ModelShape("gpt2", hidden, layers, heads, heads, hidden // heads, mlp, vocabulary, 1024, name=name)


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
    """A model of Llama's family; `heads` are those of queries and of keys."""
    return ModelShape(
        *("llama", hidden, layers, *heads, hidden // heads[0], mlp, vocabulary),
        tied=tied,
        qkv_bias=qkv_bias,
        name=name,
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
"""Hub id → shape, in order of size. GPT-2 124M is the model that its paper calls 117M."""
