"""Metrics that rlhf_lab/evaluations/agents/ emits."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

ATTEMPTS = (
    Metric(
        "success",
        "share of attempts whose answer is right",
        title="success",
        better="higher",
        column="success",
    ),
    Metric("success/<category>", "the same for the tasks of one category", better="higher"),
    Metric("success_on/<set>", "the same for one set of tasks", better="higher"),
    Metric(
        "answer_score",
        "score of the answer, 0 to 1, by the scorer of the task: exact, numeric, token F1 or graceful refusal",
        title="answer score",
        better="higher",
    ),
    Metric(
        "sequence_score",
        "score of the way to it, 0 to 1: the expected calls, in their order (LCS-F1)",
        title="sequence score",
        better="higher",
        column="sequence",
    ),
    Metric(
        "wrong_process",
        "share of attempts with the right answer and another way than one that leads there",
        title="right by a wrong process",
        better="lower",
        column="wrong process",
    ),
    Metric("zero_calls", "share of attempts that call no tool", title="no call", column="no call"),
    Metric("no_answer", "share of attempts without an answer", title="no answer", better="lower"),
    Metric("calls", "calls of tools per attempt", title="calls", column="calls"),
    Metric("failed_calls", "calls that gave nothing, per attempt", title="failed calls"),
    Metric("turns", "turns of the model per attempt, over all parts of the agent", title="turns"),
    Metric("input_tokens", "tokens read per attempt", title="tokens in", column="tokens in"),
    Metric("output_tokens", "tokens written per attempt", title="tokens out", column="tokens out"),
    Metric("cost_usd", "cost per attempt, as it was paid; 0 where answers were stored", title="cost", unit="$"),
    Metric("wall_s", "seconds per attempt, the time shared with others included", title="time", unit="s"),
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
