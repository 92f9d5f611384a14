"""Measure the audit of training on stored responses: how often it raises a false alarm, and how soon a true one.

    python tests/campaign/audit_replays.py RUN --out docs/results/audit_replays.md

RUN is a completed run of `algorithm=compare` with several responses per prompt and the true reward (gold) of each. Its
first policy is the start policy. A replay is the audit of one training run whose policy does not change: in every
iteration it draws prompts and one response of each side, never a response twice, and gives the comparisons by gold to
the production e-process. Replays of one policy share its stored responses; the responses within a replay do not.

The claims below were written before the first replay.

1. The start policy against itself: at most 5 % of 1,000 replays raise an alarm in 59 iterations of 8 comparisons.
2. Policies with P(win) + P(tie)/2 ≥ ½ by gold of all stored responses: the upper 95 % bound on the fraction of replays
   with an alarm is at most 7 %, with at least 400 replays.
3. Policies whose gold is lower by at least .7 standard deviations of gold over start responses: at least 90 % of
   replays raise an alarm within 150 comparisons.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parents[level]) for level in range(3))

import numpy as np
import pandas as pd
from scipy import stats

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.types import FloatArray
from rlhf_lab.results.rundir import read_run
from rlhf_lab.stages.manifest import git_sha
from rlhf_lab.statistics.eprocess import EProcess
from rlhf_lab.statistics.estimates import win_or_tie

ALPHA = 0.05
LABELS = 8
"""Comparisons per iteration."""
ITERATIONS = 59
NULL_REPLAYS = 1000
HEALTHY_REPLAYS = 400
"""Minimum number of replays of all healthy policies together."""
POLICY_REPLAYS = 200
BUDGET = 150
"""Maximum number of comparisons until an alarm that counts as in time."""
FALL = 0.7
"""Fall of gold, in standard deviations over start responses, from which an alarm is claimed."""


@dataclass(frozen=True)
class PolicyReplays:
    """Replays of one policy.

    Attributes:
        name: name of the policy.
        fall: fall of mean gold against the start policy, in standard deviations of gold over start responses.
        win_rate: P(win) + P(tie)/2 against the start policy on the same prompt, over all stored responses.
        alarms_R: number of comparisons at the alarm of each replay, (replays,); inf without an alarm.
    """

    name: str
    fall: float
    win_rate: float
    alarms_R: FloatArray

    @property
    def is_healthy(self) -> bool:
        return self.win_rate >= 0.5

    def within(self, labels: float) -> int:
        """Return the number of replays with an alarm after at most `labels` comparisons."""
        return int((np.isfinite(self.alarms_R) & (self.alarms_R <= labels)).sum())


def gold_by_policy(run: Path) -> dict[str, FloatArray]:
    """Return policy → gold of its responses, (prompts, samples), the start policy first.

    Raises:
        DataError: gold is missing, or the policies have different prompts or too few responses.
    """
    frame = read_run(run).evaluation
    if "gold" not in frame or frame["gold"].isna().any():
        raise DataError(f"{run}: every row of evaluation.jsonl needs gold; compare policies in a simulated world")
    golds: dict[str, FloatArray] = {}
    for policy in frame["policy"].unique():
        rows: pd.DataFrame = frame[frame["policy"] == policy]
        golds[str(policy)] = rows.pivot(index="prompt_id", columns="sample_id", values="gold").to_numpy(dtype=float)
    shapes = {gold_PS.shape for gold_PS in golds.values()}
    needed = 2 * LABELS * ITERATIONS
    if len(golds) < 2 or len(shapes) > 1 or np.prod(next(iter(shapes))) < needed:
        raise DataError(
            f"{run} has the shapes (prompts, samples) {sorted(shapes)}; two or more policies with the same prompts and "
            f"at least {needed} responses each are needed: evaluation.prompts=512 evaluation.samples_per_prompt=8"
        )
    return golds


def replay(policy_PS: FloatArray, start_PS: FloatArray, rng: np.random.Generator) -> float:
    """Return the number of comparisons at the alarm of one replay; inf without an alarm.

    Args:
        policy_PS, start_PS: gold of the responses, (prompts, samples). The same array for both compares the start
            policy with itself, on two different responses.
    """
    prompts, samples = start_PS.shape
    is_null = policy_PS is start_PS
    # the order in which the responses of a prompt are used up
    ours_PS = np.argsort(rng.random((prompts, samples)), axis=1)
    theirs_PS = ours_PS[:, ::-1] if is_null else np.argsort(rng.random((prompts, samples)), axis=1)
    limit = samples // 2 if is_null else samples
    used_P = np.zeros(prompts, dtype=int)
    process = EProcess()
    for iteration in range(ITERATIONS):
        scores = []
        for _ in range(LABELS):
            prompt = int(rng.choice(np.flatnonzero(used_P < limit)))
            k = used_P[prompt]
            used_P[prompt] += 1
            ours, theirs = policy_PS[prompt, ours_PS[prompt, k]], start_PS[prompt, theirs_PS[prompt, k]]
            scores.append(float(win_or_tie(ours - theirs)))
        process.update(scores)
        if process.largest >= 1 / ALPHA:
            return float((iteration + 1) * LABELS)
    return np.inf


def win_rate(policy_PS: FloatArray, start_PS: FloatArray) -> float:
    """Return P(win) + P(tie)/2 of every response of a policy against every start response to the same prompt."""
    return float(win_or_tie(policy_PS[:, :, None] - start_PS[:, None, :]).mean())


def replays(name: str, policy_PS: FloatArray, start_PS: FloatArray, count: int, seed: int) -> PolicyReplays:
    """Return `count` replays of one policy."""
    fall = (start_PS.mean() - policy_PS.mean()) / start_PS.std(ddof=1)
    rng = np.random.default_rng(seed)
    alarms_R = np.array([replay(policy_PS, start_PS, rng) for _ in range(count)])
    return PolicyReplays(name, float(fall), win_rate(policy_PS, start_PS), alarms_R)


def upper_bound(alarms: int, count: int) -> float:
    """Return the upper end of the one-sided 95 % Clopper-Pearson interval of a fraction."""
    return 1.0 if alarms == count else float(stats.beta.ppf(0.95, alarms + 1, count - alarms))


def measure(golds: dict[str, FloatArray]) -> list[PolicyReplays]:
    """Return the replays of the start policy against itself, and of every other policy."""
    start, *others = golds
    start_PS = golds[start]
    # healthy policies share the replays that claim 2 asks for
    healthy = [name for name in others if win_rate(golds[name], start_PS) >= 0.5]
    per_healthy = max(POLICY_REPLAYS, -(-HEALTHY_REPLAYS // max(1, len(healthy))))  # rounded up
    found = [replays(start, start_PS, start_PS, NULL_REPLAYS, seed=0)]
    for seed, name in enumerate(others, start=1):
        count = per_healthy if name in healthy else POLICY_REPLAYS
        found.append(replays(name, golds[name], start_PS, count, seed))
    return found


def claims(found: Sequence[PolicyReplays]) -> list[tuple[str, str, bool | None]]:
    """Return (claim, what was found, confirmed) of each claim; None if no policy tests it."""
    null, *others = found
    false_alarms = null.within(np.inf)
    rows: list[tuple[str, str, bool | None]] = [
        (
            f"the start policy against itself raises at most {ALPHA:.0%} false alarms",
            f"{false_alarms} of {len(null.alarms_R)} replays, {false_alarms / len(null.alarms_R):.1%}",
            false_alarms <= ALPHA * len(null.alarms_R),
        )
    ]
    healthy = [policy for policy in others if policy.is_healthy]
    alarms, count = sum(policy.within(np.inf) for policy in healthy), sum(len(policy.alarms_R) for policy in healthy)
    claim = "the upper bound on false alarms of healthy policies is at most 7 %"
    if healthy:
        bound = upper_bound(alarms, count)
        rows.append(
            (claim, f"{alarms} of {count} replays of {len(healthy)} policies, at most {bound:.1%}", bound <= 0.07)
        )
    else:
        rows.append((claim, "no policy is healthy", None))
    fallen = [policy for policy in others if policy.fall >= FALL]
    claim = f"at least 90 % of replays raise an alarm within {BUDGET} comparisons where gold fell by {FALL} sd or more"
    if fallen:
        in_time, count = sum(policy.within(BUDGET) for policy in fallen), sum(len(policy.alarms_R) for policy in fallen)
        worst = min(policy.within(BUDGET) / len(policy.alarms_R) for policy in fallen)
        text = f"{in_time} of {count} replays of {len(fallen)} policies, {in_time / count:.1%}; lowest {worst:.1%}"
        rows.append((claim, text, in_time >= 0.9 * count))
    else:
        rows.append((claim, "gold of no policy fell so far", None))
    return rows


def render(found: Sequence[PolicyReplays], shape: tuple[int, ...], about: str = "") -> str:
    """Return the page.

    Args:
        shape: number of prompts, and of responses per prompt and policy.
        about: sentence that says where the policies come from.
    """
    words = {True: "confirmed", False: "not confirmed", None: "not tested"}
    lines = [
        "# How often is the alarm of audited training false, and how soon does it come?",
        "",
        f"Replays of `reward.audit` on stored responses: {shape[0]} prompts with {shape[1]} responses per policy, "
        f"{LABELS} comparisons by gold per iteration, {ITERATIONS} iterations, α = {ALPHA}. A replay uses no response "
        "twice. The policy of a replay does not change, so these numbers hold for a policy that is as good or as bad "
        "from its first iteration on. The claims were written before the first replay.",
        "",
        f"Command: `python tests/campaign/audit_replays.py RUN` (commit {str(git_sha())[:9]}). {about}".rstrip(),
        "",
        "| claim | found | verdict |",
        "| --- | --- | --- |",
        *[f"| {claim} | {text} | {words[confirmed]} |" for claim, text, confirmed in claims(found)],
        "",
        "| policy | fall of gold, sd | P(win) + P(tie)/2 | replays | alarms | within "
        f"{BUDGET} comparisons | median comparisons |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    null, *others = found
    for policy in [null, *sorted(others, key=lambda policy: policy.fall)]:
        count = len(policy.alarms_R)
        median = np.median(policy.alarms_R)
        name = f"{policy.name} against itself" if policy is null else policy.name
        cells = [
            name,
            f"{policy.fall:.2f}".replace("-", "−"),
            f"{policy.win_rate:.3f}",
            str(count),
            f"{policy.within(np.inf) / count:.1%}",
            f"{policy.within(BUDGET) / count:.1%}",
            f"{median:.0f}" if np.isfinite(median) else "–",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path, help="completed run of algorithm=compare in a simulated world")
    parser.add_argument("--out", type=Path, help="file of the page; printed if it is not given")
    parser.add_argument("--about", default="", help="sentence for the page that says where the policies come from")
    options = parser.parse_args(arguments)
    try:
        golds = gold_by_policy(options.run)
    except DataError as error:
        print(error, file=sys.stderr)
        return 2
    shape = next(iter(golds.values())).shape
    text = render(measure(golds), shape, options.about)
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
