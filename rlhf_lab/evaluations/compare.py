"""Compares policies that are there: the same held-out prompts, one table, replies side by side.

Policies are loaded one after the other, so the reference and one other are in memory at a time.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from rlhf_lab.core.errors import ArtifactError
from rlhf_lab.core.files import read_json
from rlhf_lab.evaluations.evaluator import held_out_evaluator
from rlhf_lab.evaluations.settings import Compare
from rlhf_lab.models.build import load_encoder, load_policy
from rlhf_lab.rewards.graph import build_reward
from rlhf_lab.statistics.estimates import Estimate, floats
from rlhf_lab.statistics.inference import clustered_mean
from rlhf_lab.training.run import Result, Run
from rlhf_lab.training.start import corpus_report


class ComparePolicies:
    """Evaluates `needs.reference`, then every other policy in `needs`, in the order written."""

    def __init__(self, settings: Compare, run: Run):
        self.settings, self.run = settings, run
        self.reference, self.encoder = self._load("reference")
        self.evaluator = held_out_evaluator(run, self.reference, self.encoder, build_reward(run))

    def finish(self) -> Result:
        evaluator, found = self.evaluator, []
        others = {"reference", "reward", *self.run.config.reward.roles}
        for role in ("reference", *(role for role in self.run.needs if role not in others)):
            name = self._name(role)
            summary = evaluator.find(name) or evaluator.evaluate(name, self._policy(role))
            spread = {f"{key}_sd": standard_deviation(evaluator.rows(name), key) for key in ("gold", "proxy")}
            more = {key: value.to_dict() for key, value in spread.items() if value.n} | self._seconds(role)
            found.append({**summary, "metrics": {**summary["metrics"], **more}})
        return Result(found, corpus_report(self.run.corpus, self.encoder))

    def _name(self, role: str) -> str:
        source = str(self.run.config.needs[role])
        return role if role != "reference" or "/" in source else f"{source} (reference)"

    def _policy(self, role: str) -> nn.Module:
        if role == "reference":
            return self.reference
        model, encoder = self._load(role)
        if encoder.tokenizer.get_vocab() != self.encoder.tokenizer.get_vocab():
            raise ArtifactError(
                f"needs.{role} has another vocabulary than needs.reference, so there is no KL between them; "
                "compare policies that descend from the same model, or write one data.seed for all seeds"
            )
        return model

    def _load(self, role: str) -> tuple[nn.Module, Any]:
        source, settings = self.run.needs[role], self.run.config.model
        made = read_json(Path(source) / "config.json") or {}
        if any("ForSequenceClassification" in name for name in made.get("architectures") or ()):
            raise ArtifactError(f"needs.{role} is a reward model, not a policy; its role is called reward")
        return load_policy(source, settings, device=self.run.device), load_encoder(source, settings)

    def _seconds(self, role: str) -> dict[str, float]:
        result = read_json(Path(self.run.needs[role]).parent / "result.json")
        return {"seconds": round(result["seconds"], 1)} if result and result.get("seconds") else {}


def standard_deviation(rows: list[dict[str, Any]], key: str) -> Estimate:
    """Sd of a metric across replies, with an interval clustered by prompt; n = 0 when nothing is scored.

    The variance is the mean of squared deviations, n/(n−1) of it; the root is taken of it and of its bounds.
    """
    values, prompts = floats([row[key] for row in rows]), np.array([row["prompt_id"] for row in rows])
    scored = int((~np.isnan(values)).sum())
    if not scored:
        return Estimate(math.nan, -math.inf, math.inf, 0, 0)
    squares = np.square(values - np.nanmean(values)) * (scored / max(scored - 1, 1))
    variance = clustered_mean(squares, prompts)
    low, high = math.sqrt(max(variance.low, 0.0)), math.sqrt(variance.high)
    return replace(variance, mean=math.sqrt(variance.mean), low=low, high=high)


def build(settings: Compare, run: Run) -> ComparePolicies:
    return ComparePolicies(settings, run)
