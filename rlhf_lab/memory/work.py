"""What computing needs beyond a model's state: activations, logits, keys and values, temporaries.

Counts of saved tensors are those of the models in transformers as PyTorch's autograd keeps them, each storage once.
With b bytes per number of the matmuls (4, or 2 under bfloat16 autocast), h hidden, q = heads·head_dim, k =
kv_heads·head_dim and m the MLP's width, a block keeps per token, with fused attention (sdpa, flash):

    Llama   16h + 8 (two norms: input, normed input, 1/rms; float32) + norm outputs 8h (float32) or 10h (bfloat16: each
            of five projections casts its own) + b(2q + 2k) (query, key, value, result) + 4·heads + 4bm
    GPT-2   8h + 16 (two norms: input, mean, 1/sd) + 2bh (norm outputs) + 4bh (attention) + 4·heads + 5bm

Eager attention keeps the probabilities too, 4·heads·T in float32 and 2·heads·T more under autocast, and keys and values
repeated for every query head. Under CUDA's autocast, `pow` in GPT-2's GELU computes in float32: 16m in place of 10m.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rlhf_lab.memory.sizes import ModelShape
from rlhf_lab.memory.state import GRADIENT, WEIGHT, Precision, Training

Attention = Literal["sdpa", "eager", "flash_attention_2"]
KEPT_LOGITS, CHUNK_LOGITS = 2**27, 2**24
"""As in `models/logprobs.py`: entries of N×V kept for the backward pass, and per chunk."""
SHARE_FROM = 0.1
"""As in `models/shared_prompt.py`: share of token slots that has to be saved for a prompt to be computed once."""
CACHE_SLOTS = 16
"""As in `sampling/cache.py`: slots by which the cache of generated tokens grows, at least."""
SEARCHED = 2048
"""As in `sampling/local.py`: largest vocabulary with a running sum of its own."""


@dataclass(frozen=True)
class Rows:
    """Rows of one forward pass, all as long as the longest.

    Attributes:
        rows: prompt and reply each.
        prompt, reply: tokens.
        prompts: distinct prompts that rows share; 0 where every row has its own.
    """

    rows: int
    prompt: int
    reply: int
    prompts: int = 0

    @property
    def width(self) -> int:
        return self.prompt + self.reply

    @property
    def slots(self) -> int:
        """Places that a pass over each prompt once and each reply behind it computes."""
        return self.prompts * self.prompt + self.rows * (self.reply - 1)

    @property
    def shared(self) -> bool:
        """Whether prompts are computed once."""
        whole = self.rows * self.width
        return 0 < self.prompts < self.rows and 1 - self.slots / whole >= SHARE_FROM

    @property
    def tokens(self) -> int:
        """Hidden states computed in each block."""
        return self.slots if self.shared else self.rows * self.width

    @property
    def targets(self) -> int:
        """Reply tokens, which alone go through the head."""
        return self.rows * self.reply

    def alone(self) -> Rows:
        """The same rows, each with its own prompt."""
        return Rows(self.rows, self.prompt, self.reply)


@dataclass(frozen=True)
class Arithmetic:
    """How passes are computed.

    Attributes:
        precision: of the matmuls.
        attention: implementation in transformers.
        checkpointing: only the inputs of blocks are kept.
        cuda: runs on a GPU.
    """

    precision: Precision = "float32"
    attention: Attention = "sdpa"
    checkpointing: bool = False
    cuda: bool = False

    @property
    def low(self) -> int:
        """Bytes per number of the matmuls."""
        return 2 if self.precision == "bfloat16" else 4


@dataclass(frozen=True)
class Pass:
    """Bytes of a forward and backward pass of one model beside its state, at the moments at which it can peak.

    Attributes:
        activations: saved until the backward pass.
        logits: kept probabilities of the reply tokens.
        head: temporaries of the head's backward pass, its weight's gradient included.
        first: when the backward pass enters the blocks, activations included, copies of weights not.
        last: beside all gradients, when it leaves them.
    """

    activations: int
    logits: int
    head: int
    first: int
    last: int


def block_bytes(shape: ModelShape, rows: Rows, how: Arithmetic, training: Training | None = None) -> int:
    """What one block keeps for the backward pass of `rows`, copies of weights aside."""
    training, b, h, m = training or Training(), how.low, shape.hidden, shape.mlp
    adapted = shape.adapted(training.targets) if training.rank else 0
    if shape.family == "gpt2":
        curve = 16 if how.cuda and b == 2 else 5 * b
        kept = 8 * h + 16 + 2 * b * h + curve * m
    else:
        normed = (2 * 4 if b == 4 else 5 * 2) * h
        kept = (8 if training.rank else 16) * h + 8 + normed + 4 * b * m
        if shape.head_norm:
            kept += (4 + b) * (shape.heads + shape.kv_heads) * shape.head_dim + 4 * (shape.heads + shape.kv_heads)
    if adapted:
        kept += adapted * training.rank * b + (2 * h if b == 2 else 0)
    return rows.tokens * kept + _attention_bytes(shape, rows, how)


def _attention_bytes(shape: ModelShape, rows: Rows, how: Arithmetic) -> int:
    """Query, key, value, result, and what the kernel keeps of the probabilities."""
    b, q, k = how.low, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    if how.attention == "eager":
        probabilities = (4 if b == 4 else 6) * shape.heads * rows.width
        return rows.rows * rows.width * (4 * b * q + probabilities)
    if not rows.shared:
        return rows.tokens * (b * (2 * q + 2 * k) + 4 * shape.heads)
    replies, width = rows.rows * (rows.reply - 1), rows.width - 1
    again = b * 2 * k * (shape.family == "gpt2")  # its one projection is kept whole, and keys and values beside it
    prompts = rows.prompts * rows.prompt * (b * (2 * q + 2 * k) + 4 * shape.heads + again)
    own = replies * (b * 2 * q + 4 * shape.heads + b * width + again)
    return prompts + own + rows.rows * width * b * 2 * q  # a mask repeats keys and values for every query head


def train_pass(shape: ModelShape, rows: Rows, how: Arithmetic, training: Training) -> Pass:
    """Bytes that one micro-batch needs on top of weights, copies, gradients and optimiser state."""
    if how.checkpointing:
        rows = rows.alone()
    h, b, frozen = shape.hidden, how.low, bool(training.rank)
    block, inputs = block_bytes(shape, rows, how, training), rows.tokens * h * 4
    final = inputs * (1 if shape.family == "gpt2" or frozen else 2)
    blocks = shape.layers * (inputs if how.checkpointing else block)
    flow = rows.tokens * (2 * 4 * h + b * shape.mlp) + (0 if frozen else (4 + b % 4) * h * shape.mlp)
    weight = 0 if frozen or shape.outputs else GRADIENT * shape.vocabulary * h  # gradient of the output head
    twice = 2 * weight * shape.tied  # a tied embedding's two gradients and their sum exist at once
    if how.checkpointing:
        again = block + flow
        first, last = blocks + again + weight, max(twice, inputs + again + (b % 4) * shape.block_matrices)
    else:
        first, last = blocks + final + flow, twice
    if shape.outputs:
        return Pass(blocks + final, 0, 0, first, last)
    kept, temporary = logit_bytes(rows.targets, shape.vocabulary, how)
    picked = rows.targets * h * b
    head = picked + max(temporary + weight, weight + (b % 4) * weight // 4)
    return Pass(blocks + final + picked, kept, head, first, last)


def rooted_pass(work: Pass, shape: ModelShape, how: Arithmetic, training: Training) -> Pass:
    """The same pass under FSDP2, where gradients are whole until they are added up over the processes.

    A block has them in the arithmetic of training, and a float32 buffer of their size through which they are exchanged,
    for a moment. What is outside the blocks is one unit: its parameters and gradients, both float32, are whole until
    the backward pass is over, and then the buffer is there too.
    """
    trained = shape.block if not training.rank else shape.adapter(training.rank, training.targets) // shape.layers
    moving = (how.low + GRADIENT) * trained + how.low * shape.block
    root = GRADIENT * (shape.outputs * shape.hidden if training.rank else shape.root)
    head = 0 if training.rank or how.checkpointing else GRADIENT * (shape.outputs or shape.vocabulary) * shape.hidden
    last = WEIGHT * shape.root + root + max(work.last + moving, root)
    return replace(work, first=work.first + head + moving, last=last)


def logit_bytes(targets: int, vocabulary: int, how: Arithmetic) -> tuple[int, int]:
    """(kept for the backward pass, largest temporaries) of N×V probabilities computed chunk by chunk."""
    entries = targets * vocabulary
    kept = 4 * entries if entries <= KEPT_LOGITS else 0
    return kept, _chunk(targets, vocabulary, 4 + (how.low % 4) + (0 if kept else 4))


def _chunk(targets: int, vocabulary: int, bytes_each: int) -> int:
    """Bytes of a chunk of logits, and of the one before where there are several: it is freed once the next is there."""
    entries = targets * vocabulary
    several = entries > CHUNK_LOGITS
    return min(entries, CHUNK_LOGITS) * (bytes_each + 4 * several)


def score_bytes(shape: ModelShape, rows: Rows, how: Arithmetic) -> int:
    """A forward pass without gradient: the widest place of a block, its MLP, or hidden states and a chunk of logits.

    That this place holds three (GPT-2: four) arrays as wide as the MLP and four (five) hidden states is measured.
    """
    wide, narrow = (4, 5) if shape.family == "gpt2" else (3, 4)
    inside = rows.tokens * (narrow * 4 * shape.hidden + wide * how.low * shape.mlp)
    if how.attention == "eager":
        inside = max(inside, rows.tokens * (3 * 4 * shape.hidden + 2 * 4 * shape.heads * rows.width))
    copy = 0 if how.low == 4 else 2 * max(shape.block_matrices, 0 if shape.outputs else shape.vocabulary * shape.hidden)
    if shape.outputs:
        return inside + copy
    head = (rows.targets + rows.tokens) * 4 * shape.hidden + _chunk(rows.targets, shape.vocabulary, 4 + how.low % 4)
    return max(inside, head) + copy


def divergence_bytes(shape: ModelShape, rows: Rows, how: Arithmetic) -> int:
    """KL of two models of one shape over the vocabulary: the states of both, then seven arrays per chunk of logits."""
    states = rows.targets * shape.hidden * 4
    chunks = 7 * 4 * min(rows.targets * shape.vocabulary, CHUNK_LOGITS)
    return max(states + score_bytes(shape, rows, how), 2 * states + chunks)


def cache_slots(new_tokens: int) -> list[int]:
    """Sizes that the sampler's cache of generated tokens takes, in order."""
    sizes = [0]
    while sizes[-1] < new_tokens - 1:
        sizes.append(sizes[-1] + max(CACHE_SLOTS, sizes[-1] // 4 // CACHE_SLOTS * CACHE_SLOTS))
    return sizes


@dataclass(frozen=True)
class Sampling:
    """Bytes of the lab's sampler beside the model it samples from.

    Attributes:
        weights: its own fused copy of the matrices.
        cache: keys and values of prompts and of generated tokens at the end.
        logits: of all rows at one step, probabilities included.
        total: most of all that at once, temporaries included.
    """

    weights: int
    cache: int
    logits: int
    total: int


def sampling(shape: ModelShape, prompts: int, group: int, prompt: int, new: int, bytes_each: int) -> Sampling:
    """The sampler's bytes for `group` replies of up to `new` tokens to each of `prompts` prompts.

    Keys and values of a prompt are shared by its group. While the cache of generated tokens grows, the old one is there
    too. The widest place of a pass over the prompts is the MLP's, measured: 12m + 24h bytes per token, GPT-2 8m + 25h.
    """
    rows, sizes, h, m = prompts * group, cache_slots(new), shape.hidden, shape.mlp
    weights, asked = bytes_each * shape.multiplied, shape.kv_bytes(prompts * prompt)
    before, after = (shape.kv_bytes(rows * slots) for slots in ([0, *sizes])[-2:])
    logits = rows * shape.vocabulary * bytes_each
    probabilities = rows * shape.vocabulary * (4 + (4 if shape.vocabulary <= SEARCHED else 0))
    attended = 3 * 4 * shape.heads * (prompt + sizes[-1])
    step = rows * (max(attended, 12 * m) + 20 * h)
    decode = logits + max(before + after, after + step, after + probabilities)
    start = prompts * prompt * (8 * m + 25 * h if shape.family == "gpt2" else 12 * m + 24 * h)
    fused = 4 * shape.vocabulary * h if shape.family == "llama" else 0  # the head times the last norm, then its copy
    total = weights + max(asked + max(decode, start), fused)
    return Sampling(weights, asked + after, logits + probabilities, total)


def update_peak(passes: Sequence[Pass], copies: int, gradients: int, *, accumulates: bool) -> int:
    """Most bytes beyond weights and optimiser state in an update, for models that share one backward pass.

    Args:
        copies: of all of them.
        gradients: of all of them, those aside that stay between steps.
        accumulates: gradients of earlier micro-batches are there already.
    """
    before = copies + (gradients if accumulates else 0)
    head = before + sum(p.activations + p.logits + p.head for p in passes)
    first = before + sum(p.first for p in passes)
    return max(head, first, gradients + max(p.last for p in passes))
