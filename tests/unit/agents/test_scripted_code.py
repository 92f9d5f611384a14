"""scripted_code: agents that write known programs, through the rounds of code_executor."""

from __future__ import annotations

import pytest
from agent_support import ran

from rlhf_lab.core.episodes import Task
from rlhf_lab.packs.agents.harness.agent import Assignment
from rlhf_lab.packs.agents.harness.resources import AgentResources
from rlhf_lab.packs.agents.harness.scripted_code import build
from rlhf_lab.packs.agents.harness.settings import ScriptedCode

FACTS = {"program": "broken\n", "solution": "repaired\n"}
TASK = Assignment(Task("\n\nHuman: Repair it.\n\nAssistant:", FACTS), ())


def programs(behaviour: str, failing: tuple[str, ...], rounds: int = 6) -> list[str]:
    """The programs that an agent wrote of which these fail."""

    def run_code(code, files):
        return ran("error" if code in failing else "ok", stderr="E")

    def no_model():
        raise AssertionError("it asks no model")

    agent = build(ScriptedCode(behaviour, rounds), AgentResources(no_model, lambda: run_code, {}))
    (trajectory,) = agent.run_many([TASK], lambda position, trajectory: None)
    assert trajectory.answer == [call.arguments["code"] for call in trajectory.calls][-1]
    return [call.arguments["code"] for call in trajectory.calls]


@pytest.mark.parametrize(
    ("behaviour", "failing", "written"),
    [
        ("solves", ("broken\n",), ["repaired\n"]),
        ("unchanged", ("broken\n",), ["broken\n"]),
        ("reads_errors", ("broken\n",), ["broken\n", "repaired\n"]),
        ("reads_errors", (), ["broken\n"]),  # nothing has failed: there is nothing to read
        ("reads_errors", ("broken\n", "repaired\n"), ["broken\n", "repaired\n"]),
    ],
)
def test_what_is_written(behaviour, failing, written):
    assert programs(behaviour, failing) == written


def test_behaviours_are_different_agents():
    resources = AgentResources(lambda: None, lambda: None, {})
    identities = [build(ScriptedCode(name), resources).identity for name in ("solves", "unchanged", "reads_errors")]
    assert len({str(identity) for identity in identities}) == 3
