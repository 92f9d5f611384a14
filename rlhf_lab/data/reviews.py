"""Built-in synthetic code reviews (`ReviewWorld`) as a corpus, `data=reviews`. See `environments/reviews/`."""

from __future__ import annotations

from dataclasses import asdict

from rlhf_lab.core.types import Corpus
from rlhf_lab.data.loading import sampled_splits, world_corpus
from rlhf_lab.data.mini_hh import statistics
from rlhf_lab.data.world_settings import Reviews
from rlhf_lab.environments.annotator import Annotator
from rlhf_lab.environments.reviews.world import VERSION, ReviewWorld


def build(settings: Reviews) -> Corpus:
    """Generate the corpus of a review world. `oracle` is the `ReviewWorld` itself."""
    world = ReviewWorld(seed=settings.split_seeds()[0], annotator=Annotator(**asdict(settings.annotator)))
    pairs, report = sampled_splits(world.sample, settings, (settings.train_pairs, settings.test_pairs), statistics)
    return world_corpus("reviews", f"review world {VERSION}", settings, pairs, report, oracle=world)
