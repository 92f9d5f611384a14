"""Metrics that rlhf_lab/packs/agents/harness/ emits."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

ATTEMPTS = (
    Metric(
        "answer_score",
        "correctness of the answer, from 0 to 1, by the task's scorer",
        title="answer score",
        better="higher",
    ),
    Metric("success", "fraction of attempts whose answer is right", title="success", better="higher", column="success"),
    Metric(
        "sequence_score",
        "F1 of the longest common subsequence of the called tools and the needed tools",
        title="sequence score",
        better="higher",
        column="sequence",
    ),
    Metric(
        "calls_f1",
        "F1 of executed and needed calls, paired one to one by tool and arguments",
        title="calls F1",
        better="higher",
    ),
    Metric(
        "arguments_score",
        "fraction of the needed calls' arguments that the attempt passed, in the best one-to-one pairing",
        title="arguments",
        better="higher",
    ),
    Metric(
        "right_by_wrong_process",
        "fraction of attempts with a right answer but wrong tools, a wrong order of tools, or no needed call",
        title="right by a wrong process",
        better="lower",
        column="wrong process",
    ),
    Metric(
        "lucky_guess",
        "fraction of attempts whose answer is right without any call though the task needs some",
        title="lucky guesses",
        better="lower",
    ),
    Metric(
        "refused_wrongly",
        "fraction of attempts that refuse a task which has an answer",
        title="wrong refusals",
        better="lower",
    ),
    Metric(
        "agent_errors",
        "fraction of attempts that fail because of an error of the agent itself; they have no answer",
        title="errors of the agent",
        better="lower",
    ),
    # calls and answers
    Metric("no_answer", "fraction of attempts that finish without an answer", title="no answer", better="lower"),
    Metric("extra_calls", "calls per attempt that match no needed call", title="extra calls", better="lower"),
    Metric("retried_calls", "calls per attempt that found a tool busy and were repeated", title="retried calls"),
    Metric("zero_calls", "fraction of attempts that call no tool", title="no call", column="no call"),
    # effort: calls, turns, tokens, cost and time
    Metric("tool_calls", "calls of tools per attempt", title="tool calls", column="calls"),
    Metric("failed_calls", "calls per attempt that returned no result", title="failed calls"),
    Metric("model_turns", "turns of the model per attempt", title="turns of the model"),
    Metric("agent_input_tokens", "tokens that the model read per attempt", title="tokens read", better="lower"),
    Metric("agent_output_tokens", "tokens that the model wrote per attempt", title="tokens written", better="lower"),
    Metric(
        "agent_cost_usd",
        "cost of an attempt; answers from the store count with their original cost",
        title="cost of an attempt",
        unit="USD",
        better="lower",
    ),
    Metric(
        "agent_latency_s", "time that the model took for the turns of an attempt", title="time of the model", unit="s"
    ),
    Metric("agent_wall_s", "time from an attempt's start to its end", title="time of an attempt", unit="s"),
)
"""Metrics of one attempt, computed in scorers.py."""
