"""Memory of computation in addition to a model's state: activations, logits, KV cache, temporaries.

The counts of saved tensors are those of the models in transformers with PyTorch's autograd, each storage counted once.
With b bytes per number of the matmuls (4, or 2 under bfloat16 autocast), h hidden, q = heads·head_dim, k =
kv_heads·head_dim and m the MLP's width, a block keeps per token, with fused attention (sdpa, flash):

    Llama   16h + 8 (two norms: input, normed input, 1/rms; float32) + norm outputs 8h (float32) or 10h (bfloat16: each
            of five projections casts its own) + b(2q + 2k) (query, key, value, result) + 4·heads + 4bm
    GPT-2   8h + 16 (two norms: input, mean, 1/sd) + 2bh (norm outputs) + 4bh (attention) + 4·heads + 5bm

Experts (a of E active for a token, bfloat16 and float32): 16h + 8 and 8h as above, 2abh + 4abm and 40a + 4E + 4 for the
routing. Gemma: norms multiply by 1 + weight, which adds 4h per norm and not per token. Gemma 2 and 3 have four norms
per block. Gemma 3 also has norms of heads in float32, 8(q + k).

Eager attention also keeps the probabilities, 4·heads·T in float32 and another 2·heads·T under autocast, and keys and
values repeated for every query head. Capped scores add b·heads·T. Under CUDA's autocast, `pow` in GPT-2's GELU computes
in float32: 16m instead of 10m.
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
"""As in `models/logprobs.py`: maximum N·V entries kept for the backward pass, minimum entries and tokens of a chunk."""
SHARE_FROM = 0.1
"""As in `models/shared_prompt.py`: minimum fraction of token slots saved for a prompt to be computed once."""
CACHE_SLOTS = 16
"""As in `sampling/cache.py`: minimum number of slots by which the cache of generated tokens grows."""
OVERDUE = 1.25
"""As in `sampling/decoding.py`: length of the cache relative to the longest response at which it is compacted."""
CHECKED_EVERY = 8
"""As in `sampling/turns.py`: maximum number of tokens between two checks for finished rows."""
SEARCHED = 2048
"""As in `sampling/drawing.py`: largest vocabulary that is searched with a single cumulative sum."""


@dataclass(frozen=True)
class Rows:
    """Rows of one forward pass, all of them at the maximum length.

    Attributes:
        rows: number of rows, each a prompt and a response.
        prompt, response: tokens of a prompt, and of a response.
        prompts: number of distinct prompts that rows share; 0 if every row has its own.
    """

    rows: int
    prompt: int
    response: int
    prompts: int = 0

    @property
    def width(self) -> int:
        return self.prompt + self.response

    @property
    def slots(self) -> int:
        """Number of positions computed if each prompt is computed once and followed by its responses."""
        prompt_slots = self.prompts * self.prompt
        response_slots = self.rows * (self.response - 1)  # the last token predicts nothing
        return prompt_slots + response_slots

    @property
    def shared(self) -> bool:
        """True if each distinct prompt is computed only once."""
        unshared = self.rows * self.width
        saved_fraction = 1 - self.slots / unshared
        return 0 < self.prompts < self.rows and saved_fraction >= SHARE_FROM

    @property
    def tokens(self) -> int:
        """Number of hidden states computed in each block."""
        return self.slots if self.shared else self.rows * self.width

    @property
    def targets(self) -> int:
        """Number of response tokens; only these go through the head."""
        return self.rows * self.response

    def alone(self) -> Rows:
        """Return the same rows, each with its own prompt."""
        return Rows(self.rows, self.prompt, self.response)


@dataclass(frozen=True)
class ComputePrecision:
    """Arithmetic of the passes.

    Attributes:
        checkpointing: True if only the inputs of blocks are kept.
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
    """Bytes of a forward and backward pass of one model in addition to its state, at the possible peaks.

    Attributes:
        activations: bytes saved until the backward pass.
        logits: bytes of the probabilities kept for the response tokens.
        head: temporaries of the head's backward pass, including the gradient of its weight.
        first: bytes when the backward pass enters the blocks, with activations but without copies of weights.
        last: bytes when the backward pass leaves the blocks, in addition to all gradients.
    """

    activations: int
    logits: int
    head: int
    first: int
    last: int


