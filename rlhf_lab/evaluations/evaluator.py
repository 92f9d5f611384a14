"""Evaluation of policies on the same held-out prompts: gold reward, learned reward, KL, length and other metrics.

Every estimate has its n and an interval clustered by prompt. policy_log.py describes the log of rows and summaries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from rlhf_lab.core import measures
from rlhf_lab.core.capabilities import Capability
from rlhf_lab.core.episodes import Episode
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import finite_values
from rlhf_lab.core.metrics import metric as metric_of
from rlhf_lab.core.progress import labelled
from rlhf_lab.core.types import Reward
from rlhf_lab.evaluations.clips import write_clips
from rlhf_lab.evaluations.policy_log import PolicyLog
from rlhf_lab.evaluations.repeated_samples import read_answers, repeated_samples, rounded
from rlhf_lab.evaluations.verbosity import is_verbose
from rlhf_lab.losses.preference import PairLogps, idealised_ranking
from rlhf_lab.models.build import load_encoder, load_policy
from rlhf_lab.models.encoding import Encoder, TokenBatch
from rlhf_lab.models.logprobs import exact_kl
from rlhf_lab.models.pair_rows import pair_logps, pair_rows
from rlhf_lab.models.passes import over_rows
from rlhf_lab.monitoring.truth import GoldTruth, heldout_truth
from rlhf_lab.rewards.graph import GraphReward, build_reward
from rlhf_lab.rewards.verifiers.settings import Math
from rlhf_lab.sampling.episodes import EpisodeCollector
from rlhf_lab.sampling.experience import Experience
from rlhf_lab.statistics.estimates import Estimate, win_or_tie
from rlhf_lab.statistics.inference import clustered_mean, clustered_rate, ratio_of_means
from rlhf_lab.statistics.rows import column
from rlhf_lab.training.run import Run
from rlhf_lab.training.settings import SOUP

REFERENCE_NAME = "SFT"
SOUP_NAME = "SFT soup"
"""Name of a reference whose weights are a mean (`needs.soup`)."""
CERTIFIED_NAME = "certified policy"
"""Name of the policy that training in rounds restored and ended with, after an alarm of the audit."""

SAMPLE_KEYS = ("gold", "proxy", "kl", "tokens", "verbose", "garble", "correct", "ended")
"""Columns of evaluation.jsonl whose mean or rate is a metric of the policy."""

KL_BATCH_TOKENS = 16384
"""Maximum number of padded tokens per forward pass for the exact KL."""


class EpisodeLog(PolicyLog):
    """Rows and summaries of the episodes of policies. The first policy is the reference of the others.

    Args:
        reward: reward that scores the responses as `proxy`; None omits it.
    """

    def __init__(self, run: Run, reward: Reward | None):
        super().__init__(run)
        self.reward = reward
        self.settings = run.config.evaluation
        self.has_environment = run.corpus.environment is not None
        self.is_spoken = run.corpus.renderer is not None
        is_world = bool(run.config.data.world) or self.has_environment
        self.is_peoples_text = not is_world and Capability.VERBOSITY in run.config.data.capabilities
        # the first logged policy is the reference, also after a resume
        self._reference_rows = self.rows(self.policies[0]["name"]) if self.policies else []

    def _episode_rows(
        self, name: str, collected: Sequence[Sequence[Episode]], kl_N: Sequence[float | None]
    ) -> list[dict[str, Any]]:
        """Return one row per episode, prompt-major: its text, its ground truth, its reward and its KL.

        Args:
            kl_N: KL of each episode from the reference in nats; None if it is not known.
        """
        group_size = len(collected[0])
        episodes = list(chain.from_iterable(collected))
        # columns that are not known are null, so that all rows have the same columns
        unknown = [None] * len(episodes)
        truth = self.run.corpus.measure(episodes)
        scores = self.reward(episodes) if self.reward else None
        parts = {} if scores is None else {f"reward/{node}": values for node, values in scores.parts.items()}
        columns: dict[str, Sequence[float | None]] = {key: values.tolist() for key, values in parts.items()}
        columns["proxy"] = unknown if scores is None else scores.total_N.tolist()
        columns["kl"] = kl_N
        columns |= {measure.name: unknown for measure in measures.COMMON}
        columns |= {key: values.tolist() for key, values in truth.items()}
        if self.is_peoples_text:
            columns["verbose"] = [
                float(is_verbose(episode.task.prompt, episode.response, episode.sampled_tokens)) for episode in episodes
            ]
        exact = {"proxy", *parts}  # not rounded, so that re-scoring the file gives the same rewards
        rows: list[dict[str, Any]] = []
        for i, episode in enumerate(episodes):
            row: dict[str, Any] = {
                "policy": name,
                "prompt_id": i // group_size,
                "sample_id": i % group_size,
                "prompt": episode.task.prompt,
                "response": episode.response,
                "tokens": episode.sampled_tokens,
                "ended": int(episode.finished),
            }
            if self.has_environment:
                row["turns"] = len(episode.turns)
                row["conversation"] = episode.prompt  # all turns before the last response
            if self.has_environment or self.is_spoken:
                row["category"] = episode.task.metadata.get("category")
            for key, values in columns.items():
                row[key] = finite_values(values[i]) if key in exact else rounded(values[i])
            rows.append(row)
        if self.run.corpus.renderer is not None:
            write_clips(rows, self.run.corpus.renderer, self.run.directory, prompts=self.settings.clips)
        return rows

    def _summarise(self, rows: Sequence[dict[str, Any]]) -> dict[str, Estimate]:
        """Return the means over sampled responses and, except for the reference, the comparison with it."""
        clusters = np.array([row["prompt_id"] for row in rows])
        measured = measures.columns_of(rows[0], self.run.corpus.measures)
        columns = {key: column(rows, key) for key in dict.fromkeys((*SAMPLE_KEYS, *measured))}
        base = {key: column(self._reference_rows, key) for key in ("gold", "proxy")}
        metrics = {}
        categories = [row.get("category") for row in rows]
        for key, values in columns.items():
            if np.isnan(values).all():
                continue
            metric = measured.get(key) or metric_of(key)
            estimate = clustered_rate if metric.kind == "rate" else clustered_mean
            metrics[key] = estimate(values, clusters)
            if metric.by_category:
                metrics |= _by_category(key, categories, values, clusters, estimate)
        for key in ("gold", "proxy") if self.is_spoken else ():
            metrics |= _by_category(key, categories, columns[key], clusters, clustered_mean)
        metrics |= repeated_samples(rows, self.settings.pass_at, self.run.data.oracle)
        if rows[0]["policy"] == self._reference_rows[0]["policy"]:
            return metrics
        # The gold reward decides wins if it is known: winning by the reward that was trained on may be reward hacking.
        judge = "gold" if "gold" in metrics else "proxy" if "proxy" in metrics else None
        if judge:
            # Responses are paired by index: sample g of the policy against sample g of the reference, ties count half.
            metrics["win_rate"] = clustered_mean(win_or_tie(columns[judge] - base[judge]), clusters)
        if {"proxy", "kl"} <= metrics.keys() and far_enough(metrics["kl"]):
            gain = columns["proxy"] - base["proxy"]
            metrics["reward_per_nat"] = ratio_of_means(gain, columns["kl"], clusters)
        return metrics


class Evaluator(EpisodeLog):
    """Evaluates policies one by one. The first one is the reference that the others are compared with.

    Args:
        reference: frozen policy for KL, drift and win rate.
        reward: reward that scores the sampled responses as `proxy`; None omits it.
        beta: beta of the DPO objective whose optimum `idealised_ranking` describes; None omits that metric.
        max_length: maximum number of tokens of a held-out preference pair, prompt and response.
    """

    def __init__(
        self,
        run: Run,
        reference: nn.Module,
        encoder: Encoder,
        reward: Reward | None,
        beta: float | None,
        max_length: int,
    ):
        super().__init__(run, reward)
        self.reference = reference
        self.encoder = encoder
        self.beta = beta
        self.rollout = run.config.rollout
        self.collector = EpisodeCollector(run, encoder)
        self.tasks = run.corpus.tasks("test")[: self.settings.prompts]
        # encoded once by the encoder of the run, whose report counts the prompts that were cut
        max_size = self.rollout.max_prompt_tokens
        self.prompt_ids = [encoder.prompt(self.collector.prompt(task), max_size) for task in self.tasks]
        pairs = run.corpus.test[: self.settings.pairs]
        self.pairs = [pair_rows(encoder, pair, max_length) for pair in pairs]
        self.pair_prompts = [pair.prompt for pair in pairs]
        self.p_chosen = [pair.meta.get("p_chosen") for pair in pairs]
        self._reference_pairs: PairLogps | None = None

    def evaluate(self, name: str, model: nn.Module, samples_per_prompt: int | None = None) -> dict[str, Any]:
        """Return the summary of one policy. Append its rows and summary to the log unless they are there already.

        Args:
            samples_per_prompt: None takes that of the settings. Policies that are compared need the same number.
        """
        summary = self.find(name)
        if summary:
            return summary
        rows = self.sample(name, model, samples_per_prompt)
        if not self._reference_rows:
            self._reference_rows = rows  # the first policy evaluated is the reference
            self._note_unread_answers(name, rows)
        with labelled(name):
            metrics = {**self._summarise(rows), **self._greedy(model, rows), **self._pair_metrics(model)}
        return self.add(name, rows, metrics)

    def _note_unread_answers(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Add a note to the run if no response states an answer that can be read; `correct` is then always 0."""
        answers = read_answers(self.run.data.oracle, rows) if hasattr(self.run.config.data, "verifier") else None
        if answers and not any(answers):
            forms = 'it is read after "####", in \\boxed{…} and after "the answer is …"'
            if not isinstance(self.run.config.verifier, Math):
                forms = 'it is read after "####", and data.verifier=math also reads \\boxed{…} and "the answer is …"'
            self.run.note(f"no response of {name} states a final answer that can be read, so `correct` is 0; {forms}")

    def evaluate_reference(self) -> None:
        """Evaluate the reference, and also the start policy if the reference is a soup (a mean of weights)."""
        if SOUP not in self.run.needs:
            self.evaluate(REFERENCE_NAME, self.reference)
            return
        self.evaluate(SOUP_NAME, self.reference)
        if not self.find(REFERENCE_NAME):
            start = load_policy(self.run.needs["policy"], self.run.config.model, device=self.run.device)
            self.evaluate(REFERENCE_NAME, start)

    def gold_truth(self, iterations: Mapping[str, int]) -> GoldTruth | None:
        """Return whether gold on the held-out prompts fell below that of the start policy; None if it is not known.

        Args:
            iterations: name of an evaluated policy → number of iterations that it was trained on, in ascending order.
        """
        rows = {name: self.rows(name) for name in iterations}
        return heldout_truth(self.rows(REFERENCE_NAME), [(iterations[name], rows[name]) for name in iterations])

    def sample(self, name: str, model: nn.Module, samples_per_prompt: int | None = None) -> list[dict[str, Any]]:
        """Return scored responses to the held-out prompts, prompt-major. `name` is part of the seed of the sampling."""
        seed = self.run.seed(f"evaluation/{name}", self.settings.seed)
        group_size = samples_per_prompt or self.settings.samples_per_prompt
        with labelled(name):
            collected = self.collector.collect(model, self.tasks, group_size, seed, prompts=self.prompt_ids)
            episodes = list(chain.from_iterable(collected))
            return self._episode_rows(name, collected, self._kl(model, episodes))

    def _kl(self, model: nn.Module, episodes: Sequence[Episode]) -> list[float]:
        """Return KL(model ‖ reference) of each episode in nats, at its sampling temperature."""
        if model is self.reference:
            return [0.0] * len(episodes)
        kl_N = torch.zeros(len(episodes))
        experience = Experience.of(episodes)
        temperature = self.rollout.temperature or 1.0  # greedy decoding (0) compares the unscaled distributions

        def compute(batch: TokenBatch) -> torch.Tensor:
            return exact_kl(model, self.reference, batch, temperature=temperature).cpu()

        for index, kl_B in over_rows(
            experience.rows, compute, KL_BATCH_TOKENS, self.run.device, [self.reference], experience.masks, title="KL"
        ):
            kl_N[index] = kl_B
        return kl_N.tolist()

    def _greedy(self, model: nn.Module, rows: Sequence[dict[str, Any]]) -> dict[str, Estimate]:
        """Return the accuracy of the greedily decoded response or episode, for data with verifiable answers.

        Args:
            rows: rows of the sampled responses. They show if an environment knows which episodes are correct.
        """
        corpus = self.run.corpus
        is_checked = (
            bool(corpus.answers)
            or corpus.verified
            or (corpus.environment is not None and any(row["correct"] is not None for row in rows))
        )
        if not is_checked:
            return {}
        collected = self.collector.collect(model, self.tasks, 1, 0, temperature=0.0, prompts=self.prompt_ids)
        episodes = [episode for (episode,) in collected]
        correct = corpus.measure(episodes).get("correct")
        if correct is None:
            return {}
        prompts = np.arange(len(correct))
        metrics = {"correct_greedy": clustered_rate(correct, prompts)}
        if corpus.environment is not None:
            categories = [task.metadata.get("category") for task in self.tasks]
            metrics |= _by_category("correct_greedy", categories, correct, prompts)
        return metrics

    def _pair_metrics(self, model: nn.Module) -> dict[str, Estimate]:
        """Return the metrics of held-out preference pairs (arXiv:2405.19534)."""
        if not self.run.corpus.preferences:
            return {}
        if self._reference_pairs is None:
            self._reference_pairs = pair_logps(self.reference, self.pairs, self.run.device)
        ref = self._reference_pairs
        now = ref if model is self.reference else pair_logps(model, self.pairs, self.run.device)
        _, clusters = np.unique(self.pair_prompts, return_inverse=True)
        drift = (now.chosen - ref.chosen).double()
        ranked_right = (now.chosen > now.rejected).double()
        metrics = {
            "chosen_logp_drift": clustered_mean(drift.numpy(), clusters),
            "ranking_accuracy": clustered_rate(ranked_right.numpy(), clusters),
        }
        if now is not ref:
            implicit = (now.chosen - ref.chosen > now.rejected - ref.rejected).double()
            # the implicit reward of DPO is proportional to log π − log π_ref
            metrics["implicit_accuracy"] = clustered_rate(implicit.numpy(), clusters)
        if self.beta and all(p is not None for p in self.p_chosen):
            p_chosen = torch.tensor([float(p or 0) for p in self.p_chosen])
            ranked = idealised_ranking(ref, p_chosen, beta=self.beta).double()
            metrics["idealised_ranking"] = clustered_rate(ranked.numpy(), clusters)
        return metrics


