"""A language model of a codec's streams: a Llama whose positions are the tokens of the prompt, then columns of K codes.

From outside it is a causal language model over flat tokens, one word of the stream after another, so whatever samples
from, trains or stores a policy serves it. Inside, the K words of a column are one position: their embeddings are added
up, and the hidden state of a column gives the logits of all words of the next one, as in MusicGen (arXiv:2306.05284).
Given the columns before it, the codes of a column are therefore independent of each other.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.modeling_outputs import CausalLMOutputWithPast

from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.packs.speech.policy.delay_pattern import DelayPattern


class CodecConfig(LlamaConfig):
    """A Llama's, and the codebooks; see `DelayPattern`.

    Args:
        sizes: codes of each codebook.
        first_code: token id of the first code word; all tokens from it on are code words.
        min_frames: least frames of a clip.
        codec: fingerprint of the codec whose codes it says; empty where nobody knows.
    """

    model_type = "rlhf_lab_codec"

    def __init__(
        self,
        sizes: tuple[int, ...] = (2,),
        first_code: int = 2,
        min_frames: int = 1,
        codec: str = "",
        **llama: Any,
    ):
        super().__init__(**llama)
        self.sizes = list(sizes)
        self.first_code = first_code
        self.min_frames = min_frames
        self.codec = codec


def delay_pattern(config: Any) -> DelayPattern:
    """The pattern of a model's codebooks."""
    return DelayPattern(config.sizes, config.first_code, config.eos_token_id, config.vocab_size, config.min_frames)


class CodecLM(LlamaForCausalLM):
    """See the module. Rows are right-padded, without an attention mask."""

    config_class = CodecConfig
    _rlhf_lab_linear_head = False  # the pattern comes after the head

    @cached_property
    def pattern(self) -> DelayPattern:
        """Made at first use: Hugging Face builds a model that it loads without memory for tensors."""
        return delay_pattern(self.config)

    def forward(self, input_ids: Tensor, use_cache: bool = False, **unused: Any) -> CausalLMOutputWithPast:
        """Logits (B, T, V) of the token behind each one; words that cannot follow have −1e9 or less.

        Args:
            input_ids: (B, T), in each row a prompt and the words of a stream, perhaps without its end.
        Raises:
            ConfigError: a cache is asked for.
        """
        if use_cache or unused.get("past_key_values") is not None:
            raise ConfigError(
                "a codec model keeps no cache of its own: call it with use_cache=False, or sample with rollout=local, "
                "whose decoder keeps one"
            )
        pattern = self.pattern.to(input_ids.device)
        layout = Layout(input_ids, pattern)
        states_BT = layout.states()
        layout.require_frames(states_BT)
        hidden_BCd = self.model(inputs_embeds=layout.embed(self.model.embed_tokens(input_ids)), use_cache=False)[0]
        logits_BCV = self.lm_head(hidden_BCd)
        logits_BTV = logits_BCV.gather(1, layout.predicted_from()[..., None].expand(-1, -1, logits_BCV.shape[-1]))
        return CausalLMOutputWithPast(logits=logits_BTV + pattern.allowed_SV[states_BT])


class Layout:
    """Where the tokens of rows stand among the positions of the model.

    A row of P prompt tokens and a stream has the positions 0 … P − 1 of its prompt, then one for every K words.

    Args:
        ids_BT: rows, right-padded; the stream of a row begins with its first code word.
    """

    def __init__(self, ids_BT: Tensor, pattern: DelayPattern):
        self.ids_BT, self.pattern = ids_BT, pattern
        is_code_BT = ids_BT >= pattern.first
        width = ids_BT.shape[1]
        has_codes_B = is_code_BT.any(1)
        # argmax of equal values is the first of them
        self.prompt_B1 = torch.where(has_codes_B, is_code_BT.int().argmax(1), width)[:, None]
        # of the token behind each one: its place in the stream, below 0 within the prompt
        self.next_place_BT = torch.arange(1, width + 1, device=ids_BT.device) - self.prompt_B1

    def require_frames(self, states_BT: Tensor) -> None:
        """Raise DataError for a clip that ends before it may: its log-probability would be that of a forbidden word."""
        ends_early_BT = (states_BT[:, :-1] == 1) & self.pattern.empty_V[self.ids_BT[:, 1:]]
        if ends_early_BT.any():
            raise DataError(
                f"a clip has fewer than {self.pattern.min_frames} frames (model.min_frames), so the model cannot say "
                "it; lower model.min_frames, or leave such clips out"
            )

    def embed(self, embedded_BTd: Tensor) -> Tensor:
        """Embeddings of positions, (B, C, d): of a column the sum over its words."""
        place_BT = self.next_place_BT - 1
        index_BT = torch.arange(place_BT.shape[1], device=place_BT.device).expand_as(place_BT)
        column_BT = torch.where(place_BT >= 0, self.prompt_B1 + place_BT // self.pattern.codebooks, index_BT)
        positions = int(column_BT.max()) + 1
        result_BCd = embedded_BTd.new_zeros(len(embedded_BTd), positions, embedded_BTd.shape[2])
        return result_BCd.scatter_add(1, column_BT[..., None].expand_as(embedded_BTd), embedded_BTd)

    def predicted_from(self) -> Tensor:
        """(B, T): the position that gives the logits of the token behind each one."""
        place_BT = self.next_place_BT
        index_BT = torch.arange(place_BT.shape[1], device=place_BT.device)
        # the last position of the prompt gives column 0, and column t gives column t + 1
        return torch.where(place_BT >= 0, self.prompt_B1 - 1 + place_BT // self.pattern.codebooks, index_BT)

    def states(self) -> Tensor:
        """(B, T): what kind of place follows each token, as `DelayPattern` numbers them."""
        width = self.ids_BT.shape[1]
        index_BT = torch.arange(1, width + 1, device=self.ids_BT.device).expand_as(self.ids_BT)

        def token_before(words: int) -> Tensor:
            return self.ids_BT.gather(1, (index_BT - words).clamp(min=0))

        K = self.pattern.codebooks
        place_BT = self.next_place_BT.clamp(min=0)
        states_BT = self.pattern.states(place_BT, token_before(2), token_before(K), token_before(K + 1))
        return torch.where(self.next_place_BT >= 0, states_BT, 0)


AutoConfig.register(CodecConfig.model_type, CodecConfig)
AutoModelForCausalLM.register(CodecConfig, CodecLM)
