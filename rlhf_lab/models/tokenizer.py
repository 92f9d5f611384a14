"""Trains a small tokenizer on the run's own text; nothing is downloaded and any text survives the round trip.

A closed vocabulary that fits becomes one token per word, with bytes for every word outside it. Open text becomes
byte-level BPE. Both are ordinary `tokenizer.json` files that Hugging Face loads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from rlhf_lab.core.types import Pair

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPECIAL = ["<|endoftext|>", "<|pad|>"]
WORDS = Regex(r"\n\nHuman:|\n\nAssistant:| ?[A-Za-z]+(?:'[a-z]+)?| ?\d+| ?[^\sA-Za-z\d]|\s+")
"""Speaker tags, words, numbers and punctuation marks, each with the space before it; runs of white space."""


def vocabulary_texts(rows: Iterable[Pair]) -> Iterator[str]:
    """The texts of rows that a tokenizer is trained on, as the encoder puts a space between prompt and response."""
    return (text for pair in rows for text in (pair.prompt, f" {pair.chosen}", f" {pair.rejected}"))


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """A tokenizer with at most `vocabulary` tokens; bytes, EOS and pad included."""
    # Imported here: what a tokenizer would know is asked before torch is imported, which this may do.
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=train_backend(texts, vocabulary), eos_token=SPECIAL[0], pad_token=SPECIAL[1]
    )


def train_backend(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """The same as the library `tokenizers` has it."""
    texts = list(texts)
    splitter = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(WORDS, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    counts = Counter(piece for text in texts for piece, _ in splitter.pre_tokenize_str(text))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    # Pieces of one character are in the alphabet already. Ties in count go by spelling, so ids depend on nothing else.
    words = sorted((piece for piece in counts if len(piece) > 1), key=lambda piece: (-counts[piece], piece))
    if len(SPECIAL) + len(alphabet) + len(words) <= vocabulary:
        token_ids = {token: i for i, token in enumerate([*SPECIAL, *alphabet, *words])}
        # BPE without merges that takes whole words from its vocabulary, and the bytes of any other word.
        backend = Tokenizer(models.BPE(vocab=token_ids, merges=[], ignore_merges=True))
        backend.pre_tokenizer = splitter
    else:
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = splitter
        trainer = trainers.BpeTrainer(
            vocab_size=vocabulary, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
        )
        backend.train_from_iterator(texts, trainer)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(SPECIAL)
    return backend
