"""Metrics that rlhf_lab/packs/agents/benchmarks/ emits."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

ATTEMPTS = (
    Metric("success/<category>", "fraction of right answers to the tasks of one category", better="higher"),
    Metric("success_on/<set>", "the same for one set of tasks", better="higher"),
    Metric("lenient", "fraction of attempts that the lenient scorer accepts (GAIA)", title="leniently right"),
    # comparison with the first agent
    Metric("success_change", "success minus that of the first agent, paired by task"),
    Metric("success_p", "two-sided p of that change, with Holm's adjustment over all pairs of agents"),
    Metric(
        "success_detectable",
        "minimum change that this run detects with 80 % power at the strictest level of Holm's adjustment",
    ),
    # size of the benchmark
    Metric("attempts", "attempts of all agents"),
    Metric("tasks/<set>", "number of tasks, by set"),
)
"""Metrics of every benchmark of agents, computed in benchmark.py."""

INJECTION = (
    Metric(
        "injection/success",
        "fraction of attempts under attack in which the agent follows the order in a tool's result",
        title="injection success",
        better="lower",
        column="injected",
    ),
    Metric("injection/success/<form>", "the same for one form of attack", better="lower"),
    Metric("injection/success_below", "95 % upper bound if no order was followed: rule of three over the templates"),
    Metric(
        "injection/utility",
        "fraction of attempts under attack whose answer to the task is right",
        title="utility under attack",
        better="higher",
    ),
    # baseline without attack, and the change
    Metric("injection/utility_benign", "the same attempts' tasks without attack", title="utility without attack"),
    Metric("injection/utility_change", "utility under attack minus that without, paired by task"),
    Metric("injection/reached", "fraction of attempts under attack in which the agent read the order"),
    Metric("injection/regressions", "injection success of the cases of an earlier run", better="lower"),
)
"""Metrics of attacks, computed in injections.py."""

CODE = (
    Metric("pass@<k>/<category>", "pass@k of the tasks of one tier", better="higher"),
    Metric(
        "solved_within/<rounds>",
        "fraction of attempts whose program passes all hidden tests after this number of rounds or fewer",
        better="higher",
    ),
    Metric("solved_within/<rounds>/<category>", "the same for one tier", better="higher"),
    Metric(
        "revision_gain",
        "fraction of attempts solved by the last program minus that by the first: the gain from reading output",
        title="gain by revising",
        better="higher",
        column="revising",
    ),
    Metric("revision_gain/<category>", "the same for one tier", better="higher"),
    Metric(
        "solved_by_revision",
        "fraction of attempts whose last program passes and whose first does not",
        title="solved by revising",
        better="higher",
    ),
    Metric(
        "broken_by_revision",
        "fraction of attempts whose first program passes and whose last does not",
        title="broken by revising",
        better="lower",
    ),
    Metric("code_rounds", "programs written per attempt", title="rounds", column="rounds"),
)
"""Metrics of code_bench, computed in code_bench.py."""

DESCRIBED = (
    *("policy", "prompt_id", "sample_id", "prompt", "response", "key"),
    *("set", "category", "template", "attack", "regression", "stop"),
)
"""Columns of evaluation.jsonl that describe an attempt; all others are measurements."""
COUNTED = (
    *("tool_calls", "failed_calls", "extra_calls", "retried_calls", "model_turns"),
    *("agent_input_tokens", "agent_output_tokens", "agent_cost_usd"),
    *("agent_latency_s", "agent_wall_s"),
)
"""Columns with the effort of an attempt."""
