"""Stage that records the successes of an agent with a language model as conversations for another model.

The turns are written in the form of the world's demonstrations, so that the rows of all teachers look alike:

    Thought: the capital is needed
    Action: search[ tal vor ; capital ]

A turn with several calls becomes several turns. Turns that neither call a tool nor answer are left out, as are the
messages that say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rlhf_lab.core.episodes import Task
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.tools import Call, Tool
from rlhf_lab.data.text_calls import ACTION, ANSWER, THOUGHT, read_move
from rlhf_lab.data.transcript import render_prompt, response_text, to_conversation
from rlhf_lab.packs.agents.harness.agent import Assignment
from rlhf_lab.packs.agents.harness.models import open_agents
from rlhf_lab.packs.agents.harness.scorers import score
from rlhf_lab.packs.agents.synthesis.settings import TeacherTrajectories
from rlhf_lab.packs.agents.synthesis.trajectories import StoredAttempt, TrajectoryMaker
from rlhf_lab.packs.agents.tools.demonstrations import DemonstratedTurn, messages_of
from rlhf_lab.packs.agents.tools.roles import NOTHING, spaced_call
from rlhf_lab.packs.agents.tools.task_set import TaskSet
from rlhf_lab.packs.agents.trajectory import AgentTrajectory, ModelTurn
from rlhf_lab.statistics.inference import clustered_mean
from rlhf_lab.training.run import Result, Run


class TeacherTrajectoryMaker(TrajectoryMaker):
    """Stage `teacher_trajectories`."""

    def __init__(self, settings: TeacherTrajectories, run: Run):
        super().__init__(settings, run, f"agent with {run.config.agent.llm}")
        if not isinstance(self.environment, TaskSet):
            raise ConfigError(f"data={run.corpus.name} has no tasks with tools; use data=tools")
        self.task_set = self.environment
        (self.agent,) = open_agents(run).values()
        self.costs_usd: list[float] = []

    def finish(self) -> Result:
        result = super().finish()
        # Attempts of an interrupted run have no record of their cost; the ledger of the service has the total.
        if any(self.costs_usd):
            costs = np.array(self.costs_usd)
            result.metrics["agent_cost_usd"] = clustered_mean(costs, np.arange(len(costs)))
        return result

    def attempt(self, tasks: Sequence[Task], chunk: int) -> list[list[StoredAttempt]]:
        """Return the attempts of the teacher at each task, scored as in agent_bench."""
        size = self.settings.attempts
        assignments = []
        for number, task in enumerate(tasks):
            for draw in range(size):
                # A busy tool depends on the seed, so the attempts at a task differ in more than the sampled text.
                seed = self.run.seed(f"teacher_trajectories/tools/{chunk}/{number}", draw)
                tools = tuple(self.task_set.tools(task, seed))
                assignments.append(Assignment(task, tools, draw))
        trajectories = self.agent.run_many(assignments, lambda position, trajectory: None)
        self.costs_usd += [trajectory.cost_usd for trajectory in trajectories]
        attempts = [
            stored_attempt(assignment.task, assignment.tools, trajectory, score(trajectory, assignment.task)["success"])
            for assignment, trajectory in zip(assignments, trajectories, strict=True)
        ]
        return [attempts[start : start + size] for start in range(0, len(attempts), size)]


def stored_attempt(task: Task, tools: Sequence[Tool], trajectory: AgentTrajectory, success: float) -> StoredAttempt:
    """Return an attempt of a teacher in the form of a row.

    A right answer is written as the world states it: the teacher's "The Rum Tir." is right in agent_bench, but the
    environment that trains and tests the student compares words. An attempt without an answer counts as failed, and
    ends with an empty answer.

    Args:
        tools: tools of the attempt.
        success: 1 if the answer is right, else 0.
    """
    messages, definitions = to_conversation(task.prompt)
    if success:
        trajectory = replace(trajectory, answer=str(task.metadata["answer"]))
    turns = written_turns(trajectory, tools)
    *earlier, last = messages_of(turns)
    prompt = render_prompt([*messages, *earlier], definitions)
    return StoredAttempt(prompt, response_text(last), success, len(turns))


def written_turns(trajectory: AgentTrajectory, tools: Sequence[Tool]) -> list[DemonstratedTurn]:
    """Return the turns of a trajectory in the form of demonstrations: a thought, then a call or the answer. The last
    turn has the answer.
    """
    names_of = {tool.name: tool.argument_names for tool in tools}
    turns = []
    for turn in trajectory.turns:
        thought = thought_of(turn)
        for call in turn.calls:
            action = spaced_call(call.name, _values_in_order(call, names_of.get(call.name, ())))
            turns.append(DemonstratedTurn("", f"{THOUGHT} {thought}\n{ACTION} {action}", call))
    final = NOTHING
    # An attempt that was cut off ends with a call, whose thought is written above.
    if trajectory.turns and not trajectory.turns[-1].calls:
        final = thought_of(trajectory.turns[-1])
    answer = " ".join((trajectory.answer or "").split())
    turns.append(DemonstratedTurn("", f"{THOUGHT} {final}\n{ANSWER} {answer}"))
    return turns


def _values_in_order(call: Call, names: Sequence[str]) -> list[str]:
    """Return the values of a call in the order of the tool's arguments, then those of unknown arguments.

    A call in the text form has only values, in this order. A native call names its arguments, in any order.
    """
    known = [name for name in names if name in call.arguments]
    unknown = [name for name in call.arguments if name not in names]
    return [str(call.arguments[name]) for name in (*known, *unknown)]


def thought_of(turn: ModelTurn) -> str:
    """Return the thought of a turn on one line: its text before the call or the answer."""
    move = read_move(turn.text, {})
    # A model that calls tools natively writes no `Action:`, so its entire text is the thought.
    words = move.thought.removeprefix(THOUGHT).split()
    return " ".join(words) or NOTHING


def build(settings: TeacherTrajectories, run: Run) -> TeacherTrajectoryMaker:
    return TeacherTrajectoryMaker(settings, run)
