"""What the pack adds to the core is found there."""

from __future__ import annotations

from support import checked

from rlhf_lab.core.packs import load, packs
from rlhf_lab.packs.agents import PACK
from rlhf_lab.packs.agents.harness import preflight as agents_preflight


def test_it_is_found_and_what_it_names_is_there():
    assert PACK in packs()
    references = [*PACK.commands.values(), *PACK.answers.values(), *PACK.preflight, *PACK.code_files, *PACK.doctor]
    assert {"rlhf_lab.packs.agents.commands:export_command", "rlhf_lab.packs.agents.answers:agents"} <= {*references}
    for reference in references:
        assert load(reference) is not None, reference


def test_an_agent_of_the_user_that_is_not_there_is_a_problem(tmp_path):
    agent = ["agent=python", f"agent.programs.python.path={tmp_path}/none.py:Agent"]
    assert "there is no file" in agents_preflight.problems(checked("agent_bench", *agent))[0]
    assert agents_preflight.problems(checked("sft", *agent)) == []
