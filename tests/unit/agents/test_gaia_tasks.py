"""GAIA as a harness takes it: settings, tasks, tools, scores, and the keys of its stage and attempts."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import planned

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.tools import call_tool
from rlhf_lab.data.transcript import to_messages
from rlhf_lab.packs.agents.benchmarks.attempts import plan_attempts
from rlhf_lab.packs.agents.benchmarks.gaia import GaiaBenchmark, GaiaTasks, as_task, score, select
from rlhf_lab.packs.agents.benchmarks.settings import Gaia
from rlhf_lab.packs.agents.benchmarks.web import search_provider
from rlhf_lab.packs.agents.gaia import mini
from rlhf_lab.packs.agents.harness.code_executor import build
from rlhf_lab.packs.agents.harness.resources import AgentResources
from rlhf_lab.packs.agents.harness.settings import CodeExecutor
from rlhf_lab.packs.agents.trajectory import AgentTrajectory
from rlhf_lab.packs.code.sandbox.settings import Sandboxing
from rlhf_lab.stages.preflight import _data_problems

MINI = Gaia()


@pytest.fixture
def official(tmp_path: Path) -> Gaia:
    rows = [
        {"task_id": "a", "Question": "What is in it?", "Level": 1, "Final answer": "17", "file_name": "a.txt"},
        {"task_id": "b", "Question": "Who sings?", "Level": 2, "Final answer": "?", "file_name": "b.mp3"},
    ]
    (tmp_path / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "a.txt").write_text("seventeen")
    (tmp_path / "b.mp3").write_bytes(b"ID3")
    return Gaia(source="official", path=str(tmp_path), search="none")


def tasks_of(settings: Gaia, **limits) -> GaiaTasks:
    return GaiaTasks(settings, Path("unused"), lambda: None, limits)


def test_the_default_is_all_of_mini_and_levels_and_limit_choose() -> None:
    assert len(select(MINI)) == 30
    chosen = select(replace(MINI, levels=(1, 3), limit=2))
    assert [question.id for question in chosen] == ["mini-1-01", "mini-1-02", "mini-3-01", "mini-3-02"]


def test_metadata_are_json_and_the_prompt_names_the_files_but_not_where_they_are() -> None:
    for question in select(MINI):
        task = as_task(question)
        assert json.loads(json.dumps(task.metadata)) == task.metadata
        assert "files" not in task.metadata and task.metadata["category"] == f"level_{question.level}"
        _, message = to_messages(task.prompt)
        assert message["content"].startswith(question.question)
        assert all(name in message["content"] for name in question.files)
        assert question.answer not in message["content"].split()


def test_the_official_set_without_a_web(official: Gaia) -> None:
    tasks = tasks_of(official)
    assert [tasks.attachments(question) for question in tasks.selected] == [{"a.txt": b"seventeen"}, {"b.mp3": b"ID3"}]
    question = tasks.questions()[0]
    tools = {tool.name: tool for tool in question.make_tools(question.task, 0)}
    assert list(tools) == ["read_file", "calculator", "python"]
    assert call_tool(tools, "read_file", {"name": "a.txt"}).result == "seventeen"


def test_unreadable_attachments_and_secret_questions_are_noted(official: Gaia, tmp_path: Path) -> None:
    notes: list[str] = []
    config = SimpleNamespace(outputs=tmp_path, sandbox=Sandboxing())
    GaiaBenchmark(official, SimpleNamespace(config=config, directory=tmp_path, note=notes.append), {})
    assert "no tool reads 1 attachments" in notes[0] and "b.mp3" in notes[0]
    assert "must not be published" in notes[1]


def test_scores(official: Gaia) -> None:
    known, secret = tasks_of(official).questions()
    for answer, scores in (("17", (1, 1)), ("seventeen", (0, 1)), ("So:\nFINAL ANSWER: 17", (1, 1)), (None, (0, 0))):
        assert tuple(score(AgentTrajectory(answer), known).values()) == scores, answer
    assert score(AgentTrajectory("?"), secret) == {"success": None, "lenient": None}


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


def test_addresses_that_may_have_the_key() -> None:
    for url in ("https://x.example/search", "http://localhost:8080/s", "http://127.0.0.1:1"):
        Gaia(source="official", path="x", search="serper", search_url=url)


def test_a_live_service_needs_its_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = Gaia(source="official", path="x", search="tavily")
    monkeypatch.delenv("TAVILY_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="TAVILY_API_KEY contains no key"):
        search_provider(settings, tmp_path)
    monkeypatch.setenv("MINE", "k")
    assert search_provider(replace(settings, search_key_env="MINE"), tmp_path) is not None


def test_programs_run_with_the_attachments_of_their_question(tmp_path):
    ran = []

    def runner(code, files):
        ran.append((code, sorted(files)))
        return SimpleNamespace(status="error", stdout="12\n", stderr="ValueError: no", files={})

    opened = []
    tasks = GaiaTasks(MINI, tmp_path, lambda: opened.append(1) or runner, {})
    with_files = next(question for question in tasks.questions() if question.read_files())
    (attempt,) = plan_attempts("code_executor", {}, [with_files], 1, 0)
    assert list(attempt.assignment.files) == ["landings.csv"]
    tools = {tool.name: tool for tool in attempt.tools}
    assert not opened  # a machine without a sandbox runs the questions that need none
    assert tools["python"].run(code="print(12)") == "12\nValueError: no"
    assert ran == [("print(12)", ["landings.csv"])]
    assert len(opened) == 1


@pytest.mark.parametrize(
    ("recipe", "agent", "runs_code"),
    [("agent_bench", "code_executor", True), ("agent_bench", "react", False), ("gaia", "react", True)],
)
def test_limits_of_programs_are_in_the_key_of_stages_that_run_them(recipe, agent, runs_code):
    chosen = f"agent={agent}"
    key = planned(recipe, chosen).settings_key
    for limit in ("sandbox.timeout_s=2", "sandbox.memory_mib=64"):
        assert (planned(recipe, chosen, limit).settings_key != key) == runs_code
    isolation = ("sandbox.level=namespaces", "sandbox.image=python:3.12")
    assert planned(recipe, chosen, *isolation).settings_key == key


def test_limits_of_programs_are_in_the_key_of_attempts():
    limits = Sandboxing(timeout_s=2, level="rlimits").limits
    assert limits["timeout_s"] == 2 and not {"level", "image"} & limits.keys()
    assert all(question.known["sandbox"] == limits for question in tasks_of(MINI, **limits).questions())
    resources = AgentResources(lambda: SimpleNamespace(identity={}), lambda: None, limits)
    assert build(CodeExecutor(), resources).identity["sandbox"] == limits


def test_fixtures_are_in_the_keys_by_content(tmp_path, monkeypatch):
    key = planned("gaia").settings_key
    known = tasks_of(MINI).questions()[0].known
    fixtures = shutil.copytree(mini.FIXTURES, tmp_path / "fixtures")
    monkeypatch.setattr(mini, "FIXTURES", fixtures)
    assert planned("gaia").settings_key == key
    for name in ("files.yml", "questions.yml", "pages.yml"):
        (fixtures / name).write_text((fixtures / name).read_text() + "# changed\n")
        changed = planned("gaia").settings_key
        assert changed != key
        key = changed
    changed = tasks_of(MINI).questions()[0].known
    assert changed == {**known, "pages": mini.fixture_digests()["pages.yml"]} != known


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
