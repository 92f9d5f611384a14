"""Best-of-n sampling, without training: what choosing by a learned reward gains and loses, at a KL in closed form.

One set of N replies per held-out prompt serves the policy itself and every n: the mean of best of n is over all subsets
of n among the N (`statistics/best_of_n.py`), so all n are compared on the same replies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlhf_lab.core.types import FloatArray
from rlhf_lab.evaluations.evaluator import REFERENCE_NAME, SAMPLE_KEYS, scored_policy
from rlhf_lab.evaluations.repeated_samples import Rows, by_prompt
from rlhf_lab.evaluations.settings import BestOfN
from rlhf_lab.statistics.best_of_n import best_of_n, best_of_n_kl
from rlhf_lab.statistics.estimates import Estimate, floats
from rlhf_lab.statistics.inference import clustered_mean, ratio_of_means
from rlhf_lab.training.run import Result, Run
from rlhf_lab.training.start import corpus_report


class BestOfNSampling:
    """The policy, then best of 2, 4, 8, …, N. A row of best of n is the reply chosen among the first n of a prompt."""

    def __init__(self, settings: BestOfN, run: Run):
        self.settings, self.run = settings, run
        missing = "needs.reward is not set; algorithm=best_of_n chooses by it (or use reward=gold)"
        scored = scored_policy(run, missing)
        self.model, self.encoder, self.evaluator = scored.model, scored.encoder, scored.evaluator

    def finish(self) -> Result:
        """Evaluate the policy on N replies per prompt, then every n on the same replies."""
        evaluator, samples = self.evaluator, self.settings.samples
        evaluator.evaluate(REFERENCE_NAME, self.model, samples)
        sizes = choice_sizes(samples)
        missing = [n for n in sizes if not evaluator.find(f"best of {n}")]  # not yet logged by an earlier attempt
        if missing:
            replies = by_prompt(evaluator.rows(REFERENCE_NAME))
            # Fresh replies of the same policy: `win_rate` must not compare a reply with itself.
            opponents = by_prompt(evaluator.sample("opponents of best of n", self.model))
            expected = expected_values(replies, opponents, [1, *sizes])
            for n in missing:
                column = 1 + sizes.index(n)  # column 0 is n = 1, the policy itself
                values = {key: values_PS[:, column] for key, values_PS in expected.items()}
                metrics = estimates(n, values, proxy_P=expected["proxy"][:, 0])
                evaluator.add(f"best of {n}", choices(replies, n, values), metrics)
        return Result(evaluator.policies, corpus_report(self.run.corpus, self.encoder))


def choice_sizes(samples: int) -> list[int]:
    """2, 4, 8, … and at last `samples` itself."""
    powers = [2**exponent for exponent in range(1, samples.bit_length())]
    return [*(n for n in powers if n < samples), samples]


def expected_values(prompts: list[Rows], opponents: list[Rows], sizes: Sequence[int]) -> dict[str, FloatArray]:
    """Per metric what best of n gets at each prompt, (P, len(sizes)); NaN where too few replies are scored.

    Args:
        prompts: the N replies to each of P prompts.
        opponents: other replies of the same policy to the same prompts; what `win_rate` is against.
    """
    expected: dict[str, FloatArray] = {}
    for key in (*SAMPLE_KEYS, "win_rate"):
        if key == "kl":  # the KL of a choice is not that of the chosen reply: `estimates` has its formula
            continue
        values = [_metric_of_replies(rows, others, key) for rows, others in zip(prompts, opponents, strict=True)]
        if all(np.isnan(values_N).all() for values_N in values):
            continue
        per_prompt = [
            best_of_n(_floats(rows, "proxy"), values_N, sizes) for rows, values_N in zip(prompts, values, strict=True)
        ]
        expected[key] = np.stack(per_prompt)
    return expected


def _metric_of_replies(rows: Rows, opponents: Rows, key: str) -> FloatArray:
    """One metric of each reply, (N,); `win_rate` is its share of wins over the opponents, by gold where it is known."""
    if key != "win_rate":
        return _floats(rows, key)
    judge = "gold" if any(row["gold"] is not None for row in rows) else "proxy"
    lead_NO = _floats(rows, judge)[:, None] - _floats(opponents, judge)
    return (np.sign(lead_NO) / 2 + 0.5).mean(axis=1)


def _floats(rows: Rows, key: str) -> FloatArray:
    return floats([row[key] for row in rows])


def choices(prompts: list[Rows], n: int, values: dict[str, FloatArray]) -> Rows:
    """One row per prompt: the choice among its first n replies, and as `expected_…` the mean over all choices."""
    kl = round(best_of_n_kl(n), 6)
    rows = []
    for prompt, replies in enumerate(prompts):
        scored = [row for row in replies[:n] if row["proxy"] is not None]
        if scored:
            best = max(scored, key=lambda row: row["proxy"])
            expected = {f"expected_{key}": _rounded(values_P[prompt]) for key, values_P in values.items()}
            rows.append({**best, "policy": f"best of {n}", "kl": kl, **expected})
    return rows


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else round(float(value), 6)


def estimates(n: int, values: dict[str, FloatArray], proxy_P: FloatArray) -> dict[str, Estimate]:
    """Means over prompts. `proxy_P` is the policy's own proxy, which the gain per nat starts from."""
    kl = best_of_n_kl(n)
    prompts = np.arange(len(proxy_P))
    metrics = {key: clustered_mean(values_P, prompts) for key, values_P in values.items()}
    metrics["kl"] = Estimate(kl, kl, kl, len(prompts), len(prompts))
    metrics["reward_per_nat"] = ratio_of_means(values["proxy"] - proxy_P, np.full(len(prompts), kl), prompts)
    return metrics


def build(settings: BestOfN, run: Run) -> BestOfNSampling:
    return BestOfNSampling(settings, run)
