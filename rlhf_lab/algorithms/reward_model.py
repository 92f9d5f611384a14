"""Bradley-Terry reward model: backbone of the SFT policy, a bias-free scalar head on the last real token.

Its audit is part of its result: accuracy next to "the longer reply wins", accuracy where the longer reply wins and
where it loses, the score change when generic filler is appended, and agreement with the true reward where there is one.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from rlhf_lab import registry
from rlhf_lab.algorithms.common import HELD_OUT_PAIRS, corpus_report, model_size, pair_batch, pair_length, pair_rows
from rlhf_lab.algorithms.settings import RewardModel
from rlhf_lab.analysis.statistics import clustered_mean, clustered_rate
from rlhf_lab.losses.reward_model import bradley_terry
from rlhf_lab.models.build import load_encoder, load_policy, load_reward_model, reward_scores
from rlhf_lab.models.lora import trainable
from rlhf_lab.rewards.bt import SCALE_FILE, BTReward, ScoreScale
from rlhf_lab.train.batching import epoch_steps, micro_batches
from rlhf_lab.train.loop import Algorithm, LossOutput, StepBatch
from rlhf_lab.train.run import Result, Run
from rlhf_lab.types import Pair

METRICS = {
    "accuracy": "share of pairs with r(chosen) > r(rejected)",
    "margin": "mean r(chosen) − r(rejected), raw score",
    "longer_wins": "accuracy of preferring the longer reply (characters) on the same pairs, ties half",
    "accuracy/longer_chosen": "accuracy on pairs whose chosen reply is the longer one",
    "accuracy/shorter_chosen": "accuracy on pairs whose chosen reply is the shorter one",
    "accuracy/on_policy": "accuracy on held-out pairs sampled from the policy and labelled by the annotator",
    "gold_agreement": "share of held-out pairs ordered as the true reward orders them, ties half",
    "filler_shift": "score change when two generic sentences are appended to the reply, sd of policy replies",
    "ideal_accuracy": "accuracy of knowing the annotator's probabilities: the ceiling",
}
FILLER = "There are many things to think about here. Of course, results can vary."
SCALE_PROMPTS = 256


class RewardModelling(Algorithm):
    """Trains on corpus pairs and, where an annotator exists, on labelled pairs of the policy's own replies."""

    def __init__(self, settings: RewardModel, run: Run):
        self.settings, self.run = settings, run
        source, model_settings = run.needs["policy"], run.config.model
        self.policy = load_policy(source, model_settings, device=run.device)
        self.encoder = load_encoder(source, model_settings)
        scored = load_reward_model(source, model_settings, device=run.device)
        self.model = trainable(scored, model_settings.lora, run.seed("lora"))
        self.sampler = registry.build("rollout", run.config.rollout, self.encoder)
        self.max_length = settings.max_length or 512
        pairs = list(run.corpus.train)
        wanted = round(len(pairs) * settings.on_policy_fraction / (1 - settings.on_policy_fraction))
        if wanted and run.corpus.oracle is None:
            run.note(f"data={run.corpus.name} has no annotator: the reward model trains on the corpus pairs alone")
        self.on_policy = wanted if run.corpus.oracle else 0
        pairs += self._label_on_policy("train", self.on_policy)
        self.rows = [pair_rows(self.encoder, pair, self.max_length) for pair in pairs]
        self.lengths = [pair_length(pair) for pair in self.rows]
        self.steps = epoch_steps(self.lengths, settings, run.seed("reward_model/order"))
        self.total_steps = len(self.steps)

    def _label_on_policy(self, split: str, count: int) -> list[Pair]:
        """`count` pairs of distinct policy replies to prompts of a split, labelled by the annotator."""
        oracle, prompts = self.run.corpus.oracle, self.run.corpus.prompts(split)
        if not count or oracle is None:
            return []
        generator = torch.Generator().manual_seed(self.run.seed(f"reward_model/prompts/{split}"))
        asked = [prompts[int(i)] for i in torch.randint(len(prompts), (count,), generator=generator)]
        first, second = self._replies(asked, 2, f"reward_model/{split}")
        wins, p_first = oracle.prefer(asked, first, second, seed=self.run.seed(f"reward_model/labels/{split}") % 2**31)
        sides = zip(asked, first, second, wins, p_first, strict=True)
        return [
            Pair(prompt, a, b, {"p_chosen": p}) if a_wins else Pair(prompt, b, a, {"p_chosen": 1 - p})
            for prompt, a, b, a_wins, p in sides
            if a != b
        ]

    def _replies(self, prompts: list[str], group: int, purpose: str) -> list[list[str]]:
        """`group` lists of one policy reply per prompt."""
        ids = [self.encoder.prompt(p, self.run.config.rollout.max_prompt_tokens) for p in prompts]
        samples = self.sampler.sample(self.policy, ids, group, self.run.seed(purpose))
        return [[self.encoder.text(replies[g]) for replies in samples.replies_BG] for g in range(group)]

    def collect(self, step: int) -> StepBatch:
        parts = micro_batches(self.steps[step], self.lengths, (self.settings.micro_batch_tokens + 1) // 2)
        batches = [pair_batch([self.rows[i] for i in part], self.run.device) for part in parts]
        return StepBatch(batches, units=len(self.steps[step]))

    def loss(self, micro: Any) -> LossOutput:
        chosen_B, rejected_B = reward_scores(self.model, micro).chunk(2)
        loss_B = bradley_terry(chosen_B, rejected_B, margin=self.settings.margin, centering=self.settings.centering)
        margin_B = (chosen_B - rejected_B).detach()
        return LossOutput(loss_B, {"accuracy": (margin_B > 0).float(), "margin": margin_B})

    def evaluate(self, step: int) -> None:
        scorer = self._scorer(ScoreScale(max_length=self.max_length))
        accuracy = float((self._margins(scorer, list(self.run.corpus.test)) > 0).mean())
        self.run.log(step + 1, heldout_accuracy=accuracy)

    def finish(self) -> Result:
        """Fix the score scale on the policy's replies to training prompts, then audit on held-out pairs."""
        scorer = self._scorer(ScoreScale(max_length=self.max_length))
        prompts = self.run.corpus.prompts("train")[:SCALE_PROMPTS]
        replies = [text for column in self._replies(prompts, 2, "reward_model/scale") for text in column]
        raw = scorer.raw(prompts * 2, replies)
        scorer.scale = ScoreScale(float(raw.mean()), float(max(raw.std(), 1e-6)), len(raw), self.max_length)
        self.scale = scorer.scale
        audit = self._audit(scorer, list(self.run.corpus.test)[:HELD_OUT_PAIRS])
        on_policy = self._label_on_policy("test", HELD_OUT_PAIRS if self.on_policy else 0)
        if on_policy:
            wins = self._margins(scorer, on_policy) > 0
            audit["accuracy/on_policy"] = clustered_rate(wins.astype(float), _prompt_ids(on_policy))
        filled = [f"{reply} {FILLER}" for reply in replies]
        shift = scorer(prompts * 2, filled).total_N - scorer(prompts * 2, replies).total_N
        audit["filler_shift"] = clustered_mean(shift, np.tile(np.arange(len(prompts)), 2))
        counts = {
            "pairs/corpus": len(self.run.corpus.train),
            "pairs/on_policy": len(self.rows) - len(self.run.corpus.train),
        }
        primary = ["accuracy", "longer_wins", "accuracy/on_policy", "gold_agreement", "filler_shift"]
        known = {**counts, **model_size(self.model), **corpus_report(self.run.corpus, self.encoder)}
        return Result(metrics={**audit, **known}, primary=primary)

    def save_extra(self, folder: Any) -> None:
        """The score scale travels with the model."""
        (folder / SCALE_FILE).write_text(json.dumps(asdict(self.scale), indent=1))

    def _scorer(self, scale: ScoreScale) -> BTReward:
        return BTReward(self.model, self.encoder, scale, self.run.device, 16384)

    def _margins(self, scorer: BTReward, pairs: list[Pair]) -> np.ndarray:
        prompts = [p.prompt for p in pairs]
        return scorer.raw(prompts, [p.chosen for p in pairs]) - scorer.raw(prompts, [p.rejected for p in pairs])

    def _audit(self, scorer: BTReward, pairs: list[Pair]) -> dict[str, Any]:
        margins, prompts = self._margins(scorer, pairs), _prompt_ids(pairs)
        longer = np.array([np.sign(len(p.chosen) - len(p.rejected)) for p in pairs])
        wins = (margins > 0).astype(float)
        found: dict[str, Any] = {
            "accuracy": clustered_rate(wins, prompts),
            "longer_wins": clustered_mean(longer / 2 + 0.5, prompts),
        }
        for name, mask in (("longer_chosen", longer > 0), ("shorter_chosen", longer < 0)):
            if mask.any():
                found[f"accuracy/{name}"] = clustered_rate(wins[mask], prompts[mask])
        if all("gold_chosen" in p.meta for p in pairs):
            gold = np.array([p.meta["gold_chosen"] - p.meta["gold_rejected"] for p in pairs])
            found["gold_agreement"] = clustered_mean(np.sign(margins) * np.sign(gold) / 2 + 0.5, prompts)
        if all("p_chosen" in p.meta for p in pairs):
            p = np.array([pair.meta["p_chosen"] for pair in pairs])
            found["ideal_accuracy"] = clustered_mean(np.maximum(p, 1 - p), prompts)
        return found


def _prompt_ids(pairs: list[Pair]) -> np.ndarray:
    """Cluster labels: the same prompt, the same number."""
    return np.unique([pair.prompt for pair in pairs], return_inverse=True)[1]


def build(settings: RewardModel, run: Run) -> RewardModelling:
    return RewardModelling(settings, run)