def block_bytes(shape: ModelShape, rows: Rows, how: ComputePrecision, training: Training | None = None) -> int:
    """Return the bytes that one block keeps for the backward pass of `rows`, without copies of weights.

    The letters b, h, q, k and m, and the terms, are those of this module's docstring.
    """
    training = training or Training()
    b = how.low
    h = shape.hidden
    m = shape.mlp
    adapted = shape.adapted(training.targets) if training.rank else 0
    if shape.family == "gpt2":
        gelu = 16 if how.cuda and b == 2 else 5 * b  # CUDA's autocast computes `pow` in float32
        norms = 8 * h + 16  # two norms: inputs, means, 1/sd
        norm_outputs = 2 * b * h
        per_token = norms + norm_outputs + gelu * m
    else:
        # an adapter needs no gradient of norm weights, so the normed inputs (4h) are not kept
        norm_inputs = shape.norms * ((4 if training.rank else 8) * h + 4)
        # float32: one output per norm; bfloat16: each of the five projections keeps its own cast
        norm_outputs = (2 * 4 if b == 4 or shape.experts else 5 * 2) * h
        per_token = norm_inputs + norm_outputs + 4 * b * shape.mlp_width
        if shape.experts:
            projection_inputs = 2 * b * shape.active * h
            routing = 40 * shape.active + 4 * shape.experts + 4
            per_token += projection_inputs + routing
        if shape.head_norm:
            heads = shape.heads + shape.kv_heads
            # inputs of the norms (float32), their outputs, and one 1/rms per head
            bytes_of_norms = 4 + (4 if shape.scaled_norms else b)
            per_token += bytes_of_norms * heads * shape.head_dim + 4 * heads
    if adapted:
        products = adapted * training.rank * b  # x·Aᵀ of each adapted matrix
        bfloat16_inputs = 2 * h if b == 2 else 0
        per_token += products + bfloat16_inputs
    # `1 + weight` of each norm, once per pass
    numbers_of_norms = shape.norms * h + 2 * shape.head_norm * shape.head_dim
    norm_weights = 4 * numbers_of_norms * shape.scaled_norms
    return rows.tokens * per_token + norm_weights + _attention_bytes(shape, rows, how)


def _attention_bytes(shape: ModelShape, rows: Rows, how: ComputePrecision) -> int:
    """Return the bytes of query, key, value and result, and of the probabilities that the kernel keeps."""
    b = how.low
    q = shape.heads * shape.head_dim
    k = shape.kv_heads * shape.head_dim
    if how.attention == "eager" or shape.capped_scores:
        probabilities = (4 if b == 4 else 6) * shape.heads * rows.width
        if shape.capped_scores:
            probabilities += b * shape.heads * rows.width
        return rows.rows * rows.width * (4 * b * q + probabilities)
    if not rows.shared:
        # query, key, value and result, and the log-sum-exp of each head
        per_token = b * (2 * q + 2 * k) + 4 * shape.heads
        return rows.tokens * per_token
    response_tokens = rows.rows * (rows.response - 1)
    width = rows.width - 1
    # GPT-2 projects query, key and value together, and keeps that result in addition to keys and values.
    kv_again = b * 2 * k * (shape.family == "gpt2")
    prompt_tokens = rows.prompts * rows.prompt
    per_prompt_token = b * (2 * q + 2 * k) + 4 * shape.heads + kv_again
    in_prompts = prompt_tokens * per_prompt_token
    mask = b * width  # one row of the mask per response token
    per_response_token = b * 2 * q + 4 * shape.heads + mask + kv_again
    in_responses = response_tokens * per_response_token
    repeated_kv = rows.rows * width * b * 2 * q  # with a mask, keys and values are repeated for every query head
    return in_prompts + in_responses + repeated_kv


