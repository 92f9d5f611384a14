"""GAIA's questions as the harness sees them: what agents are told, and what their tool `python` runs."""

from __future__ import annotations

from types import SimpleNamespace

from rlhf_lab.evaluations.agents.gaia import GaiaTasks
from rlhf_lab.evaluations.agents.settings import Gaia


def test_programs_run_with_the_attachments_of_their_question(tmp_path):
    ran = []

    def runner(code, files):
        ran.append((code, sorted(files)))
        return SimpleNamespace(status="error", stdout="12\n", stderr="ValueError: no", files={})

    opened = []
    tasks = GaiaTasks(Gaia(), tmp_path, lambda: opened.append(1) or runner)
    with_files = next(task for task in tasks.tasks("test") if tasks.attachments(task))
    tools = {tool.name: tool for tool in tasks.tools(with_files, seed=0)}
    assert not opened  # a machine without a sandbox runs the questions that need none
    assert tools["python"].run(code="print(12)") == "12\nValueError: no"
    assert ran == [("print(12)", sorted(tasks.attachments(with_files)))]
    assert len(opened) == 1


def test_agents_are_not_told_where_attachments_lie(tmp_path):
    tasks = GaiaTasks(Gaia(), tmp_path, lambda: None)
    assert all("files" not in task.facts for task in tasks.tasks("test"))
    assert {task.facts["category"] for task in tasks.tasks("test")} == {"level_1", "level_2", "level_3"}
