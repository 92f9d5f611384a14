"""Agents of others: in threads, their calls recorded, their errors their own."""

from __future__ import annotations

import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from agent_support import assignment

from rlhf_lab.core.errors import BudgetExceeded, ConfigError
from rlhf_lab.core.tools import ToolError
from rlhf_lab.packs.agents.benchmarks.gaia import as_task
from rlhf_lab.packs.agents.gaia.mini import mini_questions
from rlhf_lab.packs.agents.gaia.questions import ANSWER_FORMAT
from rlhf_lab.packs.agents.harness.agent import Assignment
from rlhf_lab.packs.agents.harness.program import question_of
from rlhf_lab.packs.agents.harness.python import ThreadedAgent, load_agent
from rlhf_lab.packs.agents.harness.settings import PythonAgent
from rlhf_lab.packs.agents.tools.bench.task_sets import AgentBenchMini
from rlhf_lab.packs.agents.trajectory import AgentTrajectory

MINE = """
from helper import NAME

class Mine:
    def run(self, prompt, tools):
        search = {tool.name: tool for tool in tools}["search"]
        capital = search.run(entity="Velmora", relation="capital")
        return f"{NAME}: {search.run(entity=capital, relation='mayor')}"

class More(Mine):
    def __init__(self, depth=2, **settings):
        self.run = lambda prompt, tools, *, depth=1: super(More, self).run(prompt, tools)

def make():
    return More()

shared = Mine()
number = 3

class NoRun: ...
class Asks(Mine):
    def __init__(self, key): ...
def solve(prompt, tools): ...
class OneArgument:
    def run(self, prompt): ...
class Waits:
    async def run(self, prompt, tools): ...
class Breaks(Mine):
    def __init__(self):
        self.key = {}["MY_KEY"]
"""


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "helper.py").write_text("NAME = 'it'")
    return str(tmp_path / "mine.py")


def threaded(function, threads=4):
    """An agent whose `run` is the function of (prompt, tools)."""
    return ThreadedAgent(lambda: SimpleNamespace(run=function), {}, threads)


@pytest.mark.parametrize("name", ["Mine", "shared", "More", "make"])
def test_a_class_or_an_object_of_a_file_attempts_tasks(mine, name):
    settings = PythonAgent(path=f"{mine}:{name}")
    agent = ThreadedAgent(load_agent(settings), {}, 2)
    done = {}
    trajectories = agent.run_many([assignment(), assignment()], done.__setitem__)
    assert [trajectory.answer for trajectory in trajectories] == ["it: Tal", "it: Tal"]
    assert [call.result for call in trajectories[0].calls] == ["Ossin", "Tal"]
    assert trajectories == [done[0], done[1]]
    assert trajectories[0].turns[0].prompt == "Who is the mayor of the capital of Velmora?"


def test_an_agent_reads_the_instructions_of_a_task():
    """An answer to GAIA is scored by its form, which only the instructions state."""
    task = as_task(mini_questions()[0])
    (trajectory,) = threaded(lambda prompt, tools: prompt).run_many([Assignment(task, ())], lambda *_: None)
    assert trajectory.answer == f"{ANSWER_FORMAT}\n\n{question_of(task)}"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("number", "is of type int"),
        ("absent", "has no function absent"),
        ("NoRun", "NoRun has no method run; write def run(self, prompt, tools)"),
        ("Asks", "takes arguments, Asks(key); write a class or function without arguments"),
        ("solve", "takes arguments, solve(prompt, tools); write a class or function without arguments"),
        ("OneArgument", "OneArgument.run(prompt) cannot be called as run(prompt, tools)"),
        ("Waits", "Waits.run is async, but attempts run in threads"),
        ("Breaks", "Breaks() raised KeyError: 'MY_KEY' (mine.py, line "),
    ],
)
def test_what_would_fail_in_every_attempt_is_refused_before_the_first(mine, name, problem):
    with pytest.raises(ConfigError) as error:
        load_agent(PythonAgent(path=f"{mine}:{name}"))
    assert problem in str(error.value) and f"agent.programs.python.path={mine}:{name}" in str(error.value)


