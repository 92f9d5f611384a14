"""Built-in synthetic dialogues (`DialogueWorld`) as a corpus, `data=mini_hh`. See `environments/dialogue/`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from hashlib import sha256

import numpy as np

from rlhf_lab.core.types import Corpus, Pair, Rubric
from rlhf_lab.data.loading import sampled_splits
from rlhf_lab.data.world_settings import MiniHH
from rlhf_lab.environments.annotator import Annotator
from rlhf_lab.environments.dialogue.criteria import CRITERIA
from rlhf_lab.environments.dialogue.world import VERSION, DialogueWorld
from rlhf_lab.environments.grader import HIGH, LOW, SimulatedGrader


def build(settings: MiniHH) -> Corpus:
    """Generate the corpus of a dialogue world. `oracle` is the `DialogueWorld` itself."""
    world = DialogueWorld(
        domains=settings.domains,
        topics=settings.topics,
        attributes=settings.attributes,
        seed=settings.world_seed(),
        grader=SimulatedGrader(**asdict(settings.grader)),
        annotator=Annotator(**asdict(settings.annotator)),
    )
    pairs, report = sampled_splits(world.sample, settings, (settings.train_pairs, settings.test_pairs), statistics)
    return Corpus(
        name="mini_hh",
        train=pairs["train"],
        test=pairs["test"],
        fingerprint=_corpus_fingerprint(settings, list(pairs.values())),
        oracle=world,
        rubric=Rubric(CRITERIA, LOW, HIGH),
        report=report,
    )


def statistics(pairs: Sequence[Pair]) -> dict[str, float]:
    """Return statistics of pairs that a simulated annotator labelled. In fractions of pairs a tie counts as half."""
    metas = [pair.meta for pair in pairs]
    p_chosen = np.array([meta["p_chosen"] for meta in metas])

    def wins(name: str) -> float:
        return float(np.mean([_win_or_tie(meta[f"{name}_chosen"], meta[f"{name}_rejected"]) for meta in metas]))

    def mean(name: str) -> float:
        return float(np.mean([(meta[f"{name}_chosen"] + meta[f"{name}_rejected"]) / 2 for meta in metas]))

    return {
        "longer wins": wins("words"),
        "annotator agrees with gold": wins("gold"),
        # the accuracy of a reward model that knows every preference probability
        "ideal accuracy": float(np.maximum(p_chosen, 1 - p_chosen).mean()),
        "verbose rate": mean("verbose"),
        "garble rate": mean("garble"),
        "gold mean": mean("gold"),
    }


def _win_or_tie(chosen: float, rejected: float) -> float:
    is_tie = abs(chosen - rejected) < 1e-9  # equal gold rewards may differ by rounding
    return 0.5 if is_tie else float(chosen > rejected)


def _corpus_fingerprint(settings: MiniHH, splits: Sequence[Sequence[Pair]]) -> str:
    digest = sha256(f"dialogue world {VERSION} {settings!r}".encode())
    for pairs in splits:
        for pair in pairs:
            for text in (pair.prompt, pair.chosen, pair.rejected):
                # separators, so that moving text from one field to the next changes the digest
                digest.update(text.encode())
                digest.update(b"\0")
        digest.update(b"\1")
    return digest.hexdigest()
