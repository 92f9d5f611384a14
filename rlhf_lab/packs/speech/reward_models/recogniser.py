"""Fits the recogniser of the intelligibility guard on training clips, and measures what it hears in held-out ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhf_lab.core.arrays import FloatArray
from rlhf_lab.core.types import Pair
from rlhf_lab.evaluations.reward_audit import prompt_ids
from rlhf_lab.packs.speech.reward_models.settings import RecogniserStage
from rlhf_lab.packs.speech.rewards.clips import renderer_of
from rlhf_lab.packs.speech.rewards.intelligibility import RECOGNISER_FILE, phone_errors, wanted_phones
from rlhf_lab.packs.speech.sound.recogniser import Recogniser
from rlhf_lab.packs.speech.sound.recogniser_fit import fit_recogniser
from rlhf_lab.statistics.association import overall
from rlhf_lab.statistics.inference import clustered_mean
from rlhf_lab.training.run import Result, Run

LEAST_SECONDS_PER_PHONE = 0.035
"""A phone is at least 30 ms for the recogniser; shorter clips cannot hold theirs and are left out of the fit."""


class RecogniserFitting:
    """Fits on the chosen clip of each pair, which has its faults too, but fewer of them."""

    def __init__(self, settings: RecogniserStage, run: Run):
        self.settings, self.run = settings, run
        self.corpus = run.data
        self.renderer = renderer_of(run, "algorithm=recogniser")

    def finish(self) -> Result:
        recogniser = self._fit()
        recogniser.save(self.run.folder / RECOGNISER_FILE)
        held_out = self.corpus.test[: self.settings.heldout_pairs]
        metrics = self._measure(recogniser, held_out)
        return Result(metrics=metrics, primary=["phone_error/chosen", "phone_error/rejected", "phone_error/other"])

    def _fit(self) -> Recogniser:
        pairs = self.corpus.train[: self.settings.max_clips or len(self.corpus.train)]
        wanted = [self._wanted(pair) for pair in pairs]
        clips = self.renderer.render([pair.chosen for pair in pairs])
        fits = [
            clip.seconds >= LEAST_SECONDS_PER_PHONE * len(phones) for clip, phones in zip(clips, wanted, strict=True)
        ]
        left_out = len(fits) - sum(fits)
        if left_out:
            self.run.note(f"{left_out} of {len(fits)} training clips are too short for what they should say: left out")
        self.fitted_clips = sum(fits)
        return fit_recogniser(
            [clip for clip, fit in zip(clips, fits, strict=True) if fit],
            [phones for phones, fit in zip(wanted, fits, strict=True) if fit],
        )

    def _wanted(self, pair: Pair) -> list[str]:
        return wanted_phones(self.corpus.task(pair.prompt).facts, pair.prompt)

    def _measure(self, recogniser: Recogniser, pairs: Sequence[Pair]) -> dict[str, Any]:
        """Phone errors of held-out clips of both sides, and of chosen clips against the text of another pair."""
        wanted = [self._wanted(pair) for pair in pairs]
        clusters = prompt_ids(pairs)

        def errors(replies: Sequence[str], phones: Sequence[Sequence[str]]) -> FloatArray:
            return phone_errors(recogniser, self.renderer, replies, phones)

        chosen_N = errors([pair.chosen for pair in pairs], wanted)
        rejected_N = errors([pair.rejected for pair in pairs], wanted)
        # half of the pairs further on, so that neighbours drawn alike do not matter
        half = len(pairs) // 2
        other_N = errors([pair.chosen for pair in pairs], wanted[half:] + wanted[:half])
        metrics: dict[str, Any] = {
            "phone_error/chosen": clustered_mean(chosen_N, clusters),
            "phone_error/rejected": clustered_mean(rejected_N, clusters),
            "phone_error/other": clustered_mean(other_N, clusters),
            "phone_error/p90": float(np.quantile(chosen_N, 0.9)),
            "clips": self.fitted_clips,
        }
        if self.corpus.oracle is not None:
            prompts = [pair.prompt for pair in pairs] * 2
            replies = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
            truth = self.corpus.oracle.measure(prompts, replies)
            if "phone_error" in truth:
                columns = {"heard": np.concatenate([chosen_N, rejected_N]), "truth": truth["phone_error"]}
                products = overall(columns, np.tile(clusters, 2), ranks=True)
                metrics["phone_error/truth_spearman"] = products.correlation("heard", "truth")
        return metrics


def build(settings: RecogniserStage, run: Run) -> RecogniserFitting:
    return RecogniserFitting(settings, run)