def train_pass(shape: ModelShape, rows: Rows, how: ComputePrecision, training: Training) -> Pass:
    """Return the bytes of one micro-batch in addition to weights, copies, gradients and optimizer state."""
    if how.checkpointing:
        rows = rows.alone()  # a checkpointed model cannot take two passes
    h, b = shape.hidden, how.low
    extra = b % 4  # bytes per number of a bfloat16 copy; 0 in float32, where there is none
    frozen = bool(training.rank)
    block = block_bytes(shape, rows, how, training)
    inputs = rows.tokens * h * 4
    final_norm = inputs * (1 if shape.family == "gpt2" or frozen else 2)
    blocks = shape.layers * (inputs if how.checkpointing else block)
    # temporaries of one block's backward pass: gradients of hidden states and MLP, and of one MLP matrix
    hidden_gradients = 2 * 4 * h
    flow = rows.tokens * (hidden_gradients + b * shape.mlp_width)
    if not frozen:
        flow += (4 + extra) * shape.largest
    head_gradient = 0 if frozen or shape.outputs else GRADIENT * shape.vocabulary * h
    tied_gradients = 2 * head_gradient * shape.tied  # the two gradients of a tied embedding and their sum coexist
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
    if shape.capped_logits:  # logits are recomputed, together with the slope of the cap
        kept_logits = 0
        temporary = _chunk_bytes(rows.targets, shape.vocabulary, 12 + how.low % 4)
    target_states = rows.targets * h * b  # hidden states of the response tokens, selected for the head
    # the gradient of the head's weight exists during the chunks, and at the end its cast copy exists next to it
    cast_gradient = extra * head_gradient // 4
    head = target_states + max(temporary + head_gradient, head_gradient + cast_gradient)
    return Pass(blocks + final_norm + target_states, kept_logits, head, first, last)


def rooted_pass(work: Pass, shape: ModelShape, how: ComputePrecision, training: Training) -> Pass:
    """Return the same pass under FSDP2, where gradients are full until they are reduced over the processes.

    For a moment, a block's gradients exist in full in the dtype of training, and again in the float32 buffer for the
    exchange. Everything outside the blocks is one unit: its parameters and gradients, both float32, are full until the
    end of the backward pass, when its buffer is added.
    """
    trained = shape.block
    if training.rank:
        trained = shape.adapter(training.rank, training.targets) // shape.layers
    moving = (how.low + GRADIENT) * trained + how.low * shape.block
    root = GRADIENT * (shape.outputs * shape.hidden if training.rank else shape.root)
    head = 0
    if not training.rank and not how.checkpointing:
        head = GRADIENT * (shape.outputs or shape.vocabulary) * shape.hidden
    full_root = WEIGHT * shape.root + root  # parameters and gradients outside the blocks
    last = full_root + max(work.last + moving, root)
    return replace(work, first=work.first + head + moving, last=last)


def logit_bytes(targets: int, vocabulary: int, how: ComputePrecision) -> tuple[int, int]:
    """Return (bytes kept for the backward pass, largest temporaries) of N·V probabilities computed in chunks."""
    entries = targets * vocabulary
    kept = 4 * entries if entries <= KEPT_LOGITS else 0
    bytes_each = 4 + how.low % 4 + (0 if kept else 4)
    return kept, _chunk_bytes(targets, vocabulary, bytes_each)


def _chunk_bytes(targets: int, vocabulary: int, bytes_each: int) -> int:
    """Return the bytes of a chunk of logits. With several chunks, one is freed only after the next is created."""
    entries = targets * vocabulary
    chunk = max(CHUNK_LOGITS, CHUNK_TOKENS * vocabulary)
    several = entries > chunk
    return min(entries, chunk) * (bytes_each + 4 * several)


