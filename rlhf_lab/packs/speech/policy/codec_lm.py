"""Language model of codec streams: a Llama whose positions are the tokens of the prompt, then columns of K codes.

Externally it is a causal language model over a flat sequence of tokens, one token per word of the stream. Therefore
sampling, training and storage work as for any policy. Internally, the K words of a column share one position. Their
embeddings are summed, and the hidden state of a column predicts all words of the next column, as in MusicGen
(arXiv:2306.05284). Hence the codes of a column are independent of each other, conditioned on the previous columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.modeling_outputs import CausalLMOutputWithPast

from rlhf_lab.core.errors import ConfigError, DataError

FORBIDDEN = -1e9
"""Value added to the logit of a forbidden word. It is finite, so that 0 · (difference of two such logits) is 0 in an
exact KL divergence."""


class DelayPattern:
    """Words of K codebooks in a vocabulary, and the rules of their order.

    `states` returns one of these states for each position of the stream; the right column lists the allowed words:

        0            in the prompt: every word
        1 + k        a code of codebook k
        1 + K        a code of codebook 0, or the end: its empty word, which with K = 1 is the end-of-text token
        2 + K + k    the empty word of codebook k
        2 + 2K       the end-of-text token

    Args:
        sizes: number of codes of each codebook.
        first: id of the first code word; the order of words is that of `speech.stream.all_words`.
        eos: id of the end-of-text token.
        vocabulary: number of tokens.
        min_frames: minimum number of frames of a clip.

    Attributes:
        allowed_SV: values added to the logits in each state, 0 or `FORBIDDEN`.
        empty_V: True for tokens that are empty words.
    """

    def __init__(self, sizes: Sequence[int], first: int, eos: int, vocabulary: int, min_frames: int = 1):
        self.codebooks = len(sizes)
        self.first = first
        self.min_frames = max(1, min_frames)
        # everything is forbidden unless a state allows it
        self.allowed_SV = torch.full((3 + 2 * self.codebooks, vocabulary), FORBIDDEN)
        self.empty_V = torch.zeros(vocabulary, dtype=torch.bool)
        self.allowed_SV[0] = 0.0
        # the words of a codebook are its empty word, then its codes; `empty` is the id of the empty word
        empty = first
        for k, size in enumerate(sizes):
            self.empty_V[empty] = True
            codes = slice(empty + 1, empty + 1 + size)
            self.allowed_SV[1 + k, codes] = 0.0
            self.allowed_SV[2 + self.codebooks + k, empty] = 0.0
            if k == 0:
                self.allowed_SV[1 + self.codebooks, codes] = 0.0
                self.allowed_SV[1 + self.codebooks, eos if self.codebooks == 1 else empty] = 0.0
            empty += 1 + size
        self.allowed_SV[2 + 2 * self.codebooks, eos] = 0.0

    def to(self, device: torch.device) -> DelayPattern:
        self.allowed_SV = self.allowed_SV.to(device)
        self.empty_V = self.empty_V.to(device)
        return self

    def states(self, position: Tensor, back_2: Tensor, back_K: Tensor, back_K1: Tensor) -> Tensor:
        """Return the state at each position of the stream, as a tensor with the shape of the arguments.

        Args:
            position: number of words of the stream before the position.
            back_2, back_K, back_K1: tokens 2, K and K + 1 words before the position; any value if there are none.
        """
        K = self.codebooks
        column = position // K
        k = position % K
        is_first = k == 0
        # codebook 0 has finished once it was empty in the previous column (K words back); codebook k follows codebook
        # k − 1 one column later (K + 1 words back)
        first_over = is_first & (column >= 1) & self.empty_V[back_K]
        others_over = ~is_first & ((column < k) | self.empty_V[back_K1])
        # later rules override earlier ones
        state = 1 + k
        state = torch.where(is_first & (column >= self.min_frames), 1 + K, state)
        state = torch.where(first_over | others_over, 2 + K + k, state)
        # the clip is complete once codebook K − 2 was empty in the previous column (2 words back): the last code of
        # codebook K − 1 was in that column
        full = first_over & (column >= K - 1) & self.empty_V[back_2]
        return torch.where(full, 2 + 2 * K, state)


class CodecConfig(LlamaConfig):
    """Configuration of a Llama, plus the codebooks; see `DelayPattern`.

    Args:
        sizes: number of codes of each codebook.
        first_code: token id of the first code word; all larger ids are code words as well.
        min_frames: minimum number of frames of a clip.
        codec: fingerprint of the codec; empty if unknown.
    """

    model_type = "rlhf_lab_codec"

    def __init__(
        self, sizes: tuple[int, ...] = (2,), first_code: int = 2, min_frames: int = 1, codec: str = "", **llama: Any
    ):
        super().__init__(**llama)
        self.sizes = list(sizes)
        self.first_code = first_code
        self.min_frames = min_frames
        self.codec = codec


def delay_pattern(config: Any) -> DelayPattern:
    """Return the delay pattern of a model's codebooks."""
    return DelayPattern(config.sizes, config.first_code, config.eos_token_id, config.vocab_size, config.min_frames)


