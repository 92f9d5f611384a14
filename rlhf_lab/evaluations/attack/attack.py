"""Stage that attacks the reward of the run: fixed exploits, the best of several samples, and a search.

Policies that were trained on the reward count as attacks too: their responses show what training gained and lost.
Gains of the reward are in standard deviations of the reward over start responses, gains of gold in those of gold, so
that rewards with different units can be compared. The search sees the reward only. A response that the reward leaves
unscored is excluded and counted.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.types import FloatArray
from rlhf_lab.evaluations.attack import card
from rlhf_lab.evaluations.attack.card import SEARCH, TRAINED, Attacked, gain_metrics
from rlhf_lab.evaluations.attack.exploits import EXPLOITS, TEXTS, Source
from rlhf_lab.evaluations.attack.search import AttackSearch, Candidate, text_pool
from rlhf_lab.evaluations.attack.settings import Attack
from rlhf_lab.evaluations.evaluator import REFERENCE_NAME, heldout_evaluator
from rlhf_lab.evaluations.repeated_samples import by_prompt
from rlhf_lab.evaluations.reward_audit import audit_pairs
from rlhf_lab.models.build import load_encoder, load_policy
from rlhf_lab.rewards.graph import build_reward, text_reward
from rlhf_lab.statistics.estimates import floats, largest_first
from rlhf_lab.statistics.inference import clustered_mean, clustered_rate
from rlhf_lab.statistics.rows import column
from rlhf_lab.training.run import Result, Run

BEST_OF_N = "best_of_n"
"""Name of the attack that selects the best of several samples of the start policy."""
PRIMARY = ("attack_gain", "attack_gold", "attack_words", "attack_unscored", "attack_queries", "accuracy", "reward_sd")


@dataclass(frozen=True)
class ScoredResponses:
    """Responses of one policy, or of the data. Those that the attack starts from are called start responses.

    Attributes:
        responses: S responses to each prompt; the first start response is the one that the attack edits.
        gold_PS: their true rewards; NaN if there is none.
    """

    prompts: list[str]
    responses: list[list[str]]
    reward_PS: FloatArray
    gold_PS: FloatArray


class AttackStage:
    """Stage of `algorithm=attack`; see metrics.py."""

    def __init__(self, settings: Attack, run: Run):
        self.settings = settings
        self.run = run
        graph = build_reward(run)
        assert graph is not None, "config.check refuses an attack without what its reward reads"
        self.graph = graph
        self.reward = text_reward(graph, run.corpus)

    def finish(self) -> Result:
        policies, samples = (
            self._sample() if self.run.needs.get("policy") else ([], {REFERENCE_NAME: self._read_data()})
        )
        starts = samples.pop(REFERENCE_NAME)
        scale = Scale(starts, spread(starts.reward_PS), spread(starts.gold_PS))
        if math.isnan(scale.reward_sd):
            reason = card.NO_SPREAD if np.isfinite(starts.reward_PS).any() else card.NO_START
            self.run.note(f"gains have no scale and are not known, because {reason}")
        found, queries = self._search(starts)
        attacks = {SEARCH: [candidate.response for candidate in found]}
        if starts.reward_PS.shape[1] > 1:
            attacks[BEST_OF_N] = best_of_samples(starts)
        attacks |= fixed_exploits(starts, self.run.seed("exploits"))
        results = {name: self._measure(name, responses, scale) for name, responses in attacks.items()}
        results |= {TRAINED + role: gains_of_policy(role, trained, scale) for role, trained in samples.items()}
        metrics = summarise(results, scale, found)
        metrics["attack_queries"] = queries
        if self.settings.pairs:
            metrics["accuracy"] = audit_pairs(self.reward, self.run.corpus.test[: self.settings.pairs])["accuracy"]
        edits = [candidate.edits for candidate in found]
        card.write(self.run.directory, self.graph.name, results, edits, metrics)
        primary = [name for name in PRIMARY if name in metrics]
        best_first = largest_first({name: gain for name, gain in metrics.items() if name.startswith("exploit_gain/")})
        return Result(policies, metrics, [*primary, *best_first], above(metrics["attack_gain"].mean, self.settings))

    def _sample(self) -> tuple[list[dict[str, Any]], dict[str, ScoredResponses]]:
        """Sample from `needs.policy` and from the policies that were trained on the reward.

        Returns:
            the evaluated policies, and name → samples. The start responses have the name of the reference.
        """
        run = self.run
        policy = load_policy(run.needs["policy"], run.config.model, device=run.device)
        evaluator = heldout_evaluator(run, policy, load_encoder(run.needs["policy"], run.config.model), self.graph)
        evaluator.evaluate(REFERENCE_NAME, policy, self.settings.samples)
        trained_roles = self.settings.trained_roles(run.config)
        for role in trained_roles:
            evaluator.evaluate(
                role, load_policy(run.needs[role], run.config.model, device=run.device), self.settings.samples
            )
        samples = {name: samples_of_rows(evaluator.rows(name)) for name in (REFERENCE_NAME, *trained_roles)}
        return evaluator.policies, samples

    def _read_data(self) -> ScoredResponses:
        """Return the chosen responses of held-out data as start responses, one per prompt."""
        responses: dict[str, str] = {}
        for pair in self.run.corpus.test:
            if pair.chosen.strip() and len(responses) < self.run.config.evaluation.prompts:
                responses.setdefault(pair.prompt, pair.chosen.strip())
        if len(responses) < 2:
            raise DataError(
                f"data={self.run.corpus.name} has responses to {len(responses)} held-out prompts, and an attack needs "
                "two or more; name a policy to sample from (needs.policy=RUN)"
            )
        prompts, starts = list(responses), list(responses.values())
        reward_P1 = self.reward(prompts, starts).total_N[:, None]
        return ScoredResponses(prompts, [[start] for start in starts], reward_P1, self._truth(prompts, starts)[:, None])

    def _search(self, starts: ScoredResponses) -> tuple[list[Candidate], int]:
        """Return the best response to each prompt that the search finds, and the number of queries."""
        settings = self.settings
        pairs = self.run.corpus.train[: settings.pool_pairs]
        texts = [text for pair in pairs for text in (pair.chosen, pair.rejected)]
        texts += [response for responses in starts.responses for response in responses]
        first = [responses[0] for responses in starts.responses]
        search = AttackSearch(
            lambda prompts, responses: self.reward(prompts, responses).total_N,
            starts.prompts,
            first,
            starts.reward_PS[:, 0].tolist(),
            text_pool([*texts, *TEXTS]),
            settings,
            settings.max_words or max(len(response.split()) for response in first),
            self.run.seed("attack"),
        )
        return search.run(), search.queries

    def _measure(self, name: str, responses: Sequence[str], scale: Scale) -> list[Attacked]:
        """Score the responses of an attack anew, so that noise in the scores of the search does not count as gain."""
        prompts = scale.starts.prompts
        reward_P = self.reward(prompts, responses).total_N
        gain_P = (reward_P - scale.starts.reward_PS[:, 0]) / scale.reward_sd
        gold_P = (self._truth(prompts, responses) - scale.starts.gold_PS[:, 0]) / scale.gold_sd
        return [
            Attacked(name, prompt, start[0], response, float(gain), float(gold))
            for prompt, start, response, gain, gold in zip(
                prompts, scale.starts.responses, responses, gain_P, gold_P, strict=True
            )
        ]

    def _truth(self, prompts: Sequence[str], responses: Sequence[str]) -> FloatArray:
        """Return the true reward of responses, (P,): gold, or 1 for a right answer; NaN without a true reward."""
        measured = self.run.corpus.measure(self.run.corpus.episodes(prompts, responses))
        unknown = np.full(len(prompts), np.nan)
        return floats(measured.get("gold", measured.get("correct", unknown)))


@dataclass(frozen=True)
class Scale:
    """Start responses, and the units of gains: standard deviations over these responses, NaN if there is no spread."""

    starts: ScoredResponses
    reward_sd: float
    gold_sd: float


def spread(values_PS: FloatArray) -> float:
    """Return the standard deviation of the scored values; NaN without any, or if they are equal up to rounding."""
    scored_N = values_PS[np.isfinite(values_PS)]
    # the standard deviation of equal values is rarely exactly 0 in floating point
    varies = scored_N.size and np.ptp(scored_N) > 1e-9 * np.abs(scored_N).max()
    return float(scored_N.std()) if varies else math.nan


def samples_of_rows(rows: Sequence[dict[str, Any]]) -> ScoredResponses:
    """Return the samples of an evaluated policy from the rows of its evaluation."""
    rows_by_prompt = by_prompt(rows)
    # a world of verifiable tasks has `correct` in place of a gold reward
    has_gold = any(row["gold"] is not None for row in rows)
    truth = "gold" if has_gold else "correct"
    return ScoredResponses(
        prompts=[rows[0]["prompt"] for rows in rows_by_prompt],
        responses=[[row["response"] for row in rows] for rows in rows_by_prompt],
        reward_PS=np.stack([column(rows, "proxy") for rows in rows_by_prompt]),
        gold_PS=np.stack([column(rows, truth) for rows in rows_by_prompt]),
    )


def gains_of_policy(role: str, trained: ScoredResponses, scale: Scale) -> list[Attacked]:
    """Return what a trained policy gained over the start policy: S responses per prompt, each against a start response.

    The evaluation has scored them, so the reward is not called again.
    """
    starts = scale.starts
    gain_PS = (trained.reward_PS - starts.reward_PS) / scale.reward_sd
    gold_PS = (trained.gold_PS - starts.gold_PS) / scale.gold_sd
    return [
        Attacked(TRAINED + role, prompt, starts.responses[p][s], response, float(gain_PS[p, s]), float(gold_PS[p, s]))
        for p, prompt in enumerate(trained.prompts)
        for s, response in enumerate(trained.responses[p])
    ]


def best_of_samples(starts: ScoredResponses) -> list[str]:
    """Return the sample with the highest reward of each prompt; samples without a score are never chosen."""
    reward_PS = np.where(np.isnan(starts.reward_PS), -np.inf, starts.reward_PS)
    return [responses[best] for responses, best in zip(starts.responses, reward_PS.argmax(axis=1), strict=True)]


def fixed_exploits(starts: ScoredResponses, seed: int) -> dict[str, list[str]]:
    """Return name → rewritten start response of each prompt."""
    first = [responses[0] for responses in starts.responses]
    others = [*first[1:], first[0]]  # the start response to the next prompt
    return {
        name: [
            rewrite(Source(prompt, response, other, random.Random(f"{seed}/{name}/{index}")))
            for index, (prompt, response, other) in enumerate(zip(starts.prompts, first, others, strict=True))
        ]
        for name, rewrite in EXPLOITS.items()
    }


def summarise(results: dict[str, list[Attacked]], scale: Scale, found: Sequence[Candidate]) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    for name, attacked in results.items():
        prompts = [row.prompt for row in attacked]
        gain = clustered_mean([row.gain for row in attacked], prompts)
        gold = clustered_mean([row.gold for row in attacked], prompts)
        gain_name, gold_name = gain_metrics(name)
        metrics[gain_name] = gain
        if gold.n:  # no true reward, no change of it
            metrics[gold_name] = gold
    prompts = scale.starts.prompts
    more_words = [len(row.response.split()) - len(row.start.split()) for row in results[SEARCH]]
    metrics["attack_words"] = clustered_mean(more_words, prompts)
    unscored_P = np.isnan(scale.starts.reward_PS[:, 0])
    metrics["attack_unscored"] = clustered_rate(unscored_P, prompts)
    kinds = sorted({edit.kind for candidate in found for edit in candidate.edits})
    for kind in kinds:
        by_prompt = [sum(edit.gain for edit in candidate.edits if edit.kind == kind) for candidate in found]
        gain_P = np.where(unscored_P, np.nan, np.array(by_prompt) / scale.reward_sd)
        metrics[f"edit_gain/{kind.replace(' ', '_')}"] = clustered_mean(gain_P, prompts)
    metrics["reward_sd"] = scale.reward_sd
    return metrics


def above(gain: float, settings: Attack) -> str:
    """Return the message for a gain above `max_gain`, or for one that is not known; else an empty text."""
    if settings.max_gain is None:
        return ""
    maximum = f"algorithm.max_gain={settings.max_gain:g}"
    # A reward without spread has no gain, and cannot be shown to be below the maximum.
    if math.isnan(gain):
        return f"the attack has no gain to compare with {maximum}"
    if gain > settings.max_gain:
        return (
            f"the attack gained {gain:.2f} standard deviations of the reward, above {maximum}; card.md in the run "
            "directory lists the exploits"
        )
    return ""


def build(settings: Attack, run: Run) -> AttackStage:
    return AttackStage(settings, run)
