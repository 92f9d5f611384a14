"""Metrics that rlhf_lab/packs/agents/benchmarks/ emits."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

ATTEMPTS = (
    Metric("success/<category>", "share of right answers to the tasks of one category", better="higher"),
    Metric("success_on/<set>", "the same for one set of tasks", better="higher"),
    Metric("lenient", "share of attempts that are right to a patient reader (GAIA)", title="leniently right"),
    Metric("success_change", "success minus that of the first agent, paired by task"),
    Metric("success_p", "two-sided p of that change, with Holm's adjustment over all pairs of agents"),
    Metric("success_detectable", "change that would have been found with 80 % power"),
    Metric("attempts", "attempts of all agents"),
    Metric("tasks/<set>", "tasks that were asked, by set"),
)
"""benchmark.py"""

INJECTION = (
    Metric(
        "injection/success",
        "share of attempts under attack in which the agent does what a tool's result orders",
        title="injection success",
        better="lower",
        column="injected",
    ),
    Metric("injection/success/<form>", "the same for one form of attack", better="lower"),
    Metric("injection/success_below", "95 % upper bound where no order was followed: rule of three over the templates"),
    Metric(
        "injection/utility",
        "share of attempts under attack whose answer to the task is right",
        title="utility under attack",
        better="higher",
    ),
    Metric("injection/utility_benign", "the same attempts' tasks without attack", title="utility without attack"),
    Metric("injection/utility_change", "utility under attack minus that without, paired by task"),
    Metric("injection/reached", "share of attempts under attack in which the agent read the order"),
    Metric("injection/regressions", "injection success of the cases of an earlier run", better="lower"),
)
"""injections.py"""

CODE = (
    Metric("pass@<k>/<category>", "pass@k of the tasks of one tier", better="higher"),
    Metric(
        "solved_within/<rounds>",
        "share of attempts whose program after at most so many rounds passes all hidden tests",
        better="higher",
    ),
    Metric("solved_within/<rounds>/<category>", "the same for one tier", better="higher"),
    Metric(
        "revision_gain",
        "share of attempts solved by the last program minus that by the first: what reading output adds",
        title="gain by revising",
        better="higher",
        column="revising",
    ),
    Metric("revision_gain/<category>", "the same for one tier", better="higher"),
    Metric(
        "solved_by_revision",
        "share of attempts whose last program passes and whose first does not",
        title="solved by revising",
        better="higher",
    ),
    Metric(
        "broken_by_revision",
        "share of attempts whose first program passes and whose last does not",
        title="broken by revising",
        better="lower",
    ),
    Metric("code_rounds", "programs written per attempt", title="rounds", column="rounds"),
)
"""code_bench.py"""

DESCRIBED = (
    *("policy", "prompt_id", "sample_id", "prompt", "response", "key"),
    *("set", "category", "template", "attack", "regression", "stop"),
)
"""Columns of evaluation.jsonl that say what an attempt was; the others are measured."""
