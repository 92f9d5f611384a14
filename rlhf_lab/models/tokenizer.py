"""Training of a small tokenizer on the run's own text, without downloads. Any text survives the round trip.

A closed vocabulary that fits gets one token per word, and bytes for every other word. Open text gets byte-level BPE.
Both are ordinary `tokenizer.json` files that Hugging Face can load.
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
"""Speaker tags, words, numbers and punctuation marks, each with its preceding space; runs of white space."""


def vocabulary_texts(rows: Iterable[Pair]) -> Iterator[str]:
    """Return the texts of rows for training a tokenizer, with the encoder's space between prompt and response."""
    for pair in rows:
        yield pair.prompt
        # the space is part of a response's first token, so words must be counted with it
        yield from (f" {pair.chosen}", f" {pair.rejected}")


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer with at most `vocabulary` tokens, including bytes, EOS and pad."""
    # Imported late: `train_backend` is also used before torch is imported, and this import may import torch.
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=train_backend(texts, vocabulary), eos_token=SPECIAL[0], pad_token=SPECIAL[1]
    )


def train_backend(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Return the same tokenizer as an object of the library `tokenizers`."""
    texts = list(texts)
    # first into words, then each word into bytes, so that no text is outside the vocabulary
    splitter = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(WORDS, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(piece for piece, _ in splitter.pre_tokenize_str(text))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    # Single characters are already in the alphabet. Ties in count are sorted by spelling, so that ids are reproducible.
    words = [piece for piece in counts if len(piece) > 1]
    words.sort(key=lambda piece: (-counts[piece], piece))
    if len(SPECIAL) + len(alphabet) + len(words) <= vocabulary:
        token_ids = {token: i for i, token in enumerate([*SPECIAL, *alphabet, *words])}
        # BPE without merges, which takes full words from its vocabulary and splits all others into bytes.
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
