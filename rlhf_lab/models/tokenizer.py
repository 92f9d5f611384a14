"""Trains a small tokenizer on the run's own text; nothing is downloaded and any text survives the round trip.

A closed vocabulary that fits becomes one token per word, with bytes for every word outside it. Open text becomes
byte-level BPE. Both are ordinary `tokenizer.json` files that Hugging Face loads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<|endoftext|>", "<|pad|>"]
WORDS = Regex(r"\n\nHuman:|\n\nAssistant:| ?[A-Za-z]+(?:'[a-z]+)?| ?\d+| ?[^\sA-Za-z\d]|\s+")


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """A tokenizer with at most `vocabulary` tokens; bytes, EOS and pad included."""
    texts = list(texts)
    splitter = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(WORDS, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    counts = Counter(piece for text in texts for piece, _ in splitter.pre_tokenize_str(text))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = sorted((w for w in counts if len(w) > 1), key=lambda w: (-counts[w], w))
    if len(SPECIAL) + len(alphabet) + len(words) <= vocabulary:
        vocab = {token: i for i, token in enumerate([*SPECIAL, *alphabet, *words])}
        backend = Tokenizer(models.BPE(vocab=vocab, merges=[], ignore_merges=True))
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
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=SPECIAL[0], pad_token=SPECIAL[1])
