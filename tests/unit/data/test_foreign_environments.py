"""Environments of one's own and of other libraries as a corpus of tasks."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_lab.core.episodes import Finishing, Step, Task
from rlhf_lab.core.errors import ConfigError, DataError, LabError, MissingDependency
from rlhf_lab.data import environment
from rlhf_lab.data.adapters import openenv, verifiers
from rlhf_lab.data.adapters.openenv import OpenEnvSession
from rlhf_lab.data.adapters.sessions import SessionEnvironment
from rlhf_lab.data.adapters.tool_methods import tools_of
from rlhf_lab.data.file_settings import ForeignEnvironment

COUNTER = '''
class Counter:
    """The form of TRL's environment_factory."""

    def __init__(self, step=1):
        self.step = step

    def reset(self, goal=0, **row):
        self.goal, self.total = goal, 0
        return f"The goal is {goal}."

    def add(self, amount: int) -> str:
        """Adds to the total.

        Args:
            amount: how much to add.
        """
        if int(amount) < 0:
            raise ValueError("only up")
        self.total += self.step * int(amount)
        return f"total {self.total}"

    def get_reward(self):
        return float(self.total == self.goal)
'''
OWN = """
from rlhf_lab import Step, Task

class Echo:
    def __init__(self, tasks=4): self.count = tasks
    def tasks(self, split): return [Task(f"\\n\\nHuman: {split} {i}\\n\\nAssistant:") for i in range(self.count)]
    def reset(self, task, seed): return []
    def step(self, state, response): return Step(reward=float(len(response)), done=True)
    def grade(self, episodes): return {}
"""


@pytest.fixture
def counter(tmp_path: Path) -> dict[str, Any]:
    """Settings of a corpus of twelve tasks for the counter."""
    (tmp_path / "counter.py").write_text(COUNTER)
    rows = [{"prompt": f"Reach it, task {number}.", "goal": number} for number in range(12)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "style": "trl",
        "environment": f"{tmp_path}/counter.py:Counter",
        "path": str(tmp_path / "tasks.jsonl"),
        "test_fraction": 0.4,
        "max_turns": 3,
    }


def first_task(corpus: Any) -> Task:
    return next(task for task in corpus.tasks("train") if task.metadata["goal"] > 1)


def test_a_class_for_trl_is_an_environment(counter):
    corpus = environment.build(ForeignEnvironment(**counter))
    task = first_task(corpus)
    goal = task.metadata["goal"]
    assert task.prompt.endswith(f"The goal is {goal}.\n\nAssistant:")
    world = corpus.environment
    state = world.reset(task, seed=0)
    step = world.step(state, f"Thought: up\nAction: add[{goal}]")
    assert (step.done, step.reward) == (False, 0.0)
    assert step.messages == [{"role": "tool", "content": f"total {goal}", "name": "add"}]
    assert world.step(state, "Answer: done") == Step(reward=1.0, done=True)
    # a native call is made with its id
    state = world.reset(task, seed=0)
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"amount": 2}}}
    step = world.step(state, "\n\nCalls: " + json.dumps([call]))
    assert step.messages == [{"role": "tool", "content": "total 2", "name": "add", "tool_call_id": "c1"}]


@pytest.mark.parametrize("typed", [[1, 2], [{}], [{"function": "add"}], [{"function": {"name": "add"}}]])
def test_json_that_is_no_call_calls_nothing(counter, typed):
    """A policy without a chat template can type anything where a transcript has calls."""
    corpus = environment.build(ForeignEnvironment(**counter))
    state = corpus.environment.reset(first_task(corpus), seed=0)
    assert corpus.environment.step(state, "\n\nCalls: " + json.dumps(typed)).done


def test_an_episode_is_rewarded_though_it_ends_with_a_call_or_without_room(counter):
    corpus = environment.build(ForeignEnvironment(**counter))
    task = first_task(corpus)
    state = corpus.environment.reset(task, seed=0)
    for _ in range(2):
        assert not corpus.environment.step(state, "Action: add[0]").done
    last = corpus.environment.step(state, "Action: nothing")
    assert last.done and last.reward == 0.0
    state = corpus.environment.reset(task, seed=0)
    assert not corpus.environment.step(state, f"Action: add[{task.metadata['goal']}]").done
    assert isinstance(corpus.environment, Finishing)
    assert corpus.environment.finish(state) == 1.0


def test_a_tool_without_types_is_named():
    class Untyped:
        def reset(self): ...

        def move(self, where):
            """Moves."""

    with pytest.raises(ConfigError, match="the tool move of Untyped cannot be described"):
        tools_of(Untyped())


def test_rows_that_differ_only_in_what_the_environment_receives_are_refused(counter):
    """A prompt is one task: of several rows with it, the environment would receive the columns of the first only."""
    rows = [{"prompt": f"Reach it, task {number % 12}.", "goal": number} for number in range(15)]
    Path(counter["path"]).write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=r"3 rows have the prompt of .* row tasks.jsonl:1[345]\. .*another prompt"):
        environment.build(ForeignEnvironment(**counter))
    same = [*rows[:12], rows[0]]
    Path(counter["path"]).write_text("".join(json.dumps(row) + "\n" for row in same))
    assert sum(len(environment.build(ForeignEnvironment(**counter)).tasks(split)) for split in ("train", "test")) == 12


def test_episodes_have_objects_of_their_own(counter):
    corpus = environment.build(ForeignEnvironment(**counter, arguments={"step": 2}))
    task = first_task(corpus)
    first, second = (corpus.environment.reset(task, seed=0) for _ in range(2))
    assert corpus.environment.step(first, "Action: add[1]").messages[0]["content"] == "total 2"
    assert corpus.environment.step(second, "Action: add[3]").messages[0]["content"] == "total 6"


def test_an_environment_that_begins_otherwise_than_its_prompt_is_refused():
    sayings = iter(["a", "b"])
    session = SimpleNamespace(start=lambda: next(sayings))
    task = Task("\n\nHuman: hi\n\nAssistant:", {"opening": "a"})
    world = SessionEnvironment({"train": [task]}, lambda task, seed: session, max_turns=2)
    world.reset(task, 0)
    with pytest.raises(LabError, match="starts the same task in two ways, 'a' and 'b'"):
        world.reset(task, 0)


def test_an_environment_of_the_lab(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    settings = ForeignEnvironment(environment=f"{tmp_path}/own.py:Echo", arguments={"tasks": 2})
    corpus = environment.build(settings)
    assert len(corpus.tasks("train")) == len(corpus.tasks("test")) == 2
    assert corpus.fingerprint != environment.build(ForeignEnvironment(environment=settings.environment)).fingerprint


def test_an_object_without_the_methods_is_refused(tmp_path):
    (tmp_path / "own.py").write_text("class Nothing: pass")
    with pytest.raises(ConfigError, match="implement all of its methods"):
        environment.build(ForeignEnvironment(environment=f"{tmp_path}/own.py:Nothing"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"environment": "counter"}, "is not of the form FILE.py:NAME"),
        ({"environment": "a.py:b", "path": "x.jsonl"}, "is not used with style=lab"),
        ({"environment": "a.py:b", "style": "trl"}, "path is not set"),
    ],
)
def test_wrong_settings(changes, message):
    with pytest.raises((ConfigError, ValueError), match=message):
        ForeignEnvironment(**changes)


class FakeClient:
    """Interface of `openenv`'s synchronous client; the real one was tried by hand against its own server."""

    def __init__(self) -> None:
        self.closed = False
        self.seeds: list[Any] = []

    def reset(self, **options: Any) -> Any:
        self.seeds.append(options.get("seed"))
        return SimpleNamespace(observation={"text": "begin", "extra": 1}, reward=None, done=False)

    def step(self, action: dict[str, Any]) -> Any:
        over = action["say"] == "stop"
        return SimpleNamespace(observation={"text": action["say"].upper()}, reward=0.5, done=over)

    def close(self) -> None:
        self.closed = True


def test_a_session_of_openenv_closes_its_connection_at_the_end():
    client = FakeClient()
    session = OpenEnvSession(client, {"seed": 3}, "say", "text")
    assert session.start() == "begin" and client.seeds == [3]
    assert session.step("go", is_last=False) == Step([{"role": "user", "content": "GO"}], 0.5, False)
    assert not client.closed
    assert session.step("stop", is_last=False) == Step([], 0.5, True)
    assert client.closed
    client = FakeClient()
    session = OpenEnvSession(client, {}, "say", "text")
    assert session.step("go", is_last=True).done and client.closed
    with pytest.raises(LabError, match=r"data\.observation=message is no field.*text, extra"):
        OpenEnvSession(FakeClient(), {}, "say", "message").start()


def test_libraries_that_are_missing_are_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "verifiers", None)
    monkeypatch.setitem(__import__("sys").modules, "openenv", None)
    with pytest.raises(MissingDependency, match=r"style=verifiers.*pip install"):
        verifiers.load("x", {})
    with pytest.raises(MissingDependency, match=r"style=openenv.*pip install"):
        openenv.opener("http://127.0.0.1:1", {}, "a", "b")


class Rollouts:
    """The surface of a verifiers environment: an asynchronous rollout that asks a client, and a rubric."""

    def __init__(self, *, rewrites: bool = False, fails: bool = False):
        self.rewrites, self.fails = rewrites, fails
        self.rubric = SimpleNamespace(score_rollout=self._score)

    async def rollout(self, row: dict[str, Any], client: Any, model: str, sampling: dict[str, Any]) -> dict[str, Any]:
        messages = list(row["prompt"])
        for _ in range(2):
            text = await client.ask(messages)
            if self.fails:
                raise RuntimeError("the tool broke")
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "more"}]
            if self.rewrites:
                messages[0] = {"role": "user", "content": "another question"}
        return {"said": text, "answer": row["answer"], "error": None}

    async def _score(self, state: dict[str, Any]) -> None:
        state["reward"] = float(state["said"] == state["answer"])


ROW = {"prompt": [{"role": "user", "content": "question"}], "answer": "yes"}


def session_of(rollouts: Rollouts, monkeypatch: pytest.MonkeyPatch) -> verifiers.VerifiersSession:
    monkeypatch.setattr(verifiers, "_waiting_client", lambda rollout: rollout)
    return verifiers.opener(rollouts, timeout_s=5.0)(Task("", ROW), 0)


def test_tasks_of_verifiers_are_held_out_once(monkeypatch):
    rows = [{"prompt": [{"role": "user", "content": f"{number}?"}]} for number in range(40)]
    monkeypatch.setattr(verifiers, "load", lambda *arguments: None)
    monkeypatch.setattr(verifiers, "rows_of", lambda library: {"train": rows, "test": []})
    corpus = environment.build(ForeignEnvironment(style="verifiers", environment="x", test_fraction=0.3))
    train, test = ({pair.prompt for pair in pairs} for pairs in (corpus.train, corpus.test))
    assert test and not train & test and len(train | test) == 40


def test_a_rollout_of_verifiers_waits_for_the_policy(monkeypatch):
    session = session_of(Rollouts(), monkeypatch)
    assert session.start() == ""
    assert session.step("no", is_last=False) == Step([{"role": "user", "content": "more"}], 0.0, False)
    assert session.step("yes", is_last=True) == Step(reward=1.0, done=True)


def test_a_rollout_that_rewrites_or_fails_says_why(monkeypatch):
    session = session_of(Rollouts(rewrites=True), monkeypatch)
    session.start()
    with pytest.raises(LabError, match="rewrites earlier messages"):
        session.step("no", is_last=False)
    session = session_of(Rollouts(fails=True), monkeypatch)
    session.start()
    with pytest.raises(LabError, match="RuntimeError: the tool broke"):
        session.step("no", is_last=False)
