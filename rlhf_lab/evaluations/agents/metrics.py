"""Metrics that rlhf_lab/evaluations/agents/ emits."""

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
