"""Compares trained policies on the same held-out prompts: one table, and responses side by side.

Policies are loaded one after the other, so only the reference and one other policy are in memory at a time.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from rlhf_lab.core.errors import ArtifactError
from rlhf_lab.core.files import read_json, read_object
from rlhf_lab.core.progress import tracked
from rlhf_lab.evaluations.evaluator import heldout_evaluator
from rlhf_lab.evaluations.policy_log import policy_name
from rlhf_lab.evaluations.settings import Compare
from rlhf_lab.models.build import load_encoder, load_policy
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.rewards.graph import build_reward
from rlhf_lab.statistics.estimates import Estimate
from rlhf_lab.statistics.inference import clustered_mean
from rlhf_lab.statistics.rows import column
from rlhf_lab.training.run import Result, Run
from rlhf_lab.training.start import corpus_report


class ComparePolicies:
    """Stage that evaluates `needs.reference`, then every other policy in `needs`, in the order written."""

    def __init__(self, settings: Compare, run: Run):
        self.settings = settings
        self.run = run
        self.reference, self.encoder = self._load("reference")
        self.evaluator = heldout_evaluator(run, self.reference, self.encoder, build_reward(run))

    def finish(self) -> Result:
        evaluator = self.evaluator
        compared = self.settings.compared_roles(self.run.config)
        roles = ["reference", *(role for role in compared if role in self.run.needs)]
        policies = []
        for role in tracked(roles, "policies"):
            name = policy_name(self.run, role)
            summary = evaluator.find(name) or evaluator.evaluate(name, self._load_comparable(role))
            metrics = dict(summary["metrics"])
            for key in ("gold", "proxy"):
                # the spread shows whether a policy has collapsed to responses of the same reward
                spread = standard_deviation(evaluator.rows(name), key)
                if spread.n:
                    metrics[f"{key}_sd"] = spread.to_dict()
            metrics |= self._training_seconds(role)
            policies.append({**summary, "metrics": metrics})
        return Result(policies, corpus_report(self.run.corpus, self.encoder))

    def _load_comparable(self, role: str) -> nn.Module:
        if role == "reference":
            return self.reference
        model, encoder = self._load(role)
        if encoder.tokenizer.get_vocab() != self.encoder.tokenizer.get_vocab():
            raise ArtifactError(
                f"needs.{role} and needs.reference have different vocabularies, so there is no KL between them; "
                "compare policies that descend from the same model, or write one data.seed for all seeds"
            )
        return model

    def _load(self, role: str) -> tuple[nn.Module, Encoder]:
        """Load (model, encoder) of a role. Raise ArtifactError for a reward model."""
        source = self.run.needs[role]
        model_settings = self.run.config.model
        config = read_object(Path(source) / "config.json")
        if any("ForSequenceClassification" in name for name in config.get("architectures") or ()):
            raise ArtifactError(
                f"needs.{role} is a reward model, not a policy; name a policy, or write it as needs.reward"
            )
        model = load_policy(source, model_settings, device=self.run.device)
        return model, load_encoder(source, model_settings)

    def _training_seconds(self, role: str) -> dict[str, float]:
        """Return the wall time of the stage that trained the policy; nothing if it was trained elsewhere."""
        result = read_json(Path(self.run.needs[role]).parent / "result.json")
        return {"seconds": round(result["seconds"], 1)} if result and result.get("seconds") else {}


def standard_deviation(rows: list[dict[str, Any]], key: str) -> Estimate:
    """Return the standard deviation of a metric over responses, with an interval clustered by prompt.

    The variance is n/(n−1) times the mean squared deviation. The standard deviation and its bounds are the square roots
    of the variance and of its bounds. n = 0 if no response is scored.
    """
    values = column(rows, key)
    prompts = np.array([row["prompt_id"] for row in rows])
    scored = int((~np.isnan(values)).sum())
    if not scored:
        return Estimate(math.nan, -math.inf, math.inf, 0, 0)
    # n/(n−1) corrects the bias of the variance, because the mean is estimated from the same values
    correction = scored / max(scored - 1, 1)
    squares = np.square(values - np.nanmean(values)) * correction
    variance = clustered_mean(squares, prompts)
    low = math.sqrt(max(variance.low, 0.0))  # a t interval of a variance can reach below 0
    high = math.sqrt(variance.high)
    return replace(variance, mean=math.sqrt(variance.mean), low=low, high=high)


def build(settings: Compare, run: Run) -> ComparePolicies:
    return ComparePolicies(settings, run)
