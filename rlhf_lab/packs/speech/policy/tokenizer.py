"""Tokenizer of a codec model: words of prompts, and code words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tokenizers import Tokenizer, models, pre_tokenizers

from rlhf_lab.models.tokenizer import SPECIAL
from rlhf_lab.packs.speech.sound.stream import all_words

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


UNKNOWN = "<|unknown|>"


def code_tokenizer(prompts: Iterable[str], sizes: Sequence[int]) -> PreTrainedTokenizerFast:
    """Create a tokenizer with one token per word of the prompts, followed by one token per code word.

    Responses are the streams of `packs/speech/sound/stream.py`. A word that is in no prompt becomes the unknown token.

    Args:
        sizes: number of codes of each codebook.
    """
    from transformers import PreTrainedTokenizerFast

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