def test_a_path_names_a_file_and_an_object():
    with pytest.raises(ConfigError, match=r"is not of the form FILE\.py:NAME"):
        PythonAgent(path="mine")


def test_a_trajectory_is_taken_as_it_is_and_other_things_are_errors():
    own = AgentTrajectory("x", stop="truncated")
    (trajectory,) = threaded(lambda prompt, tools: own).run_many([assignment()], lambda *_: None)
    assert (trajectory.answer, trajectory.stop) == ("x", "truncated")
    assert trajectory.wall_s > 0
    (trajectory,) = threaded(lambda prompt, tools: 3).run_many([assignment()], lambda *_: None)
    assert trajectory.stop == "failed"
    assert "run() returned int; expected an AgentTrajectory or text" in trajectory.error


def test_an_error_of_an_agent_is_its_own_with_the_calls_before_it():
    def broken(prompt, tools):
        tools[0].run(entity="Velmora", relation="capital")
        raise ZeroDivisionError("oh")

    (trajectory,) = threaded(broken).run_many([assignment()], lambda *_: None)
    assert (trajectory.stop, len(trajectory.calls)) == ("failed", 1)
    assert trajectory.error.startswith("ZeroDivisionError: oh (test_python_agent.py, line ")


def test_an_error_of_the_infrastructure_starts_no_further_attempt():
    started = []

    def poor(prompt, tools):
        started.append(prompt)
        if prompt == "1":
            raise BudgetExceeded("nothing left")
        time.sleep(0.05)
        return prompt

    done = {}
    with pytest.raises(BudgetExceeded):
        threaded(poor, 1).run_many([assignment(str(number)) for number in range(4)], done.__setitem__)
    assert started[:2] == ["0", "1"]
    assert len(started) < 4
    assert done[0].answer == "0"


def test_threads_are_bounded():
    running, seen = [], []

    def counted(prompt, tools):
        running.append(prompt)
        seen.append(len(running))
        time.sleep(0.02)
        running.remove(prompt)
        return prompt

    threaded(counted, 3).run_many([assignment(str(number)) for number in range(9)], lambda *_: None)
    assert max(seen) == 3


def test_the_agent_of_the_documentation_answers_tasks(tmp_path):
    """The example of docs/agents/agents_architectures.md, on the tasks of agent_bench that were written by hand."""
    page = Path(__file__).parents[3] / "docs" / "agents" / "agents_architectures.md"
    (example,) = re.findall(r"^```python\n(.*?class Mine.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "my_agent.py").write_text(example)
    bench = AgentBenchMini()
    tasks = bench.tasks("test")
    agent = ThreadedAgent(load_agent(PythonAgent(path=f"{tmp_path}/my_agent.py:Mine")), {})
    assignments = [Assignment(task, tuple(bench.tools(task, seed=0))) for task in tasks]
    trajectories = agent.run_many(assignments, lambda position, trajectory: None)
    assert {trajectory.stop for trajectory in trajectories} == {"answered"}
    solved = zip((task.metadata for task in tasks), trajectories, strict=True)
    right = [facts["question"] for facts, trajectory in solved if trajectory.answer == facts["answer"]]
    assert right == ["Who is the mayor of Ossin?", "Who is the mayor of the capital of Velmora?"]


def test_a_call_that_gives_nothing_is_recorded_as_failed():
    def run(prompt, tools):
        search = {tool.name: tool for tool in tools}["search"]
        try:
            return search.run(entity="Nowhere", relation="capital")
        except ToolError as error:
            return str(error)

    (trajectory,) = threaded(run).run_many([assignment()], lambda position, trajectory: None)
    (call,) = trajectory.calls
    assert call.failed and call.result == trajectory.answer == "no entry for Nowhere"
    assert call.arguments == {"entity": "Nowhere", "relation": "capital"}
