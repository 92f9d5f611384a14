"""Stage that fits the recogniser for `reward=intelligibility`, and measures its phone errors on held-out clips."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhf_lab.core.arrays import FloatArray
from rlhf_lab.core.types import Pair
from rlhf_lab.evaluations.reward_audit import prompt_ids
from rlhf_lab.packs.speech.reward_models.settings import RecogniserStage
from rlhf_lab.packs.speech.rewards.clips import renderer_of
from rlhf_lab.packs.speech.rewards.intelligibility import RECOGNISER_FILE, phone_errors, target_phones
from rlhf_lab.packs.speech.sound.recogniser import Recogniser, fit_recogniser
from rlhf_lab.statistics.association import pooled_products
from rlhf_lab.statistics.inference import clustered_mean
from rlhf_lab.training.run import Result, Run

LEAST_SECONDS_PER_PHONE = 0.035
"""Minimum duration of a clip per phone in seconds, for use in the fit. The recogniser needs 30 ms for each phone."""


class RecogniserFitting:
    """Stage that fits the recogniser on the chosen clip of each pair, because it has fewer defects."""

    def __init__(self, settings: RecogniserStage, run: Run):
        self.settings, self.run = settings, run
        self.corpus = run.data
        self.renderer = renderer_of(run, "algorithm=recogniser")

    def finish(self) -> Result:
        recogniser = self._fit()
        recogniser.save(self.run.directory / RECOGNISER_FILE)
        # measured on held-out clips, because the fit has seen the training clips
        heldout = self.corpus.test[: self.settings.heldout_pairs]
        metrics = self._measure(recogniser, heldout)
        return Result(metrics=metrics, primary=["phone_error/chosen", "phone_error/rejected", "phone_error/other"])

    def _fit(self) -> Recogniser:
        pairs = self.corpus.train[: self.settings.max_clips or len(self.corpus.train)]
        expected = [self._target_phones(pair) for pair in pairs]
        clips = self.renderer.render([pair.chosen for pair in pairs])
        # a clip that is too short would make the alignment fail
        fits = [
            clip.seconds >= LEAST_SECONDS_PER_PHONE * len(phones) for clip, phones in zip(clips, expected, strict=True)
        ]
        # reported, because a large number indicates wrong texts
        left_out = len(fits) - sum(fits)
        if left_out:
            self.run.note(f"{left_out} of {len(fits)} training clips are too short for their phones and are left out")
        self.fitted_clips = sum(fits)
        return fit_recogniser(
            [clip for clip, fit in zip(clips, fits, strict=True) if fit],
            [phones for phones, fit in zip(expected, fits, strict=True) if fit],
        )

    def _target_phones(self, pair: Pair) -> list[str]:
        return target_phones(self.corpus.task(pair.prompt).metadata, pair.prompt)

    def _measure(self, recogniser: Recogniser, pairs: Sequence[Pair]) -> dict[str, Any]:
        """Return phone errors of held-out chosen and rejected clips, and of chosen clips with another pair's text."""
        expected = [self._target_phones(pair) for pair in pairs]
        clusters = prompt_ids(pairs)

        def errors(responses: Sequence[str], phones: Sequence[Sequence[str]]) -> FloatArray:
            return phone_errors(recogniser, self.renderer, responses, phones)

        chosen_N = errors([pair.chosen for pair in pairs], expected)
        rejected_N = errors([pair.rejected for pair in pairs], expected)
        # shifted by half of the pairs, because neighbouring pairs may have the same or a similar prompt
        half = len(pairs) // 2
        other_N = errors([pair.chosen for pair in pairs], expected[half:] + expected[:half])
        metrics: dict[str, Any] = {
            "phone_error/chosen": clustered_mean(chosen_N, clusters),
            "phone_error/rejected": clustered_mean(rejected_N, clusters),
            "phone_error/other": clustered_mean(other_N, clusters),
            "phone_error/p90": float(np.quantile(chosen_N, 0.9)),
            "clips": self.fitted_clips,
        }
        if self.corpus.oracle is not None:
            prompts = [pair.prompt for pair in pairs] * 2
            responses = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
            truth = self.corpus.oracle.measure(prompts, responses)
            if "phone_error" in truth:
                # rank correlation, because both recognisers have different error rates
                columns = {"heard": np.concatenate([chosen_N, rejected_N]), "truth": truth["phone_error"]}
                products = pooled_products(columns, np.tile(clusters, 2), ranks=True)
                metrics["phone_error/truth_spearman"] = products.correlation("heard", "truth")
        return metrics


def build(settings: RecogniserStage, run: Run) -> RecogniserFitting:
    return RecogniserFitting(settings, run)
