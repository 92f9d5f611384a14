"""Built-in synthetic word problems (`ArithmeticWorld`) as a corpus, `data=arithmetic`. See `environments/arithmetic/`.

`chosen` is a demonstration, which may contain a mistake; `rejected` always contains one. No annotator compared the two:
both responses of a pair may be wrong, and there is no `p_chosen`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlhf_lab.core.types import Corpus, Pair
from rlhf_lab.data.loading import sampled_splits, world_corpus
from rlhf_lab.data.world_settings import ArithmeticData
from rlhf_lab.environments.arithmetic.world import VERSION, ArithmeticWorld


def build(settings: ArithmeticData) -> Corpus:
    """Generate the corpus of an arithmetic world. `oracle` is the `ArithmeticWorld` itself."""
    world = ArithmeticWorld(
        min_steps=settings.min_steps,
        max_steps=settings.max_steps,
        largest=settings.largest,
        slip=settings.slip,
        temperature=settings.temperature,
        seed=settings.split_seeds()[0],
    )
    sizes = settings.train_problems, settings.test_problems
    pairs, report = sampled_splits(world.sample, settings, sizes, statistics)
    # both splits: rewards read the answers of train prompts, metrics those of test prompts
    answers = {pair.prompt: pair.meta["answer"] for split in pairs.values() for pair in split}
    described = f"arithmetic world {VERSION}"
    return world_corpus("arithmetic", described, settings, pairs, report, oracle=world, answers=answers)


def statistics(pairs: Sequence[Pair]) -> dict[str, float]:
    """Return statistics of the pairs of a split: fractions in 0…1, and the mean number of steps."""
    metas = [pair.meta for pair in pairs]
    values: dict[str, list[float]] = {
        "share of chosen with the right answer": [meta["correct_chosen"] for meta in metas],
        "share of right steps, chosen": [right for meta in metas for right in meta["steps_chosen"]],
        "share of right steps, rejected": [right for meta in metas for right in meta["steps_rejected"]],
        "steps per solution": [len(meta["steps_chosen"]) for meta in metas],
    }
    return {name: float(np.mean(each)) for name, each in values.items()}
