"""Stage that trains a reward model on the waveform: a Wav2Vec2 trunk with a scalar head, on pairs of clips."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.media import Audio
from rlhf_lab.packs.speech.reward_models.clip_pairs import model_metrics, read_splits
from rlhf_lab.packs.speech.reward_models.pair_training import train_on_pairs
from rlhf_lab.packs.speech.reward_models.settings import Wav2Vec2Reward
from rlhf_lab.packs.speech.rewards.clips import renderer_of
from rlhf_lab.packs.speech.rewards.settings import SILENT
from rlhf_lab.packs.speech.rewards.wav2vec2 import (
    SpeechModel,
    SpeechScorer,
    equal_lengths,
    load_trunk,
    receptive_samples,
    stacked,
)
from rlhf_lab.training.run import Result, Run

PRIMARY = ("accuracy", "spearman", "accuracy/truth", "parameters", "parameters/trained")


class SpeechEncoderTraining:
    """Stage that trains the head, and the trunk unless it is frozen."""

    def __init__(self, settings: Wav2Vec2Reward, run: Run):
        self.settings, self.run = settings, run
        self.renderer = renderer_of(run, "algorithm=wav2vec2_reward")
        self.train, self.heldout = read_splits(settings, run, self.renderer)
        trunk = load_trunk(settings.trunk, run.seed("wav2vec2_reward/init"))
        self.scorer = SpeechScorer(trunk, frozen=settings.frozen).to(run.device)

    def finish(self) -> Result:
        """Train the model, set the scale of its score on training clips, measure it, and write it."""
        settings = self.settings
        pairs = self._usable()
        clips = [self.renderer.render([pair.chosen, pair.rejected]) for pair in pairs]
        # the head starts at zero, so it needs a larger learning rate than the pretrained trunk
        groups: list[dict[str, Any]] = [{"params": list(self.scorer.head.parameters()), "lr": settings.head_lr}]
        if not settings.frozen:
            groups.append({"params": list(self.scorer.trunk.parameters()), "lr": settings.lr})

        def scores(indices: Sequence[int]) -> tuple[Tensor, Tensor]:
            return pair_scores(self.scorer, [clips[i] for i in indices], self.run.device, settings.batch_seconds)

        def log(step: int, loss: float, accuracy: float) -> None:
            self.run.log(step, loss=loss, accuracy=accuracy)

        seed = self.run.seed("wav2vec2_reward/order")
        train_on_pairs(scores, groups, settings, len(pairs), seed=seed, log=log, title="wav2vec2_reward")
        model = SpeechModel(self.scorer, self.run.device, batch_seconds=settings.batch_seconds)
        # standardised on training clips, so that rewards of different models are comparable
        model = model.with_scale(self.renderer.render(self.train.responses))
        model.save(self.run.directory)
        parameters = list(self.scorer.parameters())
        metrics = {
            **model_metrics(model(self.renderer.render(self.heldout.responses), SILENT), self.train, self.heldout),
            "parameters": sum(parameter.numel() for parameter in parameters),
            "parameters/trained": sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
            "pairs": len(pairs),  # without those that `_usable` left out
        }
        return Result(metrics=metrics, primary=[name for name in PRIMARY if name in metrics])

    def _usable(self) -> list[Any]:
        """Return the training pairs whose clips are both long enough for the trunk. Raises ConfigError if none is."""
        shortest = receptive_samples(self.scorer.trunk)
        pairs = []
        for pair in self.train.pairs:
            clips = self.renderer.render([pair.chosen, pair.rejected])
            if all(len(clip.samples_N) >= shortest for clip in clips):
                pairs.append(pair)
        if not pairs:
            raise ConfigError(
                f"algorithm=wav2vec2_reward: none of {len(self.train.pairs)} training pairs has two clips with the "
                f"{shortest} samples that the trunk needs; use data with longer clips"
            )
        if len(pairs) < len(self.train.pairs):
            left_out = len(self.train.pairs) - len(pairs)
            self.run.note(f"{left_out} training pairs have a clip too short for the trunk and are left out")
        return pairs


def pair_scores(
    scorer: SpeechScorer, pairs: Sequence[Sequence[Audio]], device: str, batch_seconds: float
) -> tuple[Tensor, Tensor]:
    """Return differentiable scores of the first and the second clip of each pair, (B,) each. No clip is padded."""
    clips = [clip for pair in pairs for clip in pair]
    # clips are scored in groups of equal length; `rows_in_order` restores their original order afterwards
    rows_in_order: list[int] = []
    scores = []
    for rows in equal_lengths(clips, batch_seconds):
        scores.append(scorer(stacked(clips, rows, device)))
        rows_in_order += rows
    scores_N = torch.cat(scores)[torch.argsort(torch.tensor(rows_in_order, device=scores[0].device))]
    chosen_B, rejected_B = scores_N.view(-1, 2).unbind(1)
    return chosen_B, rejected_B


def build(settings: Wav2Vec2Reward, run: Run) -> SpeechEncoderTraining:
    return SpeechEncoderTraining(settings, run)
