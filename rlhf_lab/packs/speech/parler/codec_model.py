"""rlhf_lab's own codec language model (`model=codec`) behind the protocol of the worker.

The prompt of the model is the transcript of "DESCRIPTION : TEXT", as in the speech worlds. A word of the model's stream
is a code of a codebook, or the empty word of the codebook before its first and after its last code. The start and end
tokens of columns.py are therefore both the empty word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from rlhf_lab.environments.splits import transcript
from rlhf_lab.models.build import save_model
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.packs.speech.parler.columns import Codebooks
from rlhf_lab.packs.speech.parler.served_model import DTYPES, NextLogits, ServedModel, SpokenText
from rlhf_lab.packs.speech.policy.codec_lm import CodecLM
from rlhf_lab.packs.speech.sound.codec import Codec

BATCH_PROMPTS = 64
"""Maximum number of prompts that are sampled together."""


class CodecModel(ServedModel):
    """A `CodecLM` with its tokenizer and its codec."""

    def __init__(self, model: CodecLM, encoder: Encoder, codec: Codec):
        sizes = set(model.config.sizes)
        if len(sizes) > 1:
            raise ValueError(f"codebooks of sizes {model.config.sizes}; the protocol needs codebooks of one size")
        if model.config.codec and model.config.codec != codec.fingerprint:
            raise ValueError("the model was trained for another codec than that of the data")
        (size,) = sizes
        count = len(model.config.sizes)
        codebooks = Codebooks(count, size, start=size, end=size, min_frames=model.config.min_frames)
        super().__init__(model, codebooks, codec.rate)
        self.encoder, self.codec = encoder, codec
        # token ids of a codebook: its empty word, then its codes
        first_K = model.config.first_code + torch.arange(count) * (size + 1)
        order_C = torch.tensor([*range(1, size + 1), 0])
        self.word_KC = (first_K[:, None] + order_C).to(model.device)

    @classmethod
    def import_packages(cls) -> None:
        pass  # this module has imported them

    @classmethod
    def load(cls, directory: str, *, dtype: str, device: str, options: Mapping[str, Any]) -> CodecModel:
        """Load a model that rlhf_lab has trained; `options` has `codec`, the directory of its codec."""
        model: Any = CodecLM.from_pretrained(directory)
        model = model.to(device, DTYPES[dtype])
        encoder = Encoder(PreTrainedTokenizerFast.from_pretrained(directory))
        return cls(model, encoder, Codec.load(Path(options["codec"])))

    def save(self, directory: Path) -> None:
        save_model(self.model, self.encoder, directory)

    def batches(self, prompts: Sequence[SpokenText]) -> list[list[int]]:
        """Return prompts with the same number of tokens together, at most `BATCH_PROMPTS` of them."""
        by_length: dict[int, list[int]] = {}
        for index, prompt in enumerate(prompts):
            by_length.setdefault(len(self._ids(prompt)), []).append(index)
        return [
            indices[start : start + BATCH_PROMPTS]
            for indices in by_length.values()
            for start in range(0, len(indices), BATCH_PROMPTS)
        ]

    def next_logits(self, prompts: Sequence[SpokenText], clips: int) -> NextLogits:
        prompt_BPd = torch.cat([self._prompt(prompt, clips) for prompt in prompts])
        past: Any = None

        def compute(inputs_BK: Tensor) -> Tensor:
            nonlocal past
            # the end of the prompt predicts column 0, so the start tokens are not read
            embedded = prompt_BPd if past is None else self._embed(inputs_BK[:, :, None].to(self.model.device))
            output = self.model.model(inputs_embeds=embedded, past_key_values=past, use_cache=True)
            past = output.past_key_values
            return self._of_codebooks(self.model.lm_head(output.last_hidden_state[:, -1:]))[:, :, 0]

        return compute

    def logits(self, prompt: SpokenText, inputs_BKL: Tensor) -> Tensor:
        prompt_BPd = self._prompt(prompt, len(inputs_BKL))
        embedded = torch.cat([prompt_BPd, self._embed(inputs_BKL[:, :, 1:])], dim=1)
        hidden_BCd = self.model.model(inputs_embeds=embedded, use_cache=False).last_hidden_state
        return self._of_codebooks(self.model.lm_head(hidden_BCd[:, prompt_BPd.shape[1] - 1 :]))

    def decode(self, codes_TK: Tensor) -> Tensor:
        return torch.from_numpy(self.codec.decode(codes_TK.numpy()))

    def _ids(self, prompt: SpokenText) -> list[int]:
        text, description = prompt
        return self.encoder.prompt(transcript(f"{description} : {text}"))

    def _prompt(self, prompt: SpokenText, rows: int) -> Tensor:
        """Return the embedded tokens of a prompt, repeated for each clip, (B, P, d)."""
        ids_P = torch.tensor(self._ids(prompt), device=self.model.device)
        embedded: Tensor = self.model.model.embed_tokens(ids_P)
        return embedded.expand(rows, -1, -1)

    def _embed(self, inputs_BKL: Tensor) -> Tensor:
        """Return the embeddings of columns, (B, L, d): the sum over the words of a column."""
        codebook_K1 = torch.arange(self.codebooks.count, device=inputs_BKL.device)[:, None]
        words_BKL = self.word_KC[codebook_K1, inputs_BKL]
        embedded_BKLd: Tensor = self.model.model.embed_tokens(words_BKL)
        return embedded_BKLd.sum(1)

    def _of_codebooks(self, logits_BLV: Tensor) -> Tensor:
        """Select the logits of each codebook's own words, (B, K, L, S + 1): its codes, then its empty word."""
        return logits_BLV[..., self.word_KC].transpose(1, 2)
