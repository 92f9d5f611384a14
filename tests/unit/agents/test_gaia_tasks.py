"""GAIA as a harness takes it: settings, tasks, tools, scores, and the keys of its stage and attempts."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import planned

from rlhf_lab.core.episodes import Task
from rlhf_lab.core.errors import ConfigError, require
from rlhf_lab.core.tools import call_tool
from rlhf_lab.data.transcript import to_messages
from rlhf_lab.packs.agents.benchmarks import gaia_tasks
from rlhf_lab.packs.agents.benchmarks.attempts import plan_attempts
from rlhf_lab.packs.agents.benchmarks.gaia import GaiaTasks, as_question
from rlhf_lab.packs.agents.benchmarks.gaia_settings import GaiaChoices
from rlhf_lab.packs.agents.benchmarks.settings import Gaia
from rlhf_lab.packs.agents.benchmarks.web import search_provider
from rlhf_lab.packs.agents.gaia import mini
from rlhf_lab.packs.agents.harness.code_executor import build
from rlhf_lab.packs.agents.harness.resources import AgentResources
from rlhf_lab.packs.agents.harness.settings import CodeExecutor
from rlhf_lab.packs.code.sandbox.settings import Sandboxing
from rlhf_lab.stages.preflight import _data_problems

MINI = GaiaChoices()


@pytest.fixture
def official(tmp_path: Path) -> GaiaChoices:
    rows = [
        {"task_id": "a", "Question": "What is in it?", "Level": 1, "Final answer": "17", "file_name": "a.txt"},
        {"task_id": "b", "Question": "Who sings?", "Level": 2, "Final answer": "?", "file_name": "b.mp3"},
    ]
    (tmp_path / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "a.txt").write_text("seventeen")
    (tmp_path / "b.mp3").write_bytes(b"ID3")
    return GaiaChoices(source="official", path=str(tmp_path), search="none")


def test_the_default_is_all_of_mini_and_levels_and_limit_choose() -> None:
    require(*MINI.rules())
    assert len(gaia_tasks.tasks(MINI)) == 30
    chosen = gaia_tasks.tasks(replace(MINI, levels=(1, 3), limit=2))
    assert [task.metadata["id"] for task in chosen] == ["mini-1-01", "mini-1-02", "mini-3-01", "mini-3-02"]


def test_facts_are_json_and_the_prompt_names_the_files() -> None:
    tasks = gaia_tasks.tasks(MINI)
    for task in tasks:
        assert json.loads(json.dumps(task.metadata)) == task.metadata
        (message,) = to_messages(task.prompt)
        assert message["content"].startswith(task.metadata["question"])
        assert all(name in message["content"] for name in task.metadata["files"])
        assert task.metadata["answer"] not in message["content"].split()


def test_attachments_for_a_sandbox(official: GaiaChoices) -> None:
    task, _ = gaia_tasks.tasks(official)
    assert gaia_tasks.attachments(task, official) == {"a.txt": b"seventeen"}
    mini = next(task for task in gaia_tasks.tasks(MINI) if task.metadata["files"])
    ((name, content),) = gaia_tasks.attachments(mini, MINI).items()
    assert name == "landings.csv" and content.startswith(b"ship,day")


def test_the_official_set_without_a_web(official: GaiaChoices, tmp_path: Path) -> None:
    require(*official.rules())
    chosen = gaia_tasks.tasks(official)
    provider = search_provider(official, tmp_path)
    tools = {tool.name: tool for tool in gaia_tasks.tools_for(chosen[0], official, provider=provider)}
    assert list(tools) == ["read_file", "calculator"]
    assert call_tool(tools, "read_file", {"name": "a.txt"}).result == "seventeen"
    assert gaia_tasks.unreadable_files(chosen) == ["b.mp3"]


def test_scores(official: GaiaChoices) -> None:
    known, kept_back = gaia_tasks.tasks(official)
    assert gaia_tasks.score("17", known) == {"official": 1.0, "lenient": 1.0}
    assert gaia_tasks.score("seventeen", known) == {"official": 0.0, "lenient": 1.0}
    assert gaia_tasks.score(None, known) == {"official": 0.0, "lenient": 0.0}
    assert gaia_tasks.score("a", Task("", {"answer": "A"}))["official"] == 1.0  # its facts alone decide
    unscored = gaia_tasks.score("?", kept_back)
    assert list(unscored) == ["official", "lenient"] and all(map(math.isnan, unscored.values()))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"source": "official", "search": "none"}, "source=official needs path="),
        ({"path": "x"}, "only read with source=official"),
        ({"levels": ()}, "levels is empty; write some of 1, 2 and 3"),
        ({"search": "tavily"}, "need their offline web"),
        ({"source": "official", "path": "x"}, "has no pages for the official questions"),
        ({"search_key_env": "KEY"}, "need a live service"),
        ({"source": "official", "path": "x", "search": "brave", "search_url": "http://far.example"}, "so use https"),
    ],
)
def test_settings_that_contradict_each_other(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(MINI, **values)


@pytest.mark.parametrize("url", ["https://x.example/search", "http://localhost:8080/s", "http://127.0.0.1:1"])
def test_addresses_that_may_have_the_key(url: str) -> None:
    assert GaiaChoices(source="official", path="x", search="serper", search_url=url).search_url == url


def test_a_live_service_needs_its_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = GaiaChoices(source="official", path="x", search="tavily")
    monkeypatch.delenv("TAVILY_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="TAVILY_API_KEY contains no key"):
        search_provider(settings, tmp_path)
    monkeypatch.setenv("MINE", "k")
    assert search_provider(replace(settings, search_key_env="MINE"), tmp_path) is not None


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
