"""Linear probes: what a reward model represents, and what its score pays for (cf. MRMBench, arXiv:2511.12464).

The rows are both responses of held-out preference pairs. An attribute is a criterion of the domain
(`rewards/criteria/sets.py`) or a column of ground truth, such as gold. The probe reads the hidden state at the last
token, from which the head of the reward model computes the score.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from rlhf_lab.core.types import Corpus, FloatArray
from rlhf_lab.evaluations.settings import RewardProbe
from rlhf_lab.models.build import last_hidden_states, load_encoder, load_reward_model
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.passes import over_rows
from rlhf_lab.rewards.criteria.sets import criteria_of
from rlhf_lab.rewards.learned.bt import Scorer, load_scorer
from rlhf_lab.rewards.learned.settings import BradleyTerry
from rlhf_lab.statistics.association import pooled_products, within_prompts
from rlhf_lab.statistics.probe import cross_fitted
from rlhf_lab.training.run import Result, Run

GOLD = "gold"


class Probing:
    """Stage that probes the first member of a reward model, and the policy from which it was trained."""

    def __init__(self, settings: RewardProbe, run: Run):
        self.settings = settings
        self.run = run
        device = run.device
        batch_tokens = BradleyTerry().batch_tokens
        self.scorer = load_scorer(run.needs["reward"], run.config.model, device, batch_tokens, run.note)
        source = run.needs["policy"]
        before = load_reward_model(source, run.config.model, device=device)  # its head is zero and is not used
        self.before = Scorer(before, load_encoder(source, run.config.model), self.scorer.scale, device, batch_tokens)

    def finish(self) -> Result:
        corpus = self.run.corpus
        pairs = list(corpus.test[: self.run.config.evaluation.pairs])
        prompts = [pair.prompt for pair in pairs] * 2
        responses = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
        attributes = attributes_of(corpus, prompts, responses)
        states = {
            "probe": hidden_states(self.scorer, prompts, responses),
            "probe_before": hidden_states(self.before, prompts, responses),
        }
        metrics = probe_report(states, attributes, prompts, self.settings.folds)
        metrics |= effect_report(self.scorer(prompts, responses), attributes, prompts)
        metrics["rows"] = len(responses)
        # The report has a table of all attributes, which is too long for the console.
        primary = [f"{metric}/{GOLD}" for metric in (*states, "effect") if GOLD in attributes]
        return Result(metrics=metrics, primary=primary or list(metrics))


def attributes_of(corpus: Corpus, prompts: Sequence[str], responses: Sequence[str]) -> dict[str, FloatArray]:
    """Return attribute → values, (N,): gold first, then the ground truth and the criteria of the domain.

    Attributes that are unknown for a response, or equal for all responses, are left out.
    """
    criteria = criteria_of(corpus)
    columns = dict(zip(criteria.names, criteria.measure(prompts, responses).T, strict=True))
    truth = corpus.oracle.measure(prompts, responses) if corpus.oracle else {}
    known = {**truth, **{name: values for name, values in columns.items() if name not in truth}}
    varied = {
        name: np.asarray(values_N, dtype=np.float64)
        for name, values_N in known.items()
        if not np.isnan(values_N).any() and np.std(values_N) > 0
    }
    return dict(sorted(varied.items(), key=lambda item: item[0] != GOLD))


@torch.no_grad()
def hidden_states(scorer: Scorer, prompts: Sequence[str], responses: Sequence[str]) -> FloatArray:
    """Return the last hidden state at the last token of each response, (N, hidden)."""

    def compute(batch: TokenBatch) -> torch.Tensor:
        return last_hidden_states(scorer.model, batch).double().cpu()

    rows = scorer.rows(prompts, responses)
    states: dict[int, FloatArray] = {}
    for index, state_Bd in over_rows(rows, compute, scorer.batch_tokens, scorer.device, title="hidden states"):
        states |= zip(map(int, index), state_Bd.numpy(), strict=True)
    return np.stack([states[row] for row in range(len(rows))])


def probe_report(
    states: Mapping[str, FloatArray], attributes: Mapping[str, FloatArray], prompts: Sequence[str], folds: int
) -> dict[str, Any]:
    """Return the correlations of attributes with their predictions on prompts that the probe was not fitted on.

    Args:
        states: metric → hidden states, (N, hidden).
        attributes: attribute → values, (N,).
        prompts: prompt of each response, (N,).
    """
    target_NA = np.stack(list(attributes.values()), axis=1)
    metrics: dict[str, Any] = {}
    for metric, state_NH in states.items():
        predicted_NA = cross_fitted(state_NH, target_NA, np.asarray(prompts), folds)
        for name, predicted_N in zip(attributes, predicted_NA.T, strict=True):
            columns = {"attribute": attributes[name], "predicted": predicted_N}
            metrics[f"{metric}/{name}"] = pooled_products(columns, prompts).correlation("attribute", "predicted")
    return metrics


def effect_report(score_N: FloatArray, attributes: Mapping[str, FloatArray], prompts: Sequence[str]) -> dict[str, Any]:
    """Return what the score pays for: its change per standard deviation of an attribute, among responses to one prompt.

    Both are in standard deviations over all responses. If gold is known, the change is that at equal gold.
    """
    standardised = {name: values_N / values_N.std() for name, values_N in attributes.items()}
    products = within_prompts({"score": score_N / score_N.std(), **standardised}, prompts)
    metrics = {}
    for name in attributes:
        control = GOLD if GOLD in attributes and name != GOLD else None
        effect = products.slope("score", name, control)
        if not math.isnan(effect.mean):
            metrics[f"effect/{name}"] = effect
    return metrics


def build(settings: RewardProbe, run: Run) -> Probing:
    return Probing(settings, run)