class CodecLM(LlamaForCausalLM):
    """Causal language model of codec streams; see the module. Rows are right-padded, without an attention mask."""

    config_class = CodecConfig
    _rlhf_lab_linear_head = False  # the delay pattern changes the logits after the linear head

    @cached_property
    def pattern(self) -> DelayPattern:
        """Delay pattern of the model, created at first use because `from_pretrained` builds on the meta device."""
        return delay_pattern(self.config)

    def forward(self, input_ids: Tensor, use_cache: bool = False, **unused: Any) -> CausalLMOutputWithPast:
        """Return next-token logits (B, T, V); tokens that the delay pattern forbids have about −1e9.

        Args:
            input_ids: rows of a prompt followed by the words of a stream, which may be incomplete, (B, T).
        Raises:
            ConfigError: a KV cache is requested.
        """
        if use_cache or unused.get("past_key_values") is not None:
            raise ConfigError(
                "a codec model has no KV cache of its own; call it with use_cache=False, or sample with rollout=local, "
                "whose decoder has one"
            )
        pattern = self.pattern.to(input_ids.device)
        layout = CodecLayout(input_ids, pattern)
        states_BT = layout.states()
        layout.require_frames(states_BT)
        # (B, T) tokens → (B, C) positions for the transformer → (B, T) next-token logits
        embedded_BCd = layout.embed(self.model.embed_tokens(input_ids))
        # attention needs no mask, because the model is causal and rows are right-padded
        hidden_BCd = self.model(inputs_embeds=embedded_BCd, use_cache=False)[0]
        logits_BCV = self.lm_head(hidden_BCd)
        source_BT1 = layout.predicted_from()[..., None]
        logits_BTV = logits_BCV.gather(1, source_BT1.expand(-1, -1, logits_BCV.shape[-1]))
        # the pattern adds about −1e9 to forbidden words
        return CausalLMOutputWithPast(logits=logits_BTV + pattern.allowed_SV[states_BT])


class CodecLayout:
    """Mapping between the tokens of rows and the positions of the model: its prompt, then one for each K words.

    Args:
        ids_BT: right-padded rows of token ids; the stream of a row starts with its first code word.
    """

    def __init__(self, ids_BT: Tensor, pattern: DelayPattern):
        self.ids_BT, self.pattern = ids_BT, pattern
        is_code_BT = ids_BT >= pattern.first
        width = ids_BT.shape[1]
        has_codes_B = is_code_BT.any(1)
        # length of the prompt: argmax returns the first of the equal values, so the index of the first code word
        self.prompt_B1 = torch.where(has_codes_B, is_code_BT.int().argmax(1), width)[:, None]
        # index in the stream of the token after each token; negative within the prompt
        self.next_place_BT = torch.arange(1, width + 1, device=ids_BT.device) - self.prompt_B1

    def require_frames(self, states_BT: Tensor) -> None:
        """Raise DataError for a clip with fewer than `min_frames` frames, because the delay pattern forbids its end."""
        # state 1 is a position that must have a code of codebook 0
        ends_early_BT = (states_BT[:, :-1] == 1) & self.pattern.empty_V[self.ids_BT[:, 1:]]
        if ends_early_BT.any():
            raise DataError(
                f"a clip has fewer than {self.pattern.min_frames} frames (model.min_frames), so the model cannot "
                "generate it; lower model.min_frames, or leave such clips out"
            )

    def embed(self, embedded_BTd: Tensor) -> Tensor:
        """Return the embeddings of positions, (B, C, d); the embedding of a column is the sum over its words."""
        position_BT = self.next_place_BT - 1
        index_BT = torch.arange(position_BT.shape[1], device=position_BT.device).expand_as(position_BT)
        column_BT = torch.where(position_BT >= 0, self.prompt_B1 + position_BT // self.pattern.codebooks, index_BT)
        positions = int(column_BT.max()) + 1
        result_BCd = embedded_BTd.new_zeros(len(embedded_BTd), positions, embedded_BTd.shape[2])
        return result_BCd.scatter_add(1, column_BT[..., None].expand_as(embedded_BTd), embedded_BTd)

    def predicted_from(self) -> Tensor:
        """Return the position whose hidden state predicts the token after each token, (B, T)."""
        position_BT = self.next_place_BT
        index_BT = torch.arange(position_BT.shape[1], device=position_BT.device)
        # the last position of the prompt predicts column 0, and column t predicts column t + 1
        return torch.where(position_BT >= 0, self.prompt_B1 - 1 + position_BT // self.pattern.codebooks, index_BT)

    def states(self) -> Tensor:
        """Return the state of the delay pattern after each token, (B, T); `DelayPattern` lists the states."""
        width = self.ids_BT.shape[1]
        # index of the token after each token
        index_BT = torch.arange(1, width + 1, device=self.ids_BT.device).expand_as(self.ids_BT)

        def token_before(words: int) -> Tensor:
            return self.ids_BT.gather(1, (index_BT - words).clamp(min=0))

        # tokens before the start of a row are clamped to index 0; the pattern ignores them
        K = self.pattern.codebooks
        position_BT = self.next_place_BT.clamp(min=0)
        states_BT = self.pattern.states(position_BT, token_before(2), token_before(K), token_before(K + 1))
        return torch.where(self.next_place_BT >= 0, states_BT, 0)


AutoConfig.register(CodecConfig.model_type, CodecConfig)
AutoModelForCausalLM.register(CodecConfig, CodecLM)
