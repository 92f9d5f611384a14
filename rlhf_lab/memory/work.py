"""What computing needs beyond a model's state: activations, logits, keys and values, temporaries.

Counts of saved tensors are those of the models in transformers as PyTorch's autograd keeps them, each storage once.
With b bytes per number of the matmuls (4, or 2 under bfloat16 autocast), h hidden, q = heads·head_dim, k =
kv_heads·head_dim and m the MLP's width, a block keeps per token, with fused attention (sdpa, flash):

    Llama   16h + 8 (two norms: input, normed input, 1/rms; float32) + norm outputs 8h (float32) or 10h (bfloat16: each
            of five projections casts its own) + b(2q + 2k) (query, key, value, result) + 4·heads + 4bm
    GPT-2   8h + 16 (two norms: input, mean, 1/sd) + 2bh (norm outputs) + 4bh (attention) + 4·heads + 5bm

Experts (a of E active for a token, bfloat16 and float32): 16h + 8 and 8h as above, 2abh + 4abm and 40a + 4E + 4 for the
routing. Gemma: norms multiply by 1 + weight, 4h more per norm and not per token; Gemma 2 and 3 have four norms a block,
and norms of heads in float32, 8(q + k).

Eager attention keeps the probabilities too, 4·heads·T in float32 and 2·heads·T more under autocast, and keys and values
repeated for every query head; scores that are capped b·heads·T more. Under CUDA's autocast, `pow` in GPT-2's GELU
computes in float32: 16m in place of 10m.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rlhf_lab.memory.sizes import ModelShape
from rlhf_lab.memory.state import GRADIENT, WEIGHT, Precision, Training

Attention = Literal["sdpa", "eager", "flash_attention_2"]
KEPT_LOGITS, CHUNK_LOGITS, CHUNK_TOKENS = 2**27, 2**24, 256
"""As in `models/logprobs.py`: N×V entries kept for backward at most, entries and tokens of a chunk at least."""
SHARE_FROM = 0.1
"""As in `models/shared_prompt.py`: share of token slots that has to be saved for a prompt to be computed once."""
CACHE_SLOTS = 16
"""As in `sampling/cache.py`: slots by which the cache of generated tokens grows, at least."""
OVERDUE = 1.25
"""As in `sampling/decoding.py`: slots in use, in those of the longest reply, before the oldest are let go."""
CHECKED_EVERY = 8
"""As in `sampling/turns.py`: tokens between two looks at which rows are over, at most."""
SEARCHED = 2048
"""As in `sampling/drawing.py`: largest vocabulary with a running sum of its own."""


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
        """Token positions computed when each prompt is computed once and followed by its replies."""
        return self.prompts * self.prompt + self.rows * (self.reply - 1)

    @property
    def shared(self) -> bool:
        """Whether prompts are computed once."""
        unshared = self.rows * self.width
        return 0 < self.prompts < self.rows and 1 - self.slots / unshared >= SHARE_FROM

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
    """Bytes of a forward and backward pass of one model on top of its state, at the moments where it can peak.

    Attributes:
        activations: saved until the backward pass.
        logits: kept probabilities of the reply tokens.
        head: temporaries of the head's backward pass, its weight's gradient included.
        first: when the backward pass enters the blocks: with activations, without copies of weights.
        last: when it leaves the blocks, on top of all gradients.
    """

    activations: int
    logits: int
    head: int
    first: int
    last: int


def block_bytes(shape: ModelShape, rows: Rows, how: Arithmetic, training: Training | None = None) -> int:
    """Bytes that one block keeps for the backward pass of `rows`, without copies of weights.

    The letters b, h, q, k and m, and the terms, are those of this module's docstring.
    """
    training = training or Training()
    b, h, m = how.low, shape.hidden, shape.mlp
    adapted = shape.adapted(training.targets) if training.rank else 0
    if shape.family == "gpt2":
        gelu = 16 if how.cuda and b == 2 else 5 * b
        per_token = 8 * h + 16 + 2 * b * h + gelu * m
    else:
        norm_inputs = shape.norms * ((4 if training.rank else 8) * h + 4)
        norm_outputs = (2 * 4 if b == 4 or shape.experts else 5 * 2) * h
        per_token = norm_inputs + norm_outputs + 4 * b * shape.mlp_width
        if shape.experts:
            per_token += 2 * b * shape.active * h + 40 * shape.active + 4 * shape.experts + 4
        if shape.head_norm:
            heads = shape.heads + shape.kv_heads
            per_token += (4 + (4 if shape.scaled_norms else b)) * heads * shape.head_dim + 4 * heads
    if adapted:
        per_token += adapted * training.rank * b + (2 * h if b == 2 else 0)
    norm_weights = 4 * (shape.norms * h + 2 * shape.head_norm * shape.head_dim) * shape.scaled_norms
    return rows.tokens * per_token + norm_weights + _attention_bytes(shape, rows, how)


def _attention_bytes(shape: ModelShape, rows: Rows, how: Arithmetic) -> int:
    """Bytes of query, key, value and result, and of what the kernel keeps of the probabilities."""
    b = how.low
    q = shape.heads * shape.head_dim
    k = shape.kv_heads * shape.head_dim
    if how.attention == "eager" or shape.capped_scores:
        probabilities = (4 if b == 4 else 6) * shape.heads * rows.width
        if shape.capped_scores:
            probabilities += b * shape.heads * rows.width
        return rows.rows * rows.width * (4 * b * q + probabilities)
    if not rows.shared:
        return rows.tokens * (b * (2 * q + 2 * k) + 4 * shape.heads)
    reply_tokens = rows.rows * (rows.reply - 1)
    width = rows.width - 1
    # GPT-2 projects query, key and value at once: that result is kept whole, and keys and values besides.
    kv_again = b * 2 * k * (shape.family == "gpt2")
    in_prompts = rows.prompts * rows.prompt * (b * (2 * q + 2 * k) + 4 * shape.heads + kv_again)
    in_replies = reply_tokens * (b * 2 * q + 4 * shape.heads + b * width + kv_again)
    repeated_kv = rows.rows * width * b * 2 * q  # with a mask, keys and values are repeated for every query head
    return in_prompts + in_replies + repeated_kv


def train_pass(shape: ModelShape, rows: Rows, how: Arithmetic, training: Training) -> Pass:
    """Bytes that one micro-batch needs on top of weights, copies, gradients and optimiser state."""
    if how.checkpointing:
        rows = rows.alone()
    h, b = shape.hidden, how.low
    extra = b % 4  # bytes per number of a bfloat16 copy; 0 in float32, where there is none
    frozen = bool(training.rank)
    block = block_bytes(shape, rows, how, training)
    inputs = rows.tokens * h * 4
    final_norm = inputs * (1 if shape.family == "gpt2" or frozen else 2)
    blocks = shape.layers * (inputs if how.checkpointing else block)
    # Temporaries of one block's backward pass: gradients of hidden states and MLP, and of one MLP matrix.
    flow = rows.tokens * (2 * 4 * h + b * shape.mlp_width)
    if not frozen:
        flow += (4 + extra) * shape.largest
    head_gradient = 0 if frozen or shape.outputs else GRADIENT * shape.vocabulary * h
    tied_gradients = 2 * head_gradient * shape.tied  # a tied embedding's two gradients and their sum exist at once
    if how.checkpointing:
        recomputed = block + flow
        first = blocks + recomputed + head_gradient
        last = max(tied_gradients, inputs + recomputed + extra * shape.block_matrices)
    else:
        first = blocks + final_norm + flow
        last = tied_gradients
    if shape.outputs:
        return Pass(blocks + final_norm, 0, 0, first, last)
    kept_logits, temporary = logit_bytes(rows.targets, shape.vocabulary, how)
    if shape.capped_logits:  # computed again with the cap's slope beside them
        kept_logits, temporary = 0, _chunk_bytes(rows.targets, shape.vocabulary, 12 + how.low % 4)
    target_states = rows.targets * h * b  # hidden states of the reply tokens, picked out for the head
    head = target_states + max(temporary + head_gradient, head_gradient + extra * head_gradient // 4)
    return Pass(blocks + final_norm + target_states, kept_logits, head, first, last)


def rooted_pass(work: Pass, shape: ModelShape, how: Arithmetic, training: Training) -> Pass:
    """The same pass under FSDP2, where gradients are whole until they are reduced over the processes.

    A block's gradients are, for a moment, whole in the arithmetic of training and once more in the float32 buffer
    through which they are exchanged. Everything outside the blocks is one unit: its parameters and gradients, both
    float32, are whole until the backward pass is over, and then its buffer comes on top.
    """
    trained = shape.block
    if training.rank:
        trained = shape.adapter(training.rank, training.targets) // shape.layers
    moving = (how.low + GRADIENT) * trained + how.low * shape.block
    root = GRADIENT * (shape.outputs * shape.hidden if training.rank else shape.root)
    head = 0 if training.rank or how.checkpointing else GRADIENT * (shape.outputs or shape.vocabulary) * shape.hidden
    last = WEIGHT * shape.root + root + max(work.last + moving, root)
    return replace(work, first=work.first + head + moving, last=last)


def logit_bytes(targets: int, vocabulary: int, how: Arithmetic) -> tuple[int, int]:
    """(kept for the backward pass, largest temporaries) in bytes, of N×V probabilities computed chunk by chunk."""
    entries = targets * vocabulary
    kept = 4 * entries if entries <= KEPT_LOGITS else 0
    bytes_each = 4 + how.low % 4 + (0 if kept else 4)
    return kept, _chunk_bytes(targets, vocabulary, bytes_each)


def _chunk_bytes(targets: int, vocabulary: int, bytes_each: int) -> int:
    """Bytes of a chunk of logits. With several chunks the one before is freed only once the next one exists."""
    entries = targets * vocabulary
    chunk = max(CHUNK_LOGITS, CHUNK_TOKENS * vocabulary)
    several = entries > chunk
    return min(entries, chunk) * (bytes_each + 4 * several)


def score_bytes(shape: ModelShape, rows: Rows, how: Arithmetic) -> int:
    """Bytes of a forward pass without gradient: at its peak in a block's MLP, or with a chunk of logits in the head.

    That the MLP holds three (GPT-2: four) arrays of its width and four (five) hidden states is measured.
    """
    mlp_arrays, hidden_arrays = (4, 5) if shape.family == "gpt2" else (3, 4)
    in_block = rows.tokens * (hidden_arrays * 4 * shape.hidden + mlp_arrays * how.low * shape.mlp_width)
    if how.attention == "eager" or shape.capped_scores:
        in_block = max(in_block, rows.tokens * (3 * 4 * shape.hidden + 2 * 4 * shape.heads * rows.width))
    head_matrix = 0 if shape.outputs else shape.vocabulary * shape.hidden
    copy = (
        0 if how.low == 4 else 2 * max(shape.block_matrices, head_matrix)
    )  # bfloat16, one block or the head at a time
    if shape.outputs:
        return in_block + copy
    states = (rows.targets + rows.tokens) * 4 * shape.hidden
    in_head = states + _chunk_bytes(rows.targets, shape.vocabulary, 4 + how.low % 4)
    return max(in_block, in_head) + copy


def divergence_bytes(shape: ModelShape, rows: Rows, how: Arithmetic) -> int:
    """Bytes of a KL over the vocabulary of two models of one shape: their states, seven arrays per chunk of logits."""
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
    """Bytes of the lab's sampler on top of the model it samples from.

    Attributes:
        weights: its own fused copy of the matrices.
        cache: keys and values of prompts and of generated tokens at the end.
        logits: of all rows at one step, probabilities included.
        total: peak of all of them together, temporaries included.
        bytes_each: of a key or value.
    """

    weights: int
    cache: int
    logits: int
    total: int
    bytes_each: int


def sampling(
    shape: ModelShape,
    prompts: int,
    group: int,
    prompt: int,
    new: int,
    bytes_each: int,
    *,
    refilled: bool = False,
    in_place: bool = False,
    gathered_block: int = 0,
) -> Sampling:
    """The sampler's bytes for `group` replies of up to `new` tokens to each of `prompts` prompts.

    Keys and values of a prompt are shared by its group. While the cache of generated tokens grows, or rows join and
    leave, the old one of a layer exists too. A pass over the prompts peaks in the MLP, measured: 12m + 24h bytes per
    token, GPT-2 8m + 25h.

    Args:
        prompt, new: tokens of a prompt and of a reply.
        bytes_each: per weight, logit, key and value of the sampler.
        refilled: further rows take the places of those that are over, so that slots are in use a little longer.
        in_place: it has no copy of the weights, but calls the model's own layers, and of those in four bits one at a
            time is numbers.
        gathered_block: bytes of a block's parameters where a divided policy is gathered block by block, else 0. The
            sampler then has a copy of the head alone, and makes that of a block when it computes.
    """
    if not shape.own_decoder:
        return _sampling_by_the_model(shape, prompts, group, prompt, new, gathered_block)
    h, m = shape.hidden, shape.mlp
    rows = prompts * group
    slots = [math.ceil(OVERDUE * new) + CHECKED_EVERY + CACHE_SLOTS] if refilled else cache_slots(new)
    largest = max(inputs * outputs for inputs, outputs in shape.matrices.values())
    weights = bytes_each * (largest if in_place else shape.multiplied)
    block = 0
    reading = 0
    if gathered_block:
        weights = bytes_each * (shape.multiplied - shape.layers * shape.block_matrices)
        block = gathered_block + bytes_each * shape.block_matrices
        reading = _reading_bytes(shape, bytes_each)
    prompt_cache = shape.kv_bytes(prompts * prompt, bytes_each)
    old_slots, last_slots = [0, *slots][-2:]
    cache = shape.kv_bytes(rows * last_slots, bytes_each)
    # of one layer; where rows join, the prompts are copied too
    old_cache = (cache + prompt_cache if refilled else shape.kv_bytes(rows * old_slots, bytes_each)) // shape.layers
    logits = rows * shape.vocabulary * bytes_each
    running_sum = 4 if shape.vocabulary <= SEARCHED else 0
    probabilities = rows * shape.vocabulary * (4 + running_sum)
    attention_scores = 3 * 4 * shape.heads * (prompt + last_slots)
    step = rows * (max(attention_scores, 12 * m) + 20 * h)
    decode = logits + max(old_cache + cache, cache + block + max(step, reading), cache + probabilities)
    prefill = prompts * prompt * (8 * m + 25 * h if shape.family == "gpt2" else 12 * m + 24 * h)
    # When the sampler is made: the head is multiplied by the last norm in float32 before it is copied.
    fused_head = 4 * shape.vocabulary * h if shape.family == "llama" and not in_place else 0
    reading_prompts = block + max(prefill, reading) + (cache if refilled else 0)  # of rows that join others
    total = weights + max(prompt_cache + max(decode, reading_prompts), fused_head)
    return Sampling(weights, prompt_cache + cache, logits + probabilities, total, bytes_each)


def _reading_bytes(shape: ModelShape, bytes_each: int) -> int:
    """Bytes beyond a block's copy when its largest projection is read.

    Its parts are multiplied in float32, then joined, and if the copy is bfloat16 the joined ones are float32 at first.
    Of a gated MLP that is the projection before the last one, whose copy is not there yet.
    """
    matrix = shape.hidden * shape.mlp
    per_number = 4 if bytes_each == 4 else 8
    last = per_number * matrix
    return last if shape.family == "gpt2" else max(last, 2 * per_number * matrix - bytes_each * matrix)


def _sampling_by_the_model(
    shape: ModelShape, prompts: int, group: int, prompt: int, new: int, gathered_block: int
) -> Sampling:
    """The same where the model's own forward pass decodes: no copy of weights, and a prompt's cache for every row.

    Keys and values are float32 (rotary embeddings have the dtype of the residual stream), and grow by a copy of one
    layer at a time. A layer repeats them for every query head under the mask that padding needs. Windows of layers
    that slide are not counted: their caches are taken to be whole.
    """
    rows = prompts * group
    tokens = rows * (prompt + new)
    cache = shape.kv_bytes(tokens)
    repeated = 2 * 4 * shape.heads * shape.head_dim * tokens + cache // shape.layers
    logits = (3 if shape.capped_logits else 1) * 4 * rows * shape.vocabulary
    probabilities = 8 * rows * shape.vocabulary
    prefill = prompts * prompt * (12 * shape.mlp_width + 24 * shape.hidden)
    if shape.capped_scores:
        prefill += 3 * 4 * prompts * shape.heads * prompt**2
    total = cache + max(gathered_block + max(repeated, prefill), logits + probabilities)
    return Sampling(0, cache, logits + probabilities, total, 4)


def update_peak(passes: Sequence[Pass], copies: int, gradients: int, *, accumulates: bool) -> int:
    """Most bytes beyond weights and optimiser state in an update, for models that share one backward pass.

    Args:
        copies: bytes of all models' weight copies.
        gradients: bytes of all models' gradients, without those that stay between steps.
        accumulates: whether there are gradients of earlier micro-batches already.
    """
    before = copies + (gradients if accumulates else 0)
    in_head = before + sum(work.activations + work.logits + work.head for work in passes)
    entering_blocks = before + sum(work.first for work in passes)
    leaving_blocks = gradients + max(work.last for work in passes)
    return max(in_head, entering_blocks, leaving_blocks)
