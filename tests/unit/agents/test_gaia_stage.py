"""GAIA's questions as the harness sees them: what agents are told, and what their tool `python` runs."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import pytest
from support import planned

from rlhf_lab.packs.agents.benchmarks.attempts import plan_attempts
from rlhf_lab.packs.agents.benchmarks.gaia import GaiaTasks, as_question
from rlhf_lab.packs.agents.benchmarks.settings import Gaia
from rlhf_lab.packs.agents.gaia import mini
from rlhf_lab.packs.agents.harness.code_executor import build
from rlhf_lab.packs.agents.harness.resources import AgentResources
from rlhf_lab.packs.agents.harness.settings import CodeExecutor
from rlhf_lab.packs.code.sandbox.settings import Sandboxing
from rlhf_lab.stages.preflight import _data_problems


def settings_key(recipe, *words):
    return planned(recipe, *words).settings_key


def test_programs_run_with_the_attachments_of_their_question(tmp_path):
    ran = []

    def runner(code, files):
        ran.append((code, sorted(files)))
        return SimpleNamespace(status="error", stdout="12\n", stderr="ValueError: no", files={})

    opened = []
    tasks = GaiaTasks(Gaia(), tmp_path, lambda: opened.append(1) or runner, {})
    with_files = next(task for task in tasks.tasks("test") if tasks.attachments(task))
    (attempt,) = plan_attempts("code_executor", {}, [as_question(with_files, tasks)], 1, 0)
    assert attempt.assignment.files == tasks.attachments(with_files)
    tools = {tool.name: tool for tool in tasks.tools(with_files, seed=0)}
    assert not opened  # a machine without a sandbox runs the questions that need none
    assert tools["python"].run(code="print(12)") == "12\nValueError: no"
    assert ran == [("print(12)", sorted(tasks.attachments(with_files)))]
    assert len(opened) == 1


def test_agents_are_not_told_where_attachments_lie(tmp_path):
    tasks = GaiaTasks(Gaia(), tmp_path, lambda: None, {})
    assert all("files" not in task.metadata for task in tasks.tasks("test"))
    assert {task.metadata["category"] for task in tasks.tasks("test")} == {"level_1", "level_2", "level_3"}


@pytest.mark.parametrize(
    ("recipe", "agent", "runs_code"),
    [("agent_bench", "code_executor", True), ("agent_bench", "react", False), ("gaia", "react", True)],
)
def test_limits_of_programs_are_in_the_key_of_stages_that_run_them(recipe, agent, runs_code):
    chosen = f"agent={agent}"
    key = settings_key(recipe, chosen)
    for limit in ("sandbox.timeout_s=2", "sandbox.memory_mib=64"):
        assert (settings_key(recipe, chosen, limit) != key) == runs_code
    assert settings_key(recipe, chosen, "sandbox.level=namespaces", "sandbox.image=python:3.12") == key


def test_limits_of_programs_are_in_the_key_of_attempts(tmp_path):
    limits = Sandboxing(timeout_s=2, level="rlimits").limits
    assert limits["timeout_s"] == 2 and not {"level", "image"} & limits.keys()
    tasks = GaiaTasks(Gaia(), tmp_path, lambda: None, limits)
    assert all(tasks.tool_context(task)["sandbox"] == limits for task in tasks.tasks("test"))
    resources = AgentResources(lambda: SimpleNamespace(identity={}), lambda: None, limits)
    assert build(CodeExecutor(), resources).identity["sandbox"] == limits


def test_fixtures_are_in_the_keys_by_content(tmp_path, monkeypatch):
    key = settings_key("gaia")
    tasks = GaiaTasks(Gaia(), tmp_path, lambda: None, {})
    known = tasks.tool_context(tasks.chosen[0])
    fixtures = shutil.copytree(mini.FIXTURES, tmp_path / "fixtures")
    monkeypatch.setattr(mini, "FIXTURES", fixtures)
    assert settings_key("gaia") == key
    for name in ("files.yml", "questions.yml", "pages.yml"):
        (fixtures / name).write_text((fixtures / name).read_text() + "# changed\n")
        changed = settings_key("gaia")
        assert changed != key
        key = changed
    tasks = GaiaTasks(Gaia(), tmp_path, lambda: None, {})
    assert tasks.tool_context(tasks.chosen[0]) == {**known, "pages": mini.fixture_digests()["pages.yml"]} != known


def test_a_copy_of_the_official_repository_is_planned_by_content(tmp_path):
    def write_copy(name):
        directory = tmp_path / name / "2023" / "validation"
        directory.mkdir(parents=True)
        row = {"task_id": "a", "Question": "How many?", "Level": 1, "Final answer": "2", "file_name": "a.txt"}
        (directory / "metadata.jsonl").write_text(json.dumps(row) + "\n")
        (directory / "a.txt").write_text("one two")
        return directory

    def stage(source):
        return planned("gaia", "algorithm.source=official", "algorithm.search=none", f"algorithm.path={source}")

    key = lambda source: stage(source).settings_key  # noqa: E731
    directory, other = write_copy("one"), write_copy("two")
    first = key(tmp_path / "one")
    assert not _data_problems(stage(tmp_path / "one"))
    assert "is no file, no directory and no hub id" in "".join(_data_problems(stage(tmp_path / "three")))
    assert key(tmp_path / "two") == key(directory) == key(directory / "metadata.jsonl") == first
    (other / "unused.txt").write_text("x")
    assert key(tmp_path / "two") == first
    (other / "a.txt").write_text("one two three")
    assert key(tmp_path / "two") != first
    with (directory / "metadata.jsonl").open("a") as metadata:
        metadata.write("\n")
    assert key(tmp_path / "one") != first
    assert key("gaia-benchmark/GAIA") == key("gaia-benchmark/GAIA") != key("owner/GAIA")
