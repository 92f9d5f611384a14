"""A new policy of a codec: a tokenizer of its code words, and random weights."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from transformers import PreTrainedTokenizerFast

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.models.build import llama_settings, new_model
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.models.settings import Scratch
from rlhf_lab.models.skeleton import placed
from rlhf_lab.packs.speech.policy.codec_lm import CodecConfig
from rlhf_lab.packs.speech.policy.tokenizer import code_tokenizer
from rlhf_lab.packs.speech.sound.stream import all_words
from rlhf_lab.training.run import Run


def new_policy(run: Run, settings: Scratch) -> tuple[nn.Module, Encoder]:
    """A new model of the codec that the data are encoded with."""
    renderer = run.own_corpus.renderer
    if renderer is None:
        raise ConfigError(
            "model.family=codec generates the codes of audio, and these data have none; use data of audio, such as "
            "data=speech"
        )
    prompts = (pair.prompt for pairs in (run.own_corpus.train, run.own_corpus.test) for pair in pairs)
    tokenizer = code_tokenizer(prompts, renderer.sizes)

    def build(device: str) -> nn.Module:
        seed = run.seed("init")
        return codec_policy(settings, tokenizer, seed, renderer.sizes, renderer.fingerprint).to(device)

    return placed(build, run.load_device), Encoder(tokenizer)


def codec_policy(
    settings: Scratch, tokenizer: PreTrainedTokenizerFast, seed: int, sizes: Sequence[int], codec: str = ""
) -> nn.Module:
    """A randomly initialised model of the size in `settings`.

    Args:
        sizes: codes of each codebook.
        codec: fingerprint of the codec.
    """
    config = CodecConfig(
        sizes=tuple(sizes),
        first_code=len(tokenizer) - len(all_words(sizes)),
        min_frames=settings.min_frames,
        codec=codec,
        **llama_settings(settings, tokenizer),
    )
    return new_model(config, seed)
