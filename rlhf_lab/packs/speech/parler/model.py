"""Parler-TTS in the worker: logits of columns, decoding and saving; served_model.py has the rest.

Neither prompts nor descriptions are padded; in Parler, padding would shift the positions of all tokens after a prompt.
The text encoder and the codec are frozen, as in Parler's own training. Dropout is off. This module only runs in the
environment of `environment.py`.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from rlhf_lab.models import lora
from rlhf_lab.packs.speech.parler.columns import Codebooks
from rlhf_lab.packs.speech.parler.served_model import DTYPES, NextLogits, ServedModel, SpokenText

DESCRIPTIONS = "description_tokenizer"
"""Name of the directory of the description tokenizer, inside the directory of a saved model."""


def import_parler() -> ModuleType:
    """Import the package `parler_tts` with an empty stub for torchaudio.

    The codec library imports torchaudio for audio effects that no codec uses. torchaudio must match the build of torch,
    and its libraries are large, so an empty module replaces it.
    """
    import transformers  # imported before the stub exists, because it checks if torchaudio is installed

    transformers.utils.logging.set_verbosity_error()
    if "torchaudio" not in sys.modules:
        stand_in = ModuleType("torchaudio")
        stand_in.__spec__ = importlib.machinery.ModuleSpec("torchaudio", None)
        sys.modules["torchaudio"] = stand_in
    import parler_tts

    return parler_tts


class ParlerModel(ServedModel):
    """A Parler-TTS model with its two tokenizers."""

    # the names of the decoder's layers; those of the frozen text encoder are different
    adapter_targets = ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")

    def __init__(self, model: Any, prompt_tokenizer: Any, description_tokenizer: Any):
        model.freeze_encoders()
        self.prompt_tokenizer, self.description_tokenizer = prompt_tokenizer, description_tokenizer
        decoder = model.config.decoder
        size = model.config.audio_encoder.codebook_size
        codebooks = Codebooks(decoder.num_codebooks, size, decoder.bos_token_id, decoder.eos_token_id)
        super().__init__(model, codebooks, int(model.config.audio_encoder.sampling_rate))

    @classmethod
    def import_packages(cls) -> None:
        import_parler()

    @classmethod
    def load(cls, directory: str, *, dtype: str, device: str, options: Mapping[str, Any]) -> ParlerModel:
        """Load a model in Hugging Face format.

        Args:
            options: `description_tokenizer`, the directory or hub id of the tokenizer of descriptions. None means the
                one that `save` wrote into the model's directory or, if there is none, the tokenizer of prompts.
        """
        from transformers import AutoTokenizer

        parler = import_parler()
        model = parler.ParlerTTSForConditionalGeneration.from_pretrained(directory).to(device, DTYPES[dtype])
        prompts = AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
        # an explicit tokenizer has priority over the saved one
        saved = Path(directory) / DESCRIPTIONS
        named = options.get("description_tokenizer") or (str(saved) if saved.is_dir() else None)
        descriptions = AutoTokenizer.from_pretrained(named, trust_remote_code=False) if named else prompts
        return cls(model, prompts, descriptions)

    def save(self, directory: Path) -> None:
        with self._merged():
            self.model.save_pretrained(directory)
        self.prompt_tokenizer.save_pretrained(directory)
        self.description_tokenizer.save_pretrained(directory / DESCRIPTIONS)

    def next_logits(self, prompts: Sequence[SpokenText], clips: int) -> NextLogits:
        from transformers.modeling_outputs import BaseModelOutput

        (prompt,) = prompts
        conditions: dict[str, Any] = self._conditions(prompt, clips)

        def compute(inputs_BK: Tensor) -> Tensor:
            nonlocal conditions
            # Parler's decoder takes one row per codebook: (B, K) → (B · K, 1)
            inputs = inputs_BK.reshape(-1, 1).to(self.model.device)
            output = self.model(decoder_input_ids=inputs, use_cache=True, **conditions)
            # for later columns the prompt is in the KV cache, and the encoded description is reused
            described = BaseModelOutput(last_hidden_state=output.encoder_last_hidden_state)
            conditions = {"encoder_outputs": described, "past_key_values": output.past_key_values}
            logits_RV: Tensor = output.logits[:, -1]
            return logits_RV.reshape(clips, self.codebooks.count, -1)

        return compute

    def logits(self, prompt: SpokenText, inputs_BKL: Tensor) -> Tensor:
        rows, codebooks, columns = inputs_BKL.shape
        conditions = self._conditions(prompt, rows)
        inputs_RL = inputs_BKL.reshape(rows * codebooks, columns)
        logits_RLV: Tensor = self.model(decoder_input_ids=inputs_RL, use_cache=False, **conditions).logits
        # the output may start with the positions of the prompt
        return logits_RLV[:, -columns:].reshape(rows, codebooks, columns, -1)

    @torch.no_grad()
    def decode(self, codes_TK: Tensor) -> Tensor:
        codes = codes_TK.T[None].to(self.model.device)
        if self.model.use_4dim_audio_codes:  # Descript's own class expects a leading dimension of chunks
            codes = codes[None]
        scales = {"audio_scales": [None]} if self.model.use_audio_scales else {}
        audio: Tensor = self.model.audio_encoder.decode(audio_codes=codes, **scales).audio_values
        return audio.flatten().float().cpu()

    @contextmanager
    def _merged(self) -> Iterator[None]:
        """Replace the decoder by one with the adapter merged, and let transformers save it as an ordinary model."""
        if not lora.has_adapter(self.model):
            yield
            return
        decoder = self.model.decoder
        # the codec is not copied: weight normalisation makes some of its tensors results of a computation
        self.model.decoder = lora.merged(decoder)
        self.model._hf_peft_config_loaded = False
        try:
            yield
        finally:
            self.model.decoder = decoder
            self.model._hf_peft_config_loaded = True

    def _conditions(self, prompt: SpokenText, rows: int) -> dict[str, Tensor]:
        """Return the tokens of prompt and description, repeated for each clip."""
        text, description = prompt
        spoken = self.prompt_tokenizer(text, return_tensors="pt").input_ids
        described = self.description_tokenizer(description, return_tensors="pt").input_ids
        ids = {"input_ids": described, "prompt_input_ids": spoken}
        return {name: tokens.expand(rows, -1).to(self.model.device) for name, tokens in ids.items()}


def make_tiny(directory: Path, *, seed: int, codebooks: int = 4, size: int = 64) -> None:
    """Write a small model with random weights that produces noise, to test a reward or a training loop."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import DacConfig, PreTrainedTokenizerFast, T5Config

    parler = import_parler()
    torch.manual_seed(seed)
    # a tokenizer of printable ASCII characters, one token each
    characters = ["<pad>", "<unk>", *map(chr, range(32, 127))]
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(characters)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", unk_token="<unk>")
    text_encoder = T5Config(
        vocab_size=len(characters),
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        feed_forward_proj="gated-gelu",
    )
    codec = DacConfig(
        encoder_hidden_size=8,
        downsampling_ratios=[2, 4, 4, 5],
        decoder_hidden_size=64,
        n_codebooks=codebooks,
        codebook_size=size,
        codebook_dim=4,
        sampling_rate=16000,
    )
    decoder = parler.ParlerTTSDecoderConfig(
        vocab_size=size + 1,
        max_position_embeddings=512,
        num_hidden_layers=2,
        num_attention_heads=2,
        ffn_dim=64,
        hidden_size=32,
        num_codebooks=codebooks,
        pad_token_id=size,
        eos_token_id=size,
        bos_token_id=size + 1,
        initializer_factor=0.1,
    )
    config = parler.ParlerTTSConfig.from_sub_models_config(
        text_encoder, codec, decoder, vocab_size=len(characters), pad_token_id=size, decoder_start_token_id=size + 1
    )
    model = parler.ParlerTTSForConditionalGeneration(config)
    ParlerModel(model, tokenizer, tokenizer).save(directory)
