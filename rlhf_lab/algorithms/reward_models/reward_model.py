"""Bradley-Terry reward model: backbone of the SFT policy, a bias-free scalar head on the last real token.

Its audit is part of its result: accuracy next to "the longer reply wins", accuracy where the longer reply wins and
where it loses, the score change when generic filler is appended, and agreement with the true reward where there is one.
Ensembles are in `reward_members.py`, what a step costs in `reward_pairs.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from rlhf_lab.algorithms.pair_selection.selection import selection_metrics, training_pairs
from rlhf_lab.algorithms.reward_models.reward_members import average, build_members, plan_members, save_members, scorers
from rlhf_lab.algorithms.reward_models.reward_pairs import PairMicro, confidence_rows, make_batch, pair_loss, whole_step
from rlhf_lab.algorithms.reward_models.settings import RewardModel
from rlhf_lab.core.types import Pair, Reward
from rlhf_lab.data.transcript import CONTEXTS, human_turns
from rlhf_lab.evaluations.reward_audit import HELD_OUT_PAIRS, audit_margins, filler_shift, margins, prompt_ids, words
from rlhf_lab.models.divided import within
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.models.pair_rows import pair_length, pair_rows
from rlhf_lab.rewards.learned.bt import BTReward
from rlhf_lab.rewards.learned.settings import BradleyTerry
from rlhf_lab.sampling.policy_replies import PolicyReplies
from rlhf_lab.statistics.association import overall
from rlhf_lab.statistics.inference import clustered_mean, clustered_rate
from rlhf_lab.training.batching import micro_batches
from rlhf_lab.training.loop import Algorithm, LossOutput, StepBatch
from rlhf_lab.training.optim import Part
from rlhf_lab.training.run import Result, Run
from rlhf_lab.training.start import corpus_report, model_size

PRIMARY = (
    "accuracy",
    "longer_wins",
    "accuracy/on_policy",
    "accuracy/averaged",
    "gold_agreement",
    "filler_shift",
    "disagreement",
)


class RewardModelling(Algorithm):
    """Trains on corpus pairs and, where an annotator exists, on labelled pairs of the policy's own replies."""

    def __init__(self, settings: RewardModel, run: Run):
        self.settings, self.run = settings, run
        self.replies = PolicyReplies(run)
        self.encoder = self.replies.encoder
        self.max_length = settings.max_length
        pairs = training_pairs(settings, run)
        self.corpus_pairs = len(pairs)
        wanted = round(len(pairs) * settings.on_policy_fraction / (1 - settings.on_policy_fraction))
        if wanted and run.corpus.oracle is None:
            run.note(f"data={run.corpus.name} has no annotator: the reward model trains on the corpus pairs alone")
        self.on_policy = wanted if run.corpus.oracle else 0
        pairs += self._label_on_policy("train", self.on_policy)
        self.rows = [pair_rows(self.encoder, self._read(pair), self.max_length) for pair in pairs]
        self.lengths = [pair_length(pair) for pair in self.rows]
        self.members = build_members(settings, run, self.encoder, len(self.rows))
        self.models: list[nn.Module] = list({id(member.model): member.model for member in self.members}.values())
        self.model = self.models[0]
        self.plans = plan_members(settings, run, self.members, self.lengths)
        self.steps = self.plans[0]
        self.total_steps = len(self.steps)

    def _read(self, pair: Pair) -> Pair:
        """The pair with what the model reads of its prompt."""
        return replace(pair, prompt=CONTEXTS[self.settings.context](pair.prompt))

    def parts(self) -> dict[str, Part]:
        muon = self.settings.muon_lr if self.settings.optimizer == "muon" else None
        names = ["model", *(f"member_{k}" for k in range(1, len(self.models)))]
        return {name: Part(m, self.settings.lr, muon) for name, m in zip(names, self.models, strict=True)}

    def _label_on_policy(self, split: str, count: int) -> list[Pair]:
        """`count` pairs of distinct policy replies to prompts of a split, labelled by the annotator."""
        oracle = self.run.corpus.oracle
        if not count or oracle is None:
            return []
        asked, first, second = self.replies.twice(split, count)
        wins, p_first = oracle.prefer(asked, first, second, seed=self.run.seed(f"reward_model/labels/{split}") % 2**31)
        sides = zip(asked, first, second, wins, p_first, strict=True)
        return [
            Pair(prompt, a, b, {"p_chosen": p}) if a_wins else Pair(prompt, b, a, {"p_chosen": 1 - p})
            for prompt, a, b, a_wins, p in sides
            if a != b
        ]

    def collect(self, step: int) -> StepBatch:
        micro = [found for m in range(len(self.models)) for found in self._passes(m, self.plans[m][step], step)]
        return StepBatch(micro, units=len(self.steps[step]))

    def _passes(self, m: int, chosen: Sequence[int], step: int) -> list[PairMicro]:
        """The forward passes of one model for a step. Its loss is the mean over its pairs and members, whatever the
        number of pairs that the other models have in this step."""
        settings, members = self.settings, [x for x in self.members if x.model is self.models[m]]
        rows_per_pair = 6 if settings.confidence_weight else 2
        heads = len(members) * settings.member_fraction if settings.shared_trunk else 1.0
        mean = len(self.steps[step]) / len(chosen) / heads
        found = []
        for part in micro_batches(chosen, self.lengths, -(-settings.micro_batch_tokens // rows_per_pair)):
            pairs = [self.rows[i] for i in part]
            stated = [self._stated(i, step) for i in part] if settings.confidence_weight else None
            weight_KB = torch.stack([member.in_share_N[part] for member in members]) * mean
            batch = make_batch(pairs, stated, self.run.device)
            found.append(PairMicro(self.models[m], members, batch, weight_KB.to(self.run.device)))
        if settings.length_head and len(found) > 1:
            with self.run.autocast():
                return whole_step(found)
        return found

    def _stated(self, i: int, step: int) -> list[Any]:
        """Both replies of a training pair with a high and a low confidence at the end."""
        generator = torch.Generator().manual_seed(self.run.seed(f"reward_model/confidence/{i}", step))
        sure, unsure = (
            texts[int(torch.randint(len(texts), (), generator=generator))]
            for texts in (self.settings.sure, self.settings.unsure)
        )
        return confidence_rows(self.encoder, self.rows[i], sure, unsure, self.max_length)

    def loss(self, micro: PairMicro) -> LossOutput:
        """Loss of each pair; models share no parameter, so the sum over them trains each by itself."""
        return within(micro.model, pair_loss, micro, self.settings)

    def program(self, micro: PairMicro) -> Hashable:
        return id(micro.model)

    def evaluate(self, step: int) -> None:
        reward = BTReward(scorers(self.settings, self.run, self.members, self.encoder), BradleyTerry())
        accuracy = float((margins(reward, self.run.corpus.test) > 0).mean())
        self.run.log(step + 1, heldout_accuracy=accuracy)

    def finish(self) -> Result:
        """Fix each member's score scale on the policy's replies to training prompts, then audit their mean."""
        asked, replies, clusters = self.replies.for_scale()
        found = scorers(self.settings, self.run, self.members, self.encoder)
        self.scorers = [scorer.fix_scale(asked, replies) for scorer in found]
        mean = average(self.settings, self.run, self.scorers)
        self.mean = mean.fix_scale(asked, replies) if mean else None
        reward = BTReward(self.scorers, BradleyTerry())
        audit = self._audit_held_out(reward)
        scored = reward(asked, replies)
        audit["filler_shift"] = filler_shift(reward, asked, replies, scored.total_N)
        audit["length_correlation"] = overall({"score": scored.total_N, "words": words(replies)}, clusters).correlation(
            "score", "words"
        )
        if "disagreement" in scored.parts:
            audit["disagreement"] = clustered_mean(scored.parts["disagreement"], clusters)
        counts = {
            "pairs/corpus": self.corpus_pairs,
            "pairs/on_policy": len(self.rows) - self.corpus_pairs,
        }
        chosen = selection_metrics(self.settings, self.run)
        known = {**counts, **chosen, **model_size(self.model), **corpus_report(self.run.corpus, self.encoder)}
        return Result(metrics={**audit, **known}, primary=[name for name in PRIMARY if name in audit])

    def _audit_held_out(self, reward: Reward) -> dict[str, Any]:
        """What the reward says of held-out pairs: the corpus's, those of several turns among them, the policy's own."""
        pairs = list(self.run.corpus.test[:HELD_OUT_PAIRS])
        margin_N = margins(reward, pairs)
        audit = audit_margins(margin_N, pairs) | reading_metrics(self.encoder, pairs, self._read, self.max_length)
        several = [i for i, pair in enumerate(pairs) if human_turns(pair.prompt) > 1]
        if several:
            chosen = [pairs[i] for i in several]
            audit["accuracy/multi_turn"] = audit_margins(margin_N[several], chosen)["accuracy"]
        if self.mean:
            averaged = BTReward([self.mean], BradleyTerry())
            audit["accuracy/averaged"] = audit_margins(margins(averaged, pairs), pairs)["accuracy"]
        if self.settings.confidence_weight:
            audit |= self._confidence_gains(reward, pairs)
        on_policy = self._label_on_policy("test", HELD_OUT_PAIRS if self.on_policy else 0)
        if on_policy:
            wins = margins(reward, on_policy) > 0
            audit["accuracy/on_policy"] = clustered_rate(wins.astype(float), prompt_ids(on_policy))
        return audit

    def _confidence_gains(self, reward: Reward, pairs: Sequence[Pair]) -> dict[str, Any]:
        """What the first `sure` sentence is worth over the first `unsure` one, behind either reply."""
        asked, clusters = [pair.prompt for pair in pairs], prompt_ids(pairs)
        found = {}
        for side in ("chosen", "rejected"):
            sure, unsure = (
                reward(asked, [f"{getattr(pair, side)} {texts[0]}" for pair in pairs]).total_N
                for texts in (self.settings.sure, self.settings.unsure)
            )
            found[f"confidence_gain/{side}"] = clustered_mean(sure - unsure, clusters)
        return found

    def save_extra(self, folder: Path) -> None:
        """The score scale travels with the model, and the further members of an ensemble lie beside it."""
        save_members(folder, self.scorers, self.mean)


def reading_metrics(
    encoder: Encoder, pairs: Sequence[Pair], read: Callable[[Pair], Pair], max_length: int
) -> dict[str, Any]:
    """Tokens, turns and truncation of both rows of pairs, clustered by prompt; see metrics.py."""
    seen = [read(pair) for pair in pairs]
    sides = [(len(encoder.prompt(p.prompt)), p.chosen, p.rejected) for p in seen]
    full_N = np.array([head + len(encoder.response(text)) for head, *texts in sides for text in texts])
    rows = np.repeat(prompt_ids(pairs), 2)
    return {
        "row_tokens": clustered_mean(np.minimum(full_N, max_length), rows),
        "turns": clustered_mean([human_turns(p.prompt) for p in seen], prompt_ids(pairs)),
        "truncated": clustered_rate((full_N > max_length).astype(float), rows),
    }


def build(settings: RewardModel, run: Run) -> RewardModelling:
    return RewardModelling(settings, run)
