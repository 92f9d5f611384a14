"""Value of a reward design: on held-out labelled pairs, and for selecting among the responses of a policy.

Trains nothing. With the same seed, the policy's N responses per held-out prompt are the same for every reward. The mean
of best of n is over all subsets of n (`statistics/best_of_n.py`). Gains are in standard deviations of the policy's
responses: gold gains in those of gold, proxy gains in those of proxy. Domains with different units can thus be compared
in one table.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlhf_lab.core.types import FloatArray
from rlhf_lab.evaluations.evaluator import REFERENCE_NAME, ScoredPolicyStage
from rlhf_lab.evaluations.repeated_samples import Rows, by_prompt
from rlhf_lab.evaluations.reward_audit import audit_pairs, with_gold
from rlhf_lab.evaluations.settings import DesignReport
from rlhf_lab.rewards.graph import text_reward
from rlhf_lab.statistics.association import pooled_products, within_prompts
from rlhf_lab.statistics.best_of_n import best_of_n
from rlhf_lab.statistics.inference import clustered_mean
from rlhf_lab.statistics.rows import column
from rlhf_lab.training.run import Result, Run
from rlhf_lab.training.start import corpus_report

PRIMARY = ("gain", "proxy_gain", "gap", "accuracy", "spearman/gold", "gold_correlation/within")


class DesignAudit(ScoredPolicyStage):
    """Stage that measures the reward of the run; see metrics.py."""

    missing = "needs.design is not set; algorithm=design_report measures that reward (or reward=gold)"
    settings: DesignReport

    def finish(self) -> Result:
        run = self.run
        samples = self.settings.samples
        self.evaluator.evaluate(REFERENCE_NAME, self.model, samples)
        responses = by_prompt(self.evaluator.rows(REFERENCE_NAME))
        pairs = with_gold(run.corpus.test[: run.config.evaluation.pairs], run.corpus.oracle)
        metrics = {
            **audit_pairs(text_reward(self.reward, run.corpus), pairs),
            **choice_metrics(responses, self.settings.choose_from),
        }
        primary = [name for name in PRIMARY if name in metrics]
        return Result(self.evaluator.policies, {**metrics, **corpus_report(run.corpus, self.encoder)}, primary)


def choice_metrics(prompts: list[Rows], n: int) -> dict[str, Any]:
    """Return the gain of selecting the best of n by proxy, and the correlations of proxy and gold.

    Args:
        prompts: responses to each of P prompts, with `gold` and `proxy`.
    """
    gold = [column(responses, "gold") for responses in prompts]
    proxy = [column(responses, "proxy") for responses in prompts]
    gold_gain_P = _gains(proxy, gold, n)
    proxy_gain_P = _gains(proxy, proxy, n)
    clusters = np.arange(len(prompts))
    prompt_N = np.repeat(clusters, [len(responses) for responses in prompts])
    columns = {"proxy": np.concatenate(proxy), "gold": np.concatenate(gold)}
    return {
        "gain": clustered_mean(gold_gain_P, clusters),
        "proxy_gain": clustered_mean(proxy_gain_P, clusters),
        "gap": clustered_mean(proxy_gain_P - gold_gain_P, clusters),
        "gold_sd": float(np.nanstd(columns["gold"])),
        "spearman/gold": pooled_products(columns, prompt_N, ranks=True).correlation("proxy", "gold"),
        "gold_correlation/within": within_prompts(columns, prompt_N).correlation("proxy", "gold"),
    }


def _gains(proxy: list[FloatArray], values: list[FloatArray], n: int) -> FloatArray:
    """Return the value of the best of n by proxy minus the mean value, per prompt, in sd of all values, (P,)."""
    sd = max(float(np.nanstd(np.concatenate(values))), 1e-9)  # a constant reward has sd 0 and no gain
    best = [best_of_n(proxy_N, values_N, [1, n]) for proxy_N, values_N in zip(proxy, values, strict=True)]
    return np.diff(np.stack(best), axis=1)[:, 0] / sd


def build(settings: DesignReport, run: Run) -> DesignAudit:
    return DesignAudit(settings, run)
