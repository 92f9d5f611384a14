"""Additions of the agents pack to the core are found there."""

from __future__ import annotations

import pytest
from support import checked, planned
from synthetic_runs import write_run

from rlhf_lab.core.packs import load
from rlhf_lab.packs.agents import PACK
from rlhf_lab.packs.agents.harness import preflight as agents_preflight
from rlhf_lab.packs.agents.report.attempts import attempts
from rlhf_lab.packs.code.sandbox import sandbox
from rlhf_lab.results.rundir import read_run
from rlhf_lab.stages import preflight


def test_what_the_pack_names_exists():
    for reference in [*PACK.commands.values(), *PACK.answers.values(), *PACK.preflight, *PACK.code_files]:
        assert load(reference) is not None, reference


def test_an_agent_of_the_user_that_is_not_there_is_a_problem(tmp_path):
    agent = ["agent=python", f"agent.programs.python.path={tmp_path}/none.py:Agent"]
    assert "there is no file" in agents_preflight.problems(checked("agent_bench", *agent))[0]
    assert agents_preflight.problems(checked("sft", *agent)) == []


@pytest.mark.parametrize(("agent", "runs_code"), [("code_executor", True), ("react", False)])
def test_an_agent_that_runs_code_needs_a_sandbox(agent, runs_code, tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox, "why_not", lambda level, image="": "user namespaces are not allowed")
    stage = planned("agent_bench", f"agent={agent}", f"outputs={tmp_path}")
    assert any("user namespaces are not allowed" in problem for problem in preflight.problems(stage)) == runs_code


@pytest.mark.parametrize("recipe", ["code_bench", "gaia"])
def test_a_container_is_refused_before_programs_of_agents_run(recipe, tmp_path, monkeypatch):
    """It returns no files, but the next program of an agent starts with the files of the one before."""
    monkeypatch.setattr(sandbox, "why_not", lambda level, image="": "")
    stages = planned(recipe, "sandbox.level=container", f"outputs={tmp_path / 'outputs'}")
    assert "container: it returns no files, which this program needs" in "\n".join(preflight.problems(stages))


def test_a_run_without_attempts_has_no_page_of_attempts(tmp_path):
    assert attempts(read_run(write_run(tmp_path))) is None
