"""A service without the name of a model is refused, with the names that a server of one's own lists."""

from __future__ import annotations

import pytest
from judge_server import JudgeServer, Said, status
from support import checked, planned

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.packs.judging.judges.access import missing_model
from rlhf_lab.packs.judging.judges.backends.settings import Anthropic, OpenAICompatible
from rlhf_lab.packs.judging.judges.context import JudgeContext, open_judge
from rlhf_lab.stages import preflight


def agents_of(server: JudgeServer, outputs, *overrides: str):
    """A benchmark of agents that a recipe would have speak through a policy of its own."""
    llm = ("agent.llm=openai_compatible", f"agent.service.base_url={server.openai_url}", "agent=zero_shot")
    return planned("agent_bench", *llm, f"outputs={outputs}", *overrides)


def test_the_refusal_says_what_the_server_has(server, tmp_path):
    server.models = ["qwen-7b", "llama-8b"]
    problem = f"agent.service.model is not set; {server.openai_url} serves qwen-7b, llama-8b: write agent.service.model"
    assert preflight.problems(agents_of(server, tmp_path)) == [f"{problem}=qwen-7b"]
    assert preflight.problems(agents_of(server, tmp_path, "agent.service.model=qwen-7b")) == []
    server.models = [f"m{number}" for number in range(7)]
    assert "serves m0, m1, m2, m3, m4, …: write judge.model=m0" in missing_model(
        OpenAICompatible(base_url=server.openai_url)
    )


@pytest.mark.parametrize("answer", [status(404), status(200, "no list"), None])
def test_a_server_that_lists_nothing_is_named(server, answer):
    server.models = []
    server.get_faults = [answer]
    problem = missing_model(OpenAICompatible(base_url=server.openai_url))
    assert problem.startswith(f"judge.model is not set; write the model's name at {server.openai_url}")


def test_no_list_is_asked_for_where_a_key_would_be_needed_or_nothing_may_be_sent(server, monkeypatch):
    requested = []
    monkeypatch.setattr(
        "rlhf_lab.packs.judging.judges.access.served_models", lambda settings: requested.append(settings) or []
    )
    for settings in (Anthropic(), OpenAICompatible(), OpenAICompatible(base_url=server.openai_url, api_key_env="KEY")):
        assert "judge.model is not set" in missing_model(settings)
    assert "judge.model is not set" in missing_model(OpenAICompatible(base_url=server.openai_url), may_ask=False)
    assert requested == []


def test_no_service_is_opened_without_a_name(server, tmp_path):
    settings = checked("sft", "judge=openai_compatible", f"judge.base_url={server.openai_url}").judge
    assert settings.model == ""
    with pytest.raises(ConfigError, match=r"judge\.model is not set"):
        open_judge(settings, JudgeContext("run", tmp_path))
    assert server.asked == []


def test_agents_of_a_service_need_no_policy(server, tmp_path):
    """The recipe names a policy, which is trained on demand: for agents that speak through it, and for no others."""
    server.answer = lambda asked: Said("Answer: x")
    assert [stage.recipe for stage in agents_of(server, tmp_path, "agent.service.model=m").upstream()] == [
        "agent_bench"
    ]
    scripted = planned("agent_bench", "agent=[oracle,always_refuse]", f"outputs={tmp_path}")
    assert scripted.needs == {}
    local = planned("agent_bench", f"outputs={tmp_path}")
    assert list(local.needs) == ["policy"]
    for recipe in ("gaia", "code_bench"):
        assert planned(recipe, "agent.llm=anthropic", f"outputs={tmp_path}").needs == {}
