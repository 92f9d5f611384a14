"""What an attempt at a task is worth: its answer and its calls, scored apart.

An agent can be right by luck, and wrong after all the right calls: one number for both would hide that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_lab.core.episodes import Task
from rlhf_lab.core.tools import Call
from rlhf_lab.packs.agents.harness.answer_scores import RIGHT, is_refusal, score_answer
from rlhf_lab.packs.agents.harness.call_scores import is_same, score_calls
from rlhf_lab.packs.agents.trajectory import AgentTrajectory


def score(trajectory: AgentTrajectory, task: Task) -> dict[str, float]:
    """All scores of one attempt, by the names of `metrics.py`, of a task whose facts are `ToolTaskFacts`."""
    facts = task.facts
    made = trajectory.calls
    answer_score = score_answer(trajectory.answer, facts, known=_may_be_repeated(made, facts))
    is_right = answer_score >= RIGHT
    calls = score_calls(made, facts["calls"], any_order=facts.get("any_order", False))
    needs_calls = any(not call.get("optional") for call in facts["calls"])
    is_wrong_process = needs_calls and (calls.sequence < 1 or calls.matched == 0)
    refused = trajectory.answer is not None and is_refusal(trajectory.answer)
    return {
        "answer_score": answer_score,
        "success": float(is_right),
        "sequence_score": calls.sequence,
        "calls_f1": calls.matched_f1,
        "arguments_score": calls.arguments,
        "extra_calls": float(calls.extra),
        "retried_calls": float(calls.retries),
        "right_by_wrong_process": float(is_right and is_wrong_process),
        "lucky_guess": float(is_right and needs_calls and not made),
        "refused_wrongly": float(refused and facts["scorer"] != "refusal" and not is_right),
        **effort(trajectory),
    }


def effort(trajectory: AgentTrajectory) -> dict[str, float]:
    """What an attempt took, of any benchmark."""
    return {
        "agent_errors": float(trajectory.stop == "failed"),
        "no_answer": float(not (trajectory.answer or "").strip()),
        "zero_calls": float(not trajectory.calls),
        "tool_calls": float(len(trajectory.calls)),
        "failed_calls": float(sum(call.failed for call in trajectory.calls)),
        "model_turns": float(len(trajectory.turns)),
        "agent_input_tokens": float(trajectory.input_tokens),
        "agent_output_tokens": float(trajectory.output_tokens),
        "agent_cost_usd": float(trajectory.cost_usd),
        "agent_paid_usd": float(trajectory.paid_usd),
        "agent_latency_s": float(sum(turn.latency_s for turn in trajectory.turns)),
        "agent_wall_s": float(trajectory.wall_s),
    }


def _may_be_repeated(made: Sequence[Call], facts: Mapping[str, Any]) -> list[str]:
    """What the tools said of what is missing: every failure, and the results of calls that the task expects.

    A value that another call gave is not the one that was asked for.
    """
    expected = facts["calls"]
    return [call.result for call in made if call.failed or any(is_same(call, wanted) for wanted in expected)]
