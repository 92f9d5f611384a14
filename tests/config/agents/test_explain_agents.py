"""`explain` of an agent without settings of its own."""

from __future__ import annotations

import pytest
from support import command_inside


@pytest.mark.parametrize("name", ["react", "zero_shot"])
def test_an_agent_without_settings_is_explained_by_its_group(name, tmp_path):
    status, printed = command_inside(tmp_path, "explain", f"agent={name}")
    assert status == 0, printed
    assert "agent.max_calls" in printed and "agent.llm" in printed


def test_an_agent_with_settings_is_explained_by_them(tmp_path):
    _, printed = command_inside(tmp_path, "explain", "agent=plan_execute")
    assert "agent.programs.plan_execute.steps" in printed and "agent.max_calls" not in printed
