"""The embedded review world as a corpus (`data=reviews`). Needs no download; see `environments/reviews/`."""

from __future__ import annotations

from dataclasses import asdict
from hashlib import sha256

from rlhf_lab.core.types import Corpus
from rlhf_lab.data.loading import fingerprint
from rlhf_lab.data.mini_hh import statistics
from rlhf_lab.data.world_settings import Reviews
from rlhf_lab.environments.reviews.world import VERSION, ReviewWorld


def build(settings: Reviews) -> Corpus:
    """Generate the corpus of a review world. `oracle` is the `ReviewWorld` itself."""
    train_seed, test_seed = settings.split_seeds()
    world = ReviewWorld(seed=train_seed, **asdict(settings.annotator))
    train, train_report = world.sample(settings.train_pairs, "train", seed=train_seed)
    test, test_report = world.sample(settings.test_pairs, "test", seed=test_seed)
    for pairs, report in ((train, train_report), (test, test_report)):
        report.statistics.update(statistics(pairs))
    content = f"review world {VERSION} {settings!r} {fingerprint(train, test)}"
    return Corpus(
        name="reviews",
        train=train,
        test=test,
        fingerprint=sha256(content.encode()).hexdigest(),
        oracle=world,
        report={"train": train_report, "test": test_report},
    )
