"""Best-of-n sampling, without training: gains and losses of selecting by a learned reward, with the KL in closed form.

One set of N responses per held-out prompt is used for the policy itself and for every n. The mean of best of n is over
all subsets of n among the N (`statistics/best_of_n.py`), so all n are compared on the same responses.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlhf_lab.core.types import FloatArray
from rlhf_lab.evaluations.evaluator import REFERENCE_NAME, SAMPLE_KEYS, ScoredPolicyStage
from rlhf_lab.evaluations.repeated_samples import Rows, by_prompt, rounded
from rlhf_lab.evaluations.settings import BestOfN
from rlhf_lab.statistics.best_of_n import best_of_n, best_of_n_kl
from rlhf_lab.statistics.estimates import Estimate, win_or_tie
from rlhf_lab.statistics.inference import clustered_mean, ratio_of_means
from rlhf_lab.statistics.rows import column
from rlhf_lab.training.run import Result, Run
from rlhf_lab.training.start import corpus_report


class BestOfNSampling(ScoredPolicyStage):
    """Stage that evaluates the policy, then best of 2, 4, 8, …, N.

    A row of best of n is the response selected among the first n of a prompt.
    """

    missing = "needs.reward is not set; algorithm=best_of_n selects by it (or use reward=gold)"
    settings: BestOfN

    def finish(self) -> Result:
        evaluator = self.evaluator
        samples = self.settings.samples
        evaluator.evaluate(REFERENCE_NAME, self.model, samples)
        sizes = choice_sizes(samples)
        missing = [n for n in sizes if not evaluator.find(f"best of {n}")]  # not yet logged by an earlier attempt
        if missing:
            responses = by_prompt(evaluator.rows(REFERENCE_NAME))
            # New responses of the same policy: `win_rate` must not compare a response with itself.
            opponents = by_prompt(evaluator.sample("opponents of best of n", self.model))
            expected = expected_values(responses, opponents, [1, *sizes])
            for n in missing:
                position = 1 + sizes.index(n)  # position 0 is n = 1, the policy itself
                values = {key: values_PS[:, position] for key, values_PS in expected.items()}
                metrics = estimates(n, values, proxy_P=expected["proxy"][:, 0])
                evaluator.add(f"best of {n}", choices(responses, n, values), metrics)
        return Result(evaluator.policies, corpus_report(self.run.corpus, self.encoder))


def choice_sizes(samples: int) -> list[int]:
    """Return 2, 4, 8, … below `samples`, and `samples` itself."""
    powers = [2**exponent for exponent in range(1, samples.bit_length())]
    return [*(n for n in powers if n < samples), samples]


def expected_values(prompts: list[Rows], opponents: list[Rows], sizes: Sequence[int]) -> dict[str, FloatArray]:
    """Return metric → expected value of best of n at each prompt, (P, len(sizes)); NaN if too few are scored.

    Args:
        prompts: the N responses to each of P prompts.
        opponents: other responses of the same policy to the same prompts, for `win_rate`.
    """
    expected: dict[str, FloatArray] = {}
    # The gold reward decides wins at every prompt if it is known, as in the evaluator.
    judge = "gold" if any(row["gold"] is not None for rows in prompts for row in rows) else "proxy"
    for key in (*SAMPLE_KEYS, "win_rate"):
        if key == "kl":  # the KL of the selection is not that of the selected response: `estimates` has its formula
            continue
        if key == "win_rate":
            values = [_wins(rows, others, judge) for rows, others in zip(prompts, opponents, strict=True)]
        else:
            values = [column(rows, key) for rows in prompts]
        if all(np.isnan(values_N).all() for values_N in values):
            continue
        expected[key] = np.stack(
            [best_of_n(column(rows, "proxy"), values_N, sizes) for rows, values_N in zip(prompts, values, strict=True)]
        )
    return expected


def _wins(rows: Rows, opponents: Rows, judge: str) -> FloatArray:
    """Return the fraction of opponents' responses that each response beats by a metric, (N,); ties count half."""
    lead_NO = column(rows, judge)[:, None] - column(opponents, judge)
    return win_or_tie(lead_NO).mean(axis=1)


def choices(prompts: list[Rows], n: int, values: dict[str, FloatArray]) -> Rows:
    """Return one row per prompt: the selection among its first n responses, with the means over all subsets."""
    kl = round(best_of_n_kl(n), 6)
    rows = []
    for prompt, responses in enumerate(prompts):
        # best of n as it would be used: the first n samples, without unscored ones
        scored = [row for row in responses[:n] if row["proxy"] is not None]
        if scored:
            best = max(scored, key=lambda row: row["proxy"])
            expected = {f"expected_{key}": rounded(values_P[prompt]) for key, values_P in values.items()}
            rows.append({**best, "policy": f"best of {n}", "kl": kl, **expected})
    return rows


def estimates(n: int, values: dict[str, FloatArray], proxy_P: FloatArray) -> dict[str, Estimate]:
    """Return means over prompts. `proxy_P` is the policy's own proxy reward, the baseline of the gain per nat."""
    kl = best_of_n_kl(n)
    prompts = np.arange(len(proxy_P))
    metrics = {key: clustered_mean(values_P, prompts) for key, values_P in values.items()}
    # the KL is a formula in n, so its interval has no width
    metrics["kl"] = Estimate(kl, kl, kl, len(prompts), len(prompts))
    gain_P = values["proxy"] - proxy_P
    metrics["reward_per_nat"] = ratio_of_means(gain_P, np.full(len(prompts), kl), prompts)
    return metrics


def build(settings: BestOfN, run: Run) -> BestOfNSampling:
    return BestOfNSampling(settings, run)
