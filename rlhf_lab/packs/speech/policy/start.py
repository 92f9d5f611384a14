"""New codec policy: a tokenizer of code words, and random weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import PreTrainedTokenizerFast

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.models.build import llama_settings, new_model
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.models.settings import Scratch
from rlhf_lab.models.skeleton import placed
from rlhf_lab.models.tokenizer import SPECIAL
from rlhf_lab.packs.speech.policy.codec_lm import CodecConfig
from rlhf_lab.packs.speech.sound.stream import all_words
from rlhf_lab.training.run import Run

UNKNOWN = "<|unknown|>"


def code_tokenizer(prompts: Iterable[str], sizes: Sequence[int]) -> PreTrainedTokenizerFast:
    """Create a tokenizer with one token per word of the prompts, followed by one token per code word.

    Args:
        sizes: number of codes of each codebook.
    """
    # sorted, so that token ids do not depend on the order of prompts
    words = sorted({word for prompt in prompts for word in prompt.split()})
    vocabulary = [*SPECIAL, UNKNOWN, *words, *all_words(sizes)]
    # words are split at white space, so each code word is exactly one token
    backend = Tokenizer(models.WordLevel({token: i for i, token in enumerate(vocabulary)}, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(SPECIAL)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=SPECIAL[0], pad_token=SPECIAL[1], unk_token=UNKNOWN
    )


def new_policy(run: Run, settings: Scratch) -> tuple[nn.Module, Encoder]:
    """Create a model for the codec of the data. Raises ConfigError if the data are not audio."""
    renderer = run.own_corpus.renderer
    if renderer is None:
        raise ConfigError(
            "model.family=codec generates audio codes, but the data are not audio; use audio data, such as data=speech"
        )
    # test prompts as well: the vocabulary of the world is closed, and all words need a token
    prompts = (pair.prompt for pairs in (run.own_corpus.train, run.own_corpus.test) for pair in pairs)
    tokenizer = code_tokenizer(prompts, renderer.sizes)

    def build(device: str) -> nn.Module:
        seed = run.seed("init")
        return codec_policy(settings, tokenizer, seed, renderer.sizes, renderer.fingerprint).to(device)

    return placed(build, run.load_device), Encoder(tokenizer)


def codec_policy(
    settings: Scratch, tokenizer: PreTrainedTokenizerFast, seed: int, sizes: Sequence[int], codec: str = ""
) -> nn.Module:
    """Create a randomly initialised model with the size in `settings`.

    Args:
        sizes: number of codes of each codebook.
        codec: fingerprint of the codec.
    """
    config = CodecConfig(
        sizes=tuple(sizes),
        # `code_tokenizer` puts the code words at the end of the vocabulary
        first_code=len(tokenizer) - len(all_words(sizes)),
        min_frames=settings.min_frames,
        codec=codec,
        **llama_settings(settings, tokenizer),
    )
    return new_model(config, seed)
