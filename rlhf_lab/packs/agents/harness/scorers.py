"""Scores of an attempt at a task: its answer and its calls are scored separately.

An agent can be right by luck, and wrong after all the right calls. A single score would hide both cases.
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
    """Return all scores of one attempt at a task whose metadata is a `ToolTaskRow`, by the names in `metrics.py`."""
    metadata = task.metadata
    made = trajectory.calls
    may_repeat = _may_be_repeated(made, metadata)
    answer_score = score_answer(trajectory.answer, metadata, known=may_repeat)
    is_right = answer_score >= RIGHT
    calls = score_calls(made, metadata["calls"], any_order=metadata.get("any_order", False))
    needs_calls = any(not call.get("optional") for call in metadata["calls"])
    # A right answer without the needed calls, or with tools in a wrong order, was not derived from the tools.
    is_wrong_process = needs_calls and (calls.sequence < 1 or calls.matched == 0)
    refused = trajectory.answer is not None and is_refusal(trajectory.answer)
    has_answer = metadata["scorer"] != "refusal"
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
        "refused_wrongly": float(refused and has_answer and not is_right),
        **effort(trajectory),
    }


def effort(trajectory: AgentTrajectory) -> dict[str, float]:
    """Return what an attempt used: turns, calls, tokens, cost and time. These metrics apply to any benchmark."""
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
        "agent_latency_s": float(sum(turn.latency_s for turn in trajectory.turns)),
        "agent_wall_s": float(trajectory.wall_s),
    }


def _may_be_repeated(calls_made: Sequence[Call], metadata: Mapping[str, Any]) -> list[str]:
    """Return the tools' output that a refusal may repeat: every failure, and the results of expected calls.

    The result of any other call is excluded: it is not the requested value, so repeating it counts as inventing.
    """
    results = []
    for call in calls_made:
        is_expected = any(is_same(call, target) for target in metadata["calls"])
        if call.failed or is_expected:
            results.append(call.result)
    return results
