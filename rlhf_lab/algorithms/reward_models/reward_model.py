"""Bradley-Terry reward model: backbone of the SFT policy, a bias-free scalar head on the last real token.

Its audit is part of the result: accuracy compared with the rule "the longer response wins", accuracy on pairs in which
the longer response wins or loses, the score change when generic filler is appended, agreement with gold if known, and
how often the attempt of an agent with the highest score is correct (`needs.attempts`).
Ensembles and the loss of a step are in `reward_members.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from rlhf_lab.algorithms.pair_selection.selection import selection_metrics, training_pairs
from rlhf_lab.algorithms.reward_models.reward_members import (
    Member,
    PairMicro,
    add_step_statistic,
    average_weights,
    build_members,
    build_scorers,
    confidence_rows,
    make_batch,
    pair_loss,
    plan_members,
    save_members,
)
from rlhf_lab.algorithms.reward_models.settings import RewardModel
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.types import FloatArray, Pair, TextReward
from rlhf_lab.data.generated import Attempts, read_attempts
from rlhf_lab.data.transcript import CONTEXTS, human_turns
from rlhf_lab.evaluations.attack.card import read_exploits
from rlhf_lab.evaluations.reward_audit import (
    HELD_OUT_PAIRS,
    audit_margins,
    filler_shift,
    margins,
    prompt_ids,
    with_gold,
    words,
)
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.models.pair_rows import PairRows, pair_length, pair_rows
from rlhf_lab.models.sharded import within
from rlhf_lab.rewards.learned.bt import BTReward
from rlhf_lab.rewards.learned.settings import BradleyTerry
from rlhf_lab.sampling.policy_responses import PolicyResponses
from rlhf_lab.statistics.association import pooled_products
from rlhf_lab.statistics.best_of_n import choice_probabilities
from rlhf_lab.statistics.estimates import win_or_tie
from rlhf_lab.statistics.inference import Estimate, clustered_mean, clustered_rate
from rlhf_lab.statistics.steps import auroc
from rlhf_lab.training.batching import micro_batches
from rlhf_lab.training.loop import Algorithm, LossOutput, StepBatch
from rlhf_lab.training.optim import TrainedPart
from rlhf_lab.training.run import Result, Run
from rlhf_lab.training.start import corpus_report, model_size


def audit_attempts(reward: TextReward, tasks: Sequence[Attempts]) -> dict[str, Any]:
    """Return agent accuracy, its bounds, and the ranking of attempts at the same task, clustered by task.

    Definitions: metrics.py. Comparisons of correct with wrong attempts are omitted if no task has both.
    """
    prompts = [task.prompt for task in tasks for _ in task.replies]
    replies = [response for task in tasks for response in task.replies]
    score_N = reward(prompts, replies).total_N
    correct_N = np.array([correct for task in tasks for correct in task.correct], dtype=np.float64)
    # Attempts of all tasks are scored together, so each task is a range of rows.
    ends = np.cumsum([0, *(len(task.replies) for task in tasks)])
    rows_of_tasks = [np.arange(start, end) for start, end in pairwise(ends)]
    task_numbers = np.arange(len(tasks))

    def over_tasks(value: Callable[[np.ndarray], float]) -> Any:
        return clustered_mean([value(rows) for rows in rows_of_tasks], task_numbers)

    # The highest brevity is the shortest attempt.
    brevity_N = -words(replies)
    metrics = {
        "agent_accuracy": over_tasks(lambda rows: chosen(score_N[rows], correct_N[rows])),
        "agent_accuracy/one": over_tasks(lambda rows: float(correct_N[rows].mean())),
        "agent_accuracy/any": over_tasks(lambda rows: float(correct_N[rows].max())),
        "agent_accuracy/shortest": over_tasks(lambda rows: chosen(brevity_N[rows], correct_N[rows])),
        "attempts/tasks": len(tasks),
    }
    wins, of_task = rank_within_tasks(score_N, correct_N, rows_of_tasks)
    if wins.size:
        metrics["accuracy/attempts"] = clustered_mean(wins, of_task)
        cluster_N = np.repeat(task_numbers, [len(task.replies) for task in tasks])
        metrics["auroc/attempts"] = auroc(score_N, correct_N > 0, cluster_N)
    return metrics


def chosen(score_N: FloatArray, correct_N: FloatArray) -> float:
    """Return the expected correctness of the attempt with the highest score; ties are broken uniformly at random."""
    return float(choice_probabilities(score_N, len(score_N)) @ correct_N)


def rank_within_tasks(
    score_N: FloatArray, correct_N: FloatArray, rows_of_tasks: Sequence[np.ndarray]
) -> tuple[FloatArray, np.ndarray]:
    """Return (outcomes, task indices) of all pairs of a correct and a wrong attempt at the same task.

    The outcome is 1 if the correct attempt scores higher, ½ if both scores are equal, else 0.
    """
    outcomes = [np.zeros(0)]  # of no task, because concatenate needs an array
    for rows in rows_of_tasks:
        right = score_N[rows][correct_N[rows] > 0]
        wrong = score_N[rows][correct_N[rows] == 0]
        outcomes.append(win_or_tie(right[:, None] - wrong).ravel())
    sizes = [wins.size for wins in outcomes[1:]]
    return np.concatenate(outcomes), np.repeat(np.arange(len(sizes)), sizes)


PRIMARY = (
    "accuracy",
    "longer_wins",
    "accuracy/on_policy",
    "accuracy/averaged",
    "gold_agreement",
    "agent_accuracy",
    "filler_shift",
    "disagreement",
)


class RewardModelling(Algorithm):
    """Bradley-Terry training on corpus pairs and, if an annotator exists, on labelled pairs of policy responses."""

    settings: RewardModel

    def __init__(self, settings: RewardModel, run: Run):
        self.settings, self.run = settings, run
        self.responses = PolicyResponses(run)
        self.encoder = self.responses.encoder
        self.max_length = settings.max_length
        exploits = read_exploits(Path(run.needs["exploits"])) if "exploits" in run.needs else []
        self.selected = settings
        if settings.max_pairs and exploits:
            corpus_pairs = settings.max_pairs - len(exploits)
            if corpus_pairs <= 0:
                raise ConfigError(
                    f"algorithm.max_pairs={settings.max_pairs} leaves no corpus pair beside the {len(exploits)} pairs "
                    "of needs.exploits; raise it, or attack with fewer evaluation.prompts"
                )
            self.selected = replace(settings, max_pairs=corpus_pairs)
        pairs = training_pairs(self.selected, run)
        self.corpus_pairs = len(pairs)
        self.exploit_pairs = len(exploits)
        pairs += exploits
        # The fraction refers to all pairs: f/(1 − f) sampled pairs per other pair.
        on_policy = round(len(pairs) * settings.on_policy_fraction / (1 - settings.on_policy_fraction))
        if on_policy and run.corpus.oracle is None:
            run.note(f"data={run.corpus.name} has no annotator: the reward model trains only on the corpus pairs")
        self.on_policy = on_policy if run.corpus.oracle else 0
        pairs += self.responses.labelled_pairs("train", self.on_policy)
        self.rows = [pair_rows(self.encoder, self._cut_context(pair), self.max_length) for pair in pairs]
        self.lengths = [pair_length(pair) for pair in self.rows]
        self.members = build_members(settings, run, self.encoder, len(self.rows))
        self.models: list[nn.Module] = [member.model for member in self.members]
        self.model = self.models[0]
        self.plans = plan_members(settings, run, self.members, self.lengths)
        self.steps = self.plans[0]
        self.total_steps = len(self.steps)

    def _cut_context(self, pair: Pair) -> Pair:
        """Return the pair with the part of its prompt that the model reads (`algorithm.context`)."""
        return replace(pair, prompt=CONTEXTS[self.settings.context](pair.prompt))

    def parts(self) -> dict[str, TrainedPart]:
        muon = self.settings.muon_lr if self.settings.optimizer == "muon" else None
        names = ["model", *(f"member_{k}" for k in range(1, len(self.models)))]
        named_models = zip(names, self.models, strict=True)
        return {name: TrainedPart(model, self.settings.lr, muon) for name, model in named_models}

    def collect(self, step: int) -> StepBatch:
        members = zip(self.members, self.plans, strict=True)
        passes = [self._make_micro_batches(member, plan[step], step) for member, plan in members]
        return StepBatch([*chain.from_iterable(passes)], units=len(self.steps[step]))

    def _make_micro_batches(self, member: Member, indices: Sequence[int], step: int) -> list[PairMicro]:
        """Return the forward passes of a member over its pairs of a step.

        The loss is the mean over the member's pairs, independent of the number of pairs of other members.
        """
        settings = self.settings
        # The loop divides the sum of a step by the first member's number of pairs.
        weight = len(self.steps[step]) / len(indices)
        micros = []
        for split in micro_batches(indices, self.lengths, settings.micro_batch_tokens, settings.rows_per_unit):
            pairs = [self.rows[i] for i in split]
            stated = [self._confidence_rows(i, step) for i in split] if settings.confidence_weight else None
            batch = make_batch(pairs, stated, self.run.device)
            micros.append(PairMicro(member, batch, len(pairs), weight))
        if settings.length_head and len(micros) > 1:
            with self.run.autocast():
                return add_step_statistic(micros)
        return micros

    def _confidence_rows(self, i: int, step: int) -> list[PairRows]:
        """Return both responses of a training pair with high and with low confidence stated at the end."""
        generator = torch.Generator().manual_seed(self.run.seed(f"reward_model/confidence/{i}", step))

        def draw(sentences: Sequence[str]) -> str:
            return sentences[int(torch.randint(len(sentences), (), generator=generator))]

        sure = draw(self.settings.sure)
        unsure = draw(self.settings.unsure)
        return confidence_rows(self.encoder, self.rows[i], sure, unsure, self.max_length)

    def loss(self, micro: PairMicro) -> LossOutput:
        """Return the loss of each pair. Models share no parameters, so their sum trains each one separately."""
        return within(micro.member.model, pair_loss, micro, self.settings)

    def program(self, micro: PairMicro) -> Hashable:
        return id(micro.member.model)

    def evaluate(self, step: int) -> None:
        # Scores are unscaled here, because accuracy depends only on the sign of a margin.
        reward = BTReward(build_scorers(self.settings, self.run, self.members, self.encoder), BradleyTerry())
        accuracy = float((margins(reward, self.run.corpus.test) > 0).mean())
        self.run.log(step + 1, heldout_accuracy=accuracy)

    def finish(self) -> Result:
        """Fix each member's score scale on policy responses to training prompts, then audit the members' mean."""
        # 1. Fix the scales. Averaged weights give other scores, so they need their own scale.
        prompts, responses, clusters = self.responses.for_scale()
        unscaled = build_scorers(self.settings, self.run, self.members, self.encoder)
        self.scorers = [scorer.fix_scale(prompts, responses) for scorer in unscaled]
        averaged_scorer = average_weights(self.settings, self.run, self.scorers)
        self.averaged_scorer = averaged_scorer.fix_scale(prompts, responses) if averaged_scorer else None
        # 2. Audit on held-out pairs, on attempts of an agent, and on policy responses.
        reward = BTReward(self.scorers, BradleyTerry())
        audit = self._audit_heldout(reward)
        if "attempts" in self.run.needs:
            audit |= audit_attempts(reward, read_attempts(Path(self.run.needs["attempts"])))
        scores = reward(prompts, responses)
        audit["filler_shift"] = filler_shift(reward, prompts, responses, scores.total_N)
        statistics = pooled_products({"score": scores.total_N, "words": words(responses)}, clusters)
        audit["length_correlation"] = statistics.correlation("score", "words")
        if "disagreement" in scores.parts:
            audit["disagreement"] = clustered_mean(scores.parts["disagreement"], clusters)
        metrics = {
            **audit,
            "pairs/corpus": self.corpus_pairs,
            "pairs/on_policy": len(self.rows) - self.corpus_pairs - self.exploit_pairs,
            **({"pairs/exploits": self.exploit_pairs} if self.exploit_pairs else {}),
            **selection_metrics(training_pairs(self.selected, self.run)),
            **model_size(self.model),
            **corpus_report(self.run.corpus, self.encoder),
        }
        return Result(metrics=metrics, primary=[name for name in PRIMARY if name in audit])

    def _audit_heldout(self, reward: TextReward) -> dict[str, Any]:
        """Audit the ranking of held-out corpus pairs, of the multi-turn ones among them, and of policy responses."""
        pairs = with_gold(self.run.corpus.test[:HELD_OUT_PAIRS], self.run.corpus.oracle)
        prompts = [pair.prompt for pair in pairs]
        chosen_N = reward(prompts, [pair.chosen for pair in pairs]).total_N
        rejected_N = reward(prompts, [pair.rejected for pair in pairs]).total_N
        margin_N = chosen_N - rejected_N
        audit = audit_margins(margin_N, pairs)
        audit["auroc"] = auroc_of_pairs(chosen_N, rejected_N, pairs)
        audit |= reading_metrics(self.encoder, pairs, self._cut_context, self.max_length)
        multi_turn = [i for i, pair in enumerate(pairs) if human_turns(pair.prompt) > 1]
        if multi_turn:
            multi_turn_audit = audit_margins(margin_N[multi_turn], [pairs[i] for i in multi_turn])
            audit["accuracy/multi_turn"] = multi_turn_audit["accuracy"]
        if self.averaged_scorer:
            averaged = BTReward([self.averaged_scorer], BradleyTerry())
            audit["accuracy/averaged"] = audit_margins(margins(averaged, pairs), pairs)["accuracy"]
        if self.settings.confidence_weight:
            audit |= self._confidence_gains(reward, pairs)
        on_policy = self.responses.labelled_pairs("test", HELD_OUT_PAIRS if self.on_policy else 0)
        if on_policy:
            wins = margins(reward, on_policy) > 0
            audit["accuracy/on_policy"] = clustered_rate(wins.astype(float), prompt_ids(on_policy))
        return audit

    def _confidence_gains(self, reward: TextReward, pairs: Sequence[Pair]) -> dict[str, Any]:
        """Return the mean score with the first `sure` sentence appended, minus that with the first `unsure` one."""
        prompts, clusters = [pair.prompt for pair in pairs], prompt_ids(pairs)
        gains = {}
        for side in ("chosen", "rejected"):
            sure_N, unsure_N = (
                reward(prompts, [f"{getattr(pair, side)} {sentence}" for pair in pairs]).total_N
                for sentence in (self.settings.sure[0], self.settings.unsure[0])
            )
            gains[f"confidence_gain/{side}"] = clustered_mean(sure_N - unsure_N, clusters)
        return gains

    def save_extra(self, directory: Path) -> None:
        """Save the score scale with the model, and the further members of an ensemble in sub-directories."""
        save_members(directory, self.scorers, self.averaged_scorer)


def auroc_of_pairs(chosen_N: FloatArray, rejected_N: FloatArray, pairs: Sequence[Pair]) -> Estimate:
    """Return the AUC of single response scores, chosen against rejected over all prompts, clustered by prompt."""
    score_N = np.concatenate([chosen_N, rejected_N])
    is_chosen_N = np.repeat([True, False], [len(chosen_N), len(rejected_N)])
    return auroc(score_N, is_chosen_N, np.tile(prompt_ids(pairs), 2))


def reading_metrics(
    encoder: Encoder, pairs: Sequence[Pair], cut_context: Callable[[Pair], Pair], max_length: int
) -> dict[str, Any]:
    """Return tokens, turns and truncation of both rows of pairs, clustered by prompt (definitions: metrics.py)."""
    read_pairs = [cut_context(pair) for pair in pairs]
    tokens = []  # of both rows of each pair before truncation to max_length
    for pair in read_pairs:
        prompt_tokens = len(encoder.prompt(pair.prompt))
        for text in (pair.chosen, pair.rejected):
            tokens.append(prompt_tokens + len(encoder.response(text)))
    tokens_N = np.array(tokens)
    row_clusters = np.repeat(prompt_ids(pairs), 2)
    return {
        "row_tokens": clustered_mean(np.minimum(tokens_N, max_length), row_clusters),
        "turns": clustered_mean([human_turns(pair.prompt) for pair in read_pairs], prompt_ids(pairs)),
        "truncated": clustered_rate((tokens_N > max_length).astype(float), row_clusters),
    }


def build(settings: RewardModel, run: Run) -> RewardModelling:
    return RewardModelling(settings, run)