def score_bytes(shape: ModelShape, rows: Rows, how: ComputePrecision) -> int:
    """Return the bytes of a forward pass without gradient; its peak is in a block's MLP, or in the head with logits.

    The MLP holds three (GPT-2: four) arrays of its width and four (five) hidden states; these counts are measured.
    """
    mlp_arrays, hidden_arrays = (4, 5) if shape.family == "gpt2" else (3, 4)
    hidden_bytes = hidden_arrays * 4 * shape.hidden
    mlp_bytes = mlp_arrays * how.low * shape.mlp_width
    in_block = rows.tokens * (hidden_bytes + mlp_bytes)
    if how.attention == "eager" or shape.capped_scores:
        # scores and probabilities of all pairs exist at the same time
        scores = 2 * 4 * shape.heads * rows.width
        in_block = max(in_block, rows.tokens * (3 * 4 * shape.hidden + scores))
    head_matrix = 0 if shape.outputs else shape.vocabulary * shape.hidden
    copy = 0
    if how.low == 2:  # bfloat16 copies of one block or of the head at a time
        copy = 2 * max(shape.block_matrices, head_matrix)
    if shape.outputs:
        return in_block + copy
    states = (rows.targets + rows.tokens) * 4 * shape.hidden
    in_head = states + _chunk_bytes(rows.targets, shape.vocabulary, 4 + how.low % 4)
    return max(in_block, in_head) + copy


def divergence_bytes(shape: ModelShape, rows: Rows, how: ComputePrecision) -> int:
    """Return the bytes of a KL over the vocabulary of two models of one shape: states, and seven arrays per chunk."""
    states = rows.targets * shape.hidden * 4
    chunks = 7 * 4 * min(rows.targets * shape.vocabulary, CHUNK_LOGITS)
    return max(states + score_bytes(shape, rows, how), 2 * states + chunks)


def cache_slots(new_tokens: int) -> list[int]:
    """Return the sizes that the sampler's cache of generated tokens takes, in order."""
    sizes = [0]
    while sizes[-1] < new_tokens - 1:
        # as in `GroupCache.open_slot`: grow by a quarter, in multiples of CACHE_SLOTS
        quarter = sizes[-1] // 4 // CACHE_SLOTS * CACHE_SLOTS
        sizes.append(sizes[-1] + max(CACHE_SLOTS, quarter))
    return sizes


