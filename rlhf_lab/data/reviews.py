"""Built-in synthetic code reviews (`ReviewWorld`) as a corpus, `data=reviews`. See `environments/reviews/`."""

from __future__ import annotations

from dataclasses import asdict
from hashlib import sha256

from rlhf_lab.core.types import Corpus
from rlhf_lab.data.loading import fingerprint, sampled_splits
from rlhf_lab.data.mini_hh import statistics
from rlhf_lab.data.world_settings import Reviews
from rlhf_lab.environments.annotator import Annotator
from rlhf_lab.environments.reviews.world import VERSION, ReviewWorld


def build(settings: Reviews) -> Corpus:
    """Generate the corpus of a review world. `oracle` is the `ReviewWorld` itself."""
    world = ReviewWorld(seed=settings.split_seeds()[0], annotator=Annotator(**asdict(settings.annotator)))
    sizes = settings.train_pairs, settings.test_pairs
    pairs, report = sampled_splits(world.sample, settings, sizes, statistics)
    content = f"review world {VERSION} {settings!r} {fingerprint(**pairs)}"
    return Corpus(
        name="reviews",
        train=pairs["train"],
        test=pairs["test"],
        fingerprint=sha256(content.encode()).hexdigest(),
        oracle=world,
        report=report,
    )
