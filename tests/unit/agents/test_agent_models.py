"""The model behind agents: services by their real SDKs against a server, one store and one budget; the lab's own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from agent_support import assignment
from judge_server import MODELS, JudgeServer, Said, status
from support import checked, gpt2_tokenizer, save_tiny

from rlhf_lab.core.errors import BudgetExceeded, ConfigError, JudgeUnavailable
from rlhf_lab.packs.agents.harness import models
from rlhf_lab.packs.agents.harness.agent import Assignment
from rlhf_lab.packs.agents.harness.brief import Brief
from rlhf_lab.packs.agents.harness.models import open_agents, open_model
from rlhf_lab.packs.agents.harness.prompts import Instructions

SERVICES = ("anthropic", "openai_compatible")
CAPITAL = {"entity": "Velmora", "relation": "capital"}


@pytest.fixture
def server():
    with JudgeServer() as running:
        yield running


def connected(server: JudgeServer, kind: str, directory, *overrides: str, agent: str = "react"):
    """A run whose agents ask the server."""
    url = server.url if kind == "anthropic" else server.openai_url
    service = (f"agent.service.base_url={url}", f"agent.service.model={MODELS[kind]}", "agent.service.retries=0")
    config = checked("sft", f"agent={agent}", f"agent.llm={kind}", *service, f"outputs={directory}", *overrides)
    return SimpleNamespace(config=config, directory=directory / "runs" / "bench-1", device="cpu", note=print, needs={})


def native(asked) -> Said:
    """Solves the task: the capital first, then its mayor, whatever the capital was said to be."""
    if asked.turn == 0:
        return Said("the capital first", calls=[("search", CAPITAL)])
    result = asked.messages[-1]["content"].splitlines()[1]
    if asked.turn == 1:
        return Said(calls=[("search", {"entity": result, "relation": "mayor"})])
    return Said(f"It is {result}.\nAnswer: {result}")


def as_text(asked) -> Said:
    """The same, with calls as text; it guesses the result of its first call as well, behind a text that ends it."""
    if asked.turn == 0:
        return Said("Thought: the capital first\nAction: search[Velmora ; capital]\nObservation: Oslo\nAnswer: Oslo")
    result = asked.messages[-1]["content"].splitlines()[1]
    return Said(f"Action: search[{result} ; mayor]" if asked.turn == 1 else f"Answer: {result}")


@pytest.mark.parametrize("kind", SERVICES)
@pytest.mark.parametrize(("policy", "calls"), [(native, "auto"), (as_text, "text")])
def test_an_agent_solves_a_task_through_a_service(server, kind, policy, calls, tmp_path):
    server.answer = policy
    prices = ("agent.service.input_usd=1000", "agent.service.output_usd=2000")
    agent = open_agents(connected(server, kind, tmp_path, f"agent.calls={calls}", *prices))["react"]
    (trajectory,) = agent.run_many([assignment()], lambda *_: None)
    assert (trajectory.answer, trajectory.stop) == ("Tal", "answered")
    assert [call.result for call in trajectory.calls] == ["Ossin", "Tal"]
    assert server.asked[0].tools == (["search", "calculate"] if calls == "auto" else [])
    assert trajectory.turns[0].text.startswith("the capital" if calls == "auto" else "Thought")
    assert "Oslo" not in trajectory.turns[0].text
    # tokens and cost are those of the bill
    assert trajectory.input_tokens == sum(sum(charge[:3]) for charge in server.charged)
    assert trajectory.output_tokens == sum(charge[3] for charge in server.charged)
    assert trajectory.cost_usd > 0
    assert all(turn.latency_s > 0 and not turn.stored for turn in trajectory.turns)
    # once more: from the store, for nothing
    (again,) = agent.run_many([assignment()], lambda *_: None)
    assert (again.answer, server.billed_requests) == ("Tal", 3)
    assert again.cost_usd == trajectory.cost_usd, "what it would have cost with nothing in the store"
    assert all(turn.stored for turn in again.turns)


@pytest.mark.parametrize("kind", SERVICES)
def test_a_run_that_failed_goes_on_and_pays_nothing_twice(server, kind, tmp_path):
    server.answer = native
    questions = [assignment(f"{number}: who is the mayor of the capital of Velmora?") for number in range(3)]
    server.always = lambda asked: status(500) if asked.number >= 5 else None
    settings = ("agent.service.parallel=1", "agent.service.input_usd=1000", "agent.service.output_usd=2000")
    agent = open_agents(connected(server, kind, tmp_path, *settings))["react"]
    done = {}
    with pytest.raises(JudgeUnavailable):
        agent.run_many(questions, done.__setitem__)
    assert server.billed_requests == 5
    assert done == {}
    server.always = lambda asked: None
    trajectories = agent.run_many(questions, done.__setitem__)
    assert [trajectory.answer for trajectory in trajectories] == ["Tal"] * 3
    # each attempt is reported with all of its turns, whoever paid for them
    assert all(turn.cost_usd > 0 for trajectory in trajectories for turn in trajectory.turns)
    assert server.billed_requests == 9
    assert sum(turn.stored for trajectory in trajectories for turn in trajectory.turns) == 5


def test_the_budget_is_that_of_the_run_and_named_as_the_agents(server, tmp_path):
    server.answer = native
    prices = ("agent.service.input_usd=1000", "agent.service.output_usd=1000", "agent.service.budget_usd=0.1")
    agent = open_agents(connected(server, "anthropic", tmp_path, *prices))["react"]
    with pytest.raises(BudgetExceeded, match=r"^agent\.service\.budget_usd=0\.1 does not cover .* by bench-1"):
        agent.run_many([assignment()], lambda *_: None)
    assert server.billed_requests == 0


def test_draws_are_asked_for_one_by_one(server, tmp_path):
    server.answer = lambda asked: Said("Answer: x")
    run = connected(server, "openai_compatible", tmp_path, "agent.temperature=0.7", agent="zero_shot")
    agent = open_agents(run)["zero_shot"]
    task = assignment()
    agent.run_many([Assignment(task.task, (), draw) for draw in range(3)], lambda *_: None)
    assert server.billed_requests == 3
    assert {requested.body["temperature"] for requested in server.asked} == {0.7}


def test_settings_decide_how_a_service_is_spoken_to(server, tmp_path):
    model = open_model(connected(server, "anthropic", tmp_path, "agent.max_tokens=77", "agent.max_turns=3"))
    assert (model.native_calls, model.max_tokens, model.max_turns) == (True, 77, 3)
    assert isinstance(model.prompts, Instructions)
    brief = open_model(connected(server, "anthropic", tmp_path, "agent.prompt=brief"))
    assert isinstance(brief.prompts, Brief)
    assert not brief.native_calls


def test_calls_are_text_with_a_model_that_takes_no_tools(server, tmp_path, monkeypatch):
    monkeypatch.setattr(models, "open_judge", lambda *_: SimpleNamespace(identity={}, takes_tools=False))
    assert not open_model(connected(server, "anthropic", tmp_path)).native_calls


def local(directory, policy, *overrides: str):
    """A run whose agents are a local model."""
    model = ("model=hf", f"model.path={policy}", "agent.max_tokens=8")
    config = checked("sft", "agent=react", *model, f"outputs={directory}", *overrides)
    needs = {"policy": str(policy)}
    return SimpleNamespace(config=config, directory=directory / "bench-1", device="cpu", note=print, needs=needs)


def test_a_local_model_is_known_by_what_its_settings_decide(tmp_path):
    """Attempts are adopted by identity: those with the chat template are not those without it."""
    tokenizer = gpt2_tokenizer(["a few words"] * 3)
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    policy = save_tiny("gpt2", tokenizer, tmp_path / "policy")

    def identity(*overrides: str):
        return open_model(local(tmp_path, policy, *overrides)).identity

    base = identity()
    assert (base["model"]["chat_template"], base["model"]["revision"]) == (True, None)
    assert identity("model.chat_template=true") == base  # as the tokenizer has it
    assert identity("model.chat_template=false") != base
    assert identity("model.revision=abc") != base


def test_several_agents_share_a_model(server, tmp_path):
    agents = open_agents(connected(server, "anthropic", tmp_path, agent="[zero_shot,react,multi_agent]"))
    assert list(agents) == ["zero_shot", "react", "multi_agent"]
    assert agents["react"].model is agents["multi_agent"].model
    assert len({str(agent.identity) for agent in agents.values()}) == 3


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (("agent.service.model=x",), "agent.service.model: agent.llm=local uses no service"),
        (("agent.llm=anthropic", "agent.service.modle=x"), "agent.service.modle is not a setting; did you mean model?"),
        (("agent=scratchpad", "agent.programs.scratchpad.notes_tokens=0"), "agent.programs.scratchpad.notes_tokens=0"),
    ],
)
def test_wrong_settings_are_refused(overrides, problem):
    with pytest.raises(ConfigError) as error:
        checked("sft", *overrides)
    assert problem in str(error.value)
