"""The driver of message programs: many attempts in lock step, failures of the model and of an agent."""

from __future__ import annotations

import pytest
from agent_support import FakeModel, agent, assignment, last, run

from rlhf_lab.core.errors import JudgeUnavailable, StorageError
from rlhf_lab.packs.agents.harness.program import run_in_parallel, user_message
from rlhf_lab.packs.agents.harness.react import react
from rlhf_lab.packs.agents.harness.resources import AgentResources
from rlhf_lab.packs.judging.judges.requests import Completion


def chain(request):
    """Solves "Who is N": searches N times, then answers N."""
    number = int(request.messages[0]["content"].split()[-1])
    turns = sum(message["role"] == "assistant" for message in request.messages)
    return f"Answer: {number}" if turns == number else "Action: search[Velmora ; capital]"


def test_all_live_attempts_are_asked_together():
    model = FakeModel(chain)
    done = []
    many = [assignment(f"Who is {number}") for number in (2, 0, 1)]
    trajectories = agent(react, model).run_many(many, lambda number, trajectory: done.append((number, trajectory)))
    assert [trajectory.answer for trajectory in trajectories] == ["2", "0", "1"]
    assert [len(requests) for requests in model.rounds] == [3, 2, 1]
    assert [number for number, _ in done] == [1, 2, 0]  # as they end
    assert trajectories == [dict(done)[number] for number in range(3)]


def test_what_ended_is_handed_out_before_the_model_goes_away():
    done = {}
    many = [assignment(f"Who is {number}") for number in (0, 5)]
    with pytest.raises(JudgeUnavailable):
        agent(react, FakeModel(chain, fails_after=4)).run_many(many, done.__setitem__)
    assert [(number, trajectory.answer) for number, trajectory in done.items()] == [(0, "0")]


def test_an_error_of_an_agent_is_its_trajectory_and_one_of_the_infrastructure_is_not():
    def broken(error):
        def program(attempt):
            (text,) = yield [attempt.ask([user_message("hi")])]
            raise error(text.text)

        return program

    trajectories = run(broken(KeyError), FakeModel(lambda request: "x"), assignment(), assignment())
    assert [(trajectory.stop, trajectory.answer) for trajectory in trajectories] == [("failed", None)] * 2
    assert trajectories[0].error.startswith("KeyError: 'x' (test_agent_driver.py, line ")
    assert len(trajectories[0].turns) == 1
    with pytest.raises(StorageError):
        run(broken(StorageError), FakeModel(lambda request: "x"))


def test_a_request_that_has_grown_too_long_ends_its_attempt_alone():
    model = FakeModel(chain)
    answer = model.answer

    def refusing(request):
        text = answer(request)
        too_long = len(request.messages) > 3
        return Completion("prompt is too long", "rejected") if too_long and request.may_be_rejected else text

    model.answer = refusing
    long, short = run(react, model, assignment("Who is 3"), assignment("Who is 1"))
    assert (long.stop, long.answer, len(long.turns)) == ("failed", None, 2)
    assert long.error == "the request was rejected: prompt is too long"
    assert (short.stop, short.answer) == ("answered", "1")
    # a first request that is refused is the infrastructure's fault
    assert not any(request.may_be_rejected for request in model.asked if len(request.messages) == 1)


def test_parts_beside_each_other_ask_together_and_are_told_apart():
    def part(attempt, name, turns):
        for _ in range(turns):
            yield [attempt.ask([user_message(name)], part=name)]
        return name

    def program(attempt):
        (text,) = yield [attempt.ask([user_message("plan")], part="planner")]
        results = yield from run_in_parallel(
            [part(attempt, name, turns) for name, turns in (("a", 2), ("b", 0), ("c", 3))]
        )
        (text,) = yield [attempt.ask([user_message("end")], part="synthesiser")]
        return ",".join(results) + text.text

    model = FakeModel(lambda request: "!")
    (trajectory,) = run(program, model)
    assert trajectory.answer == "a,b,c!"
    assert [[last(request) for request in requested] for requested in model.rounds] == [
        ["plan"],
        ["a", "c"],
        ["a", "c"],
        ["c"],
        ["end"],
    ]
    assert [turn.agent for turn in trajectory.turns] == ["planner", "a", "a", "c", "c", "c", "synthesiser"]
    # all of what is asked at once has to fit the limit
    (trajectory,) = run(program, FakeModel(lambda request: "!"), max_turns=4)
    assert (trajectory.stop, len(trajectory.turns)) == ("turn_limit", 3)


def test_turns_beside_one_that_is_refused_are_recorded():
    def part(attempt, name):
        yield [attempt.ask([user_message(name)], part=name)]

    def program(attempt):
        yield from run_in_parallel([part(attempt, name) for name in "abc"])

    def answer(request):
        return Completion("!", "refused" if last(request) == "a" else "end", cost_usd=0.25)

    (trajectory,) = run(program, FakeModel(answer))
    assert (trajectory.stop, [turn.agent for turn in trajectory.turns]) == ("refused", ["a", "b", "c"])
    assert trajectory.cost_usd == 3 * 0.25


def test_identity_is_of_everything_that_decides():
    first = agent(react, FakeModel(chain))
    assert first.identity == agent(react, FakeModel(chain)).identity
    assert first.identity != agent(react, FakeModel(chain), max_turns=3).identity
    assert first.identity != agent(react, FakeModel(chain), native_calls=True).identity


def test_surroundings_open_what_is_used_and_once():
    opened = []
    resources = AgentResources(lambda: opened.append("model"), lambda: opened.append("sandbox"), {})
    assert opened == []
    assert resources.model is resources.model
    assert opened == ["model"]  # agents that run no code need no sandbox
    assert resources.run_code is None
    assert opened == ["model", "sandbox"]