@dataclass(frozen=True)
class SamplerMemory:
    """Bytes of the built-in sampler in addition to the model that it samples from.

    Attributes:
        weights: bytes of its fused copy of the matrices.
        cache: bytes of the KV cache of prompts and of generated tokens at the end.
        logits: bytes of logits and probabilities of all rows at one step.
        total: peak of all of them together, including temporaries.
        bytes_each: bytes per key or value.
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
    full_block: int = 0,
) -> SamplerMemory:
    """Return the sampler's bytes for `group` responses of up to `new` tokens to each of `prompts` prompts.

    The KV cache of a prompt is shared by its group. While the cache of generated tokens grows, or rows join and leave,
    the old cache of one layer also exists. A pass over the prompts peaks in the MLP: 12m + 24h bytes per token, GPT-2
    8m + 25h (measured).

    Args:
        prompt, new: tokens of a prompt, and of a response.
        bytes_each: bytes per weight, logit, key and value of the sampler.
        refilled: True if waiting rows take the slots of finished ones, so that the cache is used a little longer.
        in_place: True if the sampler calls the model's own layers instead of copying weights; 4-bit layers are
            dequantised one at a time.
        full_block: bytes of a block's parameters if a sharded policy is gathered block by block, else 0. The sampler
            then copies only the head permanently, and a block while it computes.
    """
    if not shape.own_decoder:
        return _sampling_by_the_model(shape, prompts, group, prompt, new, full_block)
    h, m = shape.hidden, shape.mlp
    rows = prompts * group
    max_slots = math.ceil(OVERDUE * new) + CHECKED_EVERY  # the cache is compacted before it needs more
    slots = [max_slots + CACHE_SLOTS] if refilled else cache_slots(new)
    largest = max(inputs * outputs for inputs, outputs in shape.matrices.values())
    weights = bytes_each * (largest if in_place else shape.multiplied)
    block = 0
    reading = 0
    if full_block:
        weights = bytes_each * (shape.multiplied - shape.layers * shape.block_matrices)
        block = full_block + bytes_each * shape.block_matrices
        reading = _reading_bytes(shape, bytes_each)
    prompt_cache = shape.kv_bytes(prompts * prompt, bytes_each)
    old_slots, last_slots = [0, *slots][-2:]
    cache = shape.kv_bytes(rows * last_slots, bytes_each)
    # the old cache of one layer; if rows join, the prompts are copied too
    if refilled:
        old_cache = (cache + prompt_cache) // shape.layers
    else:
        old_cache = shape.kv_bytes(rows * old_slots, bytes_each) // shape.layers
    logits = rows * shape.vocabulary * bytes_each
    running_sum = 4 if shape.vocabulary <= SEARCHED else 0
    probabilities = rows * shape.vocabulary * (4 + running_sum)
    attention_scores = 3 * 4 * shape.heads * (prompt + last_slots)
    step = rows * (max(attention_scores, 12 * m) + 20 * h)
    growing = old_cache + cache
    computing = cache + block + max(step, reading)
    decode = logits + max(growing, computing, cache + probabilities)
    # bytes per prompt token in the MLP, measured (see the docstring)
    per_prompt_token = 8 * m + 25 * h if shape.family == "gpt2" else 12 * m + 24 * h
    prefill = prompts * prompt * per_prompt_token
    # When the sampler is created, the head is multiplied by the last norm in float32 before it is copied.
    fused_head = 4 * shape.vocabulary * h if shape.family == "llama" and not in_place else 0
    reading_prompts = block + max(prefill, reading) + (cache if refilled else 0)  # prompts of rows that join others
    total = weights + max(prompt_cache + max(decode, reading_prompts), fused_head)
    return SamplerMemory(weights, prompt_cache + cache, logits + probabilities, total, bytes_each)


def _reading_bytes(shape: ModelShape, bytes_each: int) -> int:
    """Return the bytes of temporaries at their peak while the sampler copies a block's weights.

    The weights of a projection are scaled in float32 and concatenated. If the copy is bfloat16, it is converted only
    after this. In a gated MLP the peak is at the last projection but one, before the copy of the last one exists.
    """
    matrix = shape.hidden * shape.mlp
    per_number = 4 if bytes_each == 4 else 8
    last = per_number * matrix
    if shape.family == "gpt2":
        return last
    before_last = 2 * per_number * matrix - bytes_each * matrix  # the copy of the last projection does not exist yet
    return max(last, before_last)


def _sampling_by_the_model(
    shape: ModelShape, prompts: int, group: int, prompt: int, new: int, full_block: int
) -> SamplerMemory:
    """Return the sampler's bytes if the model's own forward pass decodes: no copy of weights, a prompt cache per row.

    Keys and values are float32, because rotary embeddings have the dtype of the residual stream. The cache grows by
    copying one layer at a time. A layer repeats keys and values for every query head under the mask for padding.
    Sliding windows are not counted: their caches are assumed to have full length.
    """
    rows = prompts * group
    tokens = rows * (prompt + new)
    cache = shape.kv_bytes(tokens)
    repeated_kv = 2 * 4 * shape.heads * shape.head_dim * tokens
    repeated = repeated_kv + cache // shape.layers
    # a cap, c·tanh(logits/c), needs two more tensors of the same size
    logits = (3 if shape.capped_logits else 1) * 4 * rows * shape.vocabulary
    probabilities = 8 * rows * shape.vocabulary
    prefill = prompts * prompt * (12 * shape.mlp_width + 24 * shape.hidden)
    if shape.capped_scores:
        prefill += 3 * 4 * prompts * shape.heads * prompt**2
    in_blocks = full_block + max(repeated, prefill)
    total = cache + max(in_blocks, logits + probabilities)
    return SamplerMemory(0, cache, logits + probabilities, total, 4)


def update_peak(passes: Sequence[Pass], copies: int, gradients: int, *, accumulates: bool) -> int:
    """Return the peak of an update in addition to weights and optimizer state, for models with a common backward pass.

    Args:
        copies: bytes of all models' weight copies.
        gradients: bytes of all models' gradients, without those that are kept between steps.
        accumulates: True if gradients of earlier micro-batches already exist.
    """
    before = copies + (gradients if accumulates else 0)
    head_bytes = [work.activations + work.logits + work.head for work in passes]
    in_head = before + sum(head_bytes)
    entering_blocks = before + sum(work.first for work in passes)
    # models leave their blocks one after another, so only the largest of them counts
    leaving_blocks = gradients + max(work.last for work in passes)
    return max(in_head, entering_blocks, leaving_blocks)