def heldout_evaluator(run: Run, reference: nn.Module, encoder: Encoder, reward: Reward | None) -> Evaluator:
    """Return the evaluator of a stage that trains nothing. Held-out pairs are cut to the maximum rollout length."""
    rollout = run.config.rollout
    # longer pairs cannot occur as samples of the policy
    max_length = rollout.max_prompt_tokens + rollout.max_new_tokens
    return Evaluator(run, reference.requires_grad_(False), encoder, reward, beta=None, max_length=max_length)


class ScoredPolicyStage:
    """Stage that samples from `needs.policy` and selects among its responses by the run's reward.

    Raises ConfigError `missing` if the reward reads a model that the run does not name.
    """

    missing: ClassVar[str]

    def __init__(self, settings: Any, run: Run):
        self.settings = settings
        self.run = run
        source = run.needs["policy"]
        self.model = load_policy(source, run.config.model, device=run.device)
        self.encoder = load_encoder(source, run.config.model)
        reward = build_reward(run)
        if reward is None:
            raise ConfigError(self.missing)
        self.reward: GraphReward = reward
        self.evaluator = heldout_evaluator(run, self.model, self.encoder, reward)


def far_enough(kl: Estimate) -> bool:
    """Return True if the KL from the reference is large enough for a gain per nat; near KL 0 the ratio is mostly noise.

    The mean KL has to be `LEAST_NATS` or more, so that a gain of 0.05 does not count as more than one per nat. Its
    half-width must not exceed half the mean: the interval then stays away from the pole at 0, and the delta method
    holds.
    """
    half_width = (kl.high - kl.low) / 2
    return kl.bounded and kl.mean >= LEAST_NATS and half_width <= kl.mean / 2


LEAST_NATS = 0.05
"""Minimum mean KL for `reward_per_nat`, in nats."""


def _by_category(
    key: str,
    categories: Sequence[str | None],
    values: np.ndarray,
    clusters: np.ndarray,
    estimate: Callable[[np.ndarray, np.ndarray], Estimate] = clustered_rate,
) -> dict[str, Estimate]:
    """Return the estimate of each category of tasks as "key/category"; {} if there are fewer than two categories."""
    names = list(dict.fromkeys(category for category in categories if category))
    # one category would repeat the overall estimate
    if len(names) < 2:
        return {}
    estimates = {}
    for name in names:
        members = np.array([category == name for category in categories])
        if not np.isnan(values[members]).all():
            estimates[f"{key}/{name}"] = estimate(values[members], clusters[members])
    return estimates
