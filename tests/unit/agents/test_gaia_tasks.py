"""GAIA as a harness takes it: settings, tasks, tools, scores."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf_lab.core.episodes import Task
from rlhf_lab.core.errors import ConfigError, require
from rlhf_lab.core.tools import call_tool
from rlhf_lab.data.transcript import to_messages
from rlhf_lab.packs.agents.benchmarks import gaia_tasks
from rlhf_lab.packs.agents.benchmarks.gaia_settings import GaiaChoices
from rlhf_lab.packs.agents.benchmarks.web import search_provider

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


def test_the_annotated_calls_go_through_the_tools(tmp_path: Path) -> None:
    provider = search_provider(MINI, tmp_path)
    for task in gaia_tasks.tasks(MINI):
        generated = gaia_tasks.tools_for(task, MINI, provider=provider, run_code=lambda code: "printed")
        tools = {tool.name: tool for tool in generated}
        assert set(task.metadata["tools"]) <= set(tools)
        for step in task.metadata["steps"]:
            assert not call_tool(tools, step["tool"], step["arguments"]).failed
    assert not list(tmp_path.iterdir()), "nothing is stored of a web that is at hand"


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
        ({"levels": (1, 4)}, r"levels\[1\]=4 must be at least 1 and at most 3"),
        ({"levels": (1, 1)}, "must be without repeats"),
        ({"limit": -1}, "limit=-1"),
        ({"search": "tavily"}, "need their offline web"),
        ({"source": "official", "path": "x"}, "has no pages for the official questions"),
        ({"search_key_env": "KEY"}, "need a live service"),
        ({"source": "official", "path": "x", "search": "brave", "search_url": "http://far.example"}, "so use https"),
        ({"search_results": 0}, "search_results=0 must be at least 1 and at most 20"),
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
