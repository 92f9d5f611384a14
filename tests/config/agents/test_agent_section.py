"""The section agent: several agents at once, their service, and which results they decide."""

from __future__ import annotations

import pytest
from support import checked, planned

from rlhf_lab.algorithms.supervised.settings import SFT
from rlhf_lab.config import check, command_line, root
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.stages import preflight
from rlhf_lab.training.stage_spec import Inputs

SERVICE = ("agent.llm=openai_compatible", "agent.service.base_url=http://127.0.0.1:9/v1")


@pytest.fixture
def running_agents(monkeypatch):
    """sft as a stage that runs agents, and may have a policy for them."""
    monkeypatch.setattr(SFT, "inputs", Inputs(sections=("model", "agent")))


def key(*overrides: str) -> str:
    return planned("sft", *overrides).settings_key


def test_several_agents_have_settings_of_their_own():
    agent = checked("sft", "agent=[zero_shot,scratchpad]", "agent.programs.scratchpad.notes_tokens=7").agent
    assert list(agent.programs) == ["zero_shot", "scratchpad"]
    assert agent.programs["scratchpad"].notes_tokens == 7
    assert agent.max_requests(10) == 2 * 10 * 24


def test_a_service_has_the_defaults_of_its_judge_and_survives_the_round_trip():
    config = checked("sft", "agent.llm=anthropic", "agent.service={budget_usd: 2.5}")
    assert (config.agent.service.model, config.agent.service.budget_usd) == ("claude-haiku-4-5", 2.5)
    assert check.check(root.to_values(config)) == config
    local = checked("sft")
    assert local.agent.service == {}
    assert check.check(root.to_values(local)) == local
    assert command_line.check_command(["+recipe=sft", "agent.llm=anthropic", "seed=0,1"]).configs[1].agent.asks_service


def test_agents_decide_the_results_of_stages_that_run_them(running_agents):
    base = key(*SERVICE)
    assert base == key(*SERVICE, "agent.service.parallel=3", "agent.service.budget_usd=1")
    for change in ("agent=zero_shot", "agent.max_turns=3", "agent.service.model=other", "agent.temperature=0.5"):
        assert key(*SERVICE, change) != base, change


def test_agents_decide_nothing_elsewhere():
    assert key("agent=[react,zero_shot]", *SERVICE, "agent.max_turns=3") == key()


def test_rules_between_sections(running_agents):
    with pytest.raises(ConfigError) as error:
        checked("sft", "agent.calls=native")
    assert "agent.llm=local: the agents use the model of needs.policy, which is not set" in str(error.value)
    assert "agent.calls=native: a model of model=scratch has no chat template" in str(error.value)
    with pytest.raises(ConfigError, match=r"agent\.temperature: agent\.llm=anthropic always samples at its own"):
        checked("sft", "agent.llm=anthropic", "agent.temperature=0.5")
    # an agent of the user speaks through whatever it wants
    checked("sft", "agent=python", "agent.programs.python.path=mine.py:Mine")


def test_what_would_fail_is_found_before_anything_is_built(running_agents, monkeypatch, tmp_path):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    problems = preflight.problems(planned("sft", "agent.llm=anthropic", f"outputs={tmp_path}"))
    assert [problem[:29] for problem in problems] == ["agent.service.api_key_env: th"]
    missing = planned("sft", "agent=python", f"agent.programs.python.path={tmp_path}/no.py:Mine", f"outputs={tmp_path}")
    assert "there is no file" in preflight.problems(missing)[0]


def test_an_agent_of_the_user_is_known_by_its_file(running_agents, tmp_path):
    file = tmp_path / "mine.py"
    overrides = ("agent=python", f"agent.programs.python.path={file}:Mine", f"outputs={tmp_path}")
    file.write_text("class Mine: ...")
    before = planned("sft", *overrides).code_key
    file.write_text("class Mine: pass")
    assert planned("sft", *overrides).code_key != before
