"""Parler-TTS in the worker: sampling, differentiable log-probabilities, decoding, optimizer steps and saving.

The model processes one prompt at a time, with all its clips together. Therefore neither prompts nor descriptions are
padded; in Parler, padding would shift the positions of all tokens after a prompt. The text encoder and the codec are
frozen, as in Parler's own training. Dropout is off. This module only runs in the environment of `environment.py`.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from rlhf_lab.packs.speech.parler.columns import (
    ClipLogps,
    Codebooks,
    CodecClip,
    ColumnSampler,
    choices,
    clip_logps,
    decoder_inputs,
)

DESCRIPTIONS = "description_tokenizer"
"""Name of the directory of the description tokenizer, inside the directory of a saved model."""
OPTIMIZER = "optimizer.pt"
"""Name of the file with the state of the optimizer, inside the directory of a saved model."""
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


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


class ParlerModel:
    """A Parler-TTS model with its two tokenizers and an optimizer."""

    def __init__(self, model: Any, prompt_tokenizer: Any, description_tokenizer: Any):
        self.model = model.eval()
        self.model.freeze_encoders()
        self.prompt_tokenizer, self.description_tokenizer = prompt_tokenizer, description_tokenizer
        decoder = model.config.decoder
        size = model.config.audio_encoder.codebook_size
        self.codebooks = Codebooks(decoder.num_codebooks, size, decoder.bos_token_id, decoder.eos_token_id)
        self.rate = int(model.config.audio_encoder.sampling_rate)
        self.optimizer: torch.optim.AdamW | None = None

    @classmethod
    def load(cls, directory: str, *, dtype: str, device: str, description_tokenizer: str | None) -> ParlerModel:
        """Load a model in Hugging Face format.

        Args:
            directory: directory or hub id of the model.
            description_tokenizer: directory or hub id of the tokenizer of descriptions. None means the one that `save`
                wrote into the model's directory or, if there is none, the tokenizer of prompts.
        """
        from transformers import AutoTokenizer

        parler = import_parler()
        model = parler.ParlerTTSForConditionalGeneration.from_pretrained(directory).to(device, DTYPES[dtype])
        prompts = AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
        # an explicit tokenizer has priority over the saved one
        saved = Path(directory) / DESCRIPTIONS
        named = description_tokenizer or (str(saved) if saved.is_dir() else None)
        descriptions = AutoTokenizer.from_pretrained(named, trust_remote_code=False) if named else prompts
        return cls(model, prompts, descriptions)

    def save(self, directory: Path, *, with_optimizer: bool = False) -> None:
        """Write weights, configuration and tokenizers and, with `with_optimizer`, the state of the optimizer."""
        self.model.save_pretrained(directory)
        self.prompt_tokenizer.save_pretrained(directory)
        self.description_tokenizer.save_pretrained(directory / DESCRIPTIONS)
        if with_optimizer and self.optimizer is not None:
            torch.save(self.optimizer.state_dict(), directory / OPTIMIZER)

    def load_optimizer(self, directory: Path) -> None:
        """Read the state of the optimizer that `save` wrote."""
        self.optimizer = torch.optim.AdamW(self.trained())
        state = torch.load(directory / OPTIMIZER, weights_only=True)
        self.optimizer.load_state_dict(state)

    def trained(self) -> list[torch.nn.Parameter]:
        """Return the trained parameters: the decoder, the prompt embedding and the projection of descriptions."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    @torch.no_grad()
    def sample(
        self, text: str, description: str, *, clips: int, max_frames: int, temperature: float, seed: int
    ) -> list[tuple[CodecClip, ClipLogps]]:
        """Sample clips of one prompt together, column by column. Returns them with their log-probabilities."""
        from transformers.modeling_outputs import BaseModelOutput

        sampling = ColumnSampler(clips, self.codebooks, max_frames=max_frames, temperature=temperature, seed=seed)
        conditions: dict[str, Any] = self._conditions(text, description, clips)
        while not sampling.is_complete:
            # Parler's decoder takes one row per codebook: (B, K) → (B · K, 1)
            inputs = sampling.inputs().reshape(-1, 1).to(self.model.device)
            output = self.model(decoder_input_ids=inputs, use_cache=True, **conditions)
            logits_RLV = output.logits[:, -1:]
            sampling.draw(logits_RLV.reshape(clips, self.codebooks.count, -1))
            # for later columns the prompt is in the KV cache, and the encoded description is reused
            described = BaseModelOutput(last_hidden_state=output.encoder_last_hidden_state)
            conditions = {"encoder_outputs": described, "past_key_values": output.past_key_values}
        return sampling.clips()

    def logps(self, text: str, description: str, clips: Sequence[CodecClip], *, temperature: float) -> list[ClipLogps]:
        """Return differentiable log-probabilities of clips of one prompt, from one pass over all columns."""
        inputs_BKL = decoder_inputs(clips, self.codebooks).to(self.model.device)
        rows, codebooks, columns = inputs_BKL.shape
        conditions = self._conditions(text, description, rows)
        inputs_RL = inputs_BKL.reshape(rows * codebooks, columns)
        logits_RLV = self.model(decoder_input_ids=inputs_RL, use_cache=False, **conditions).logits
        # the output may start with the positions of the prompt
        logits_BKLV = logits_RLV[:, -columns:].reshape(rows, codebooks, columns, -1)
        options_BKLC = choices(logits_BKLV, self.codebooks, temperature=temperature)
        return [clip_logps(options_BKLC[row], clip, self.codebooks) for row, clip in enumerate(clips)]

    @torch.no_grad()
    def decode(self, codes_TK: Tensor) -> Tensor:
        """Decode the audio of a clip, (samples,) float32."""
        codes = codes_TK.T[None].to(self.model.device)
        if self.model.use_4dim_audio_codes:  # Descript's own class expects a leading dimension of chunks
            codes = codes[None]
        scales = {"audio_scales": [None]} if self.model.use_audio_scales else {}
        return self.model.audio_encoder.decode(audio_codes=codes, **scales).audio_values.flatten().float().cpu()

    def step(self, *, lr: float, weight_decay: float, max_grad_norm: float) -> dict[str, float]:
        """Take one step of AdamW on the accumulated gradients, then clear them.

        Returns gradient norms before clipping: one for each sub-module of the model, and `all` for all parameters.
        """
        trained = self.trained()
        if self.optimizer is None:
            self.optimizer = torch.optim.AdamW(trained)
        # the client may change the learning rate at each step
        for group in self.optimizer.param_groups:
            group.update(lr=lr, weight_decay=weight_decay)
        norms = {name: _gradient_norm(part) for name, part in self.model.named_children()}
        norms["all"] = float(torch.nn.utils.clip_grad_norm_(trained, max_grad_norm))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norms

    def _conditions(self, text: str, description: str, rows: int) -> dict[str, Tensor]:
        """Return the tokens of prompt and description, repeated for each clip."""
        prompt = self.prompt_tokenizer(text, return_tensors="pt").input_ids
        described = self.description_tokenizer(description, return_tensors="pt").input_ids
        ids = {"input_ids": described, "prompt_input_ids": prompt}
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
        text_encoder,
        codec,
        decoder,
        vocab_size=len(characters),
        pad_token_id=size,
        decoder_start_token_id=size + 1,
    )
    model = parler.ParlerTTSForConditionalGeneration(config)
    ParlerModel(model, tokenizer, tokenizer).save(directory)


def _gradient_norm(part: torch.nn.Module) -> float:
    gradients = [parameter.grad.flatten() for parameter in part.parameters() if parameter.grad is not None]
    return float(torch.cat(gradients).norm()) if gradients else 0.0
