"""The web of agent_bench: its tools stand next to those of a task, and are part of what identifies an attempt."""

from __future__ import annotations

from scripted_agents import questions

from rlhf_lab.packs.agents.benchmarks.attempts import plan_attempts
from rlhf_lab.packs.agents.benchmarks.injections import injections, under_attack
from rlhf_lab.packs.agents.benchmarks.settings import WebChoices
from rlhf_lab.packs.agents.benchmarks.web import search_provider, with_web

OWN = WebChoices(search="own", search_results=3)


def test_the_web_stands_next_to_the_tools_of_a_task(tmp_path):
    (question, *_) = with_web(questions(), search_provider(OWN, tmp_path), OWN)
    tools = {tool.name: tool for tool in question.make_tools(question.task, 0)}
    assert list(tools) == ["search", "web_search", "open_page"]
    assert tools["search"].run(entity="Oslo") == "Norway"
    found = tools["web_search"].run(query="island ferry")
    assert found.startswith("1. ") and "\n3. " in found and "\n4. " not in found
    url = found.splitlines()[1].strip()
    assert tools["open_page"].run(url=url)
    assert search_provider(WebChoices(), tmp_path) is None


def test_the_web_is_part_of_an_attempt(tmp_path):
    def key(*settings):
        of_web = questions()
        for chosen in settings:
            of_web = with_web(of_web, search_provider(chosen, tmp_path), chosen)
        return plan_attempts("react", {}, of_web, 1, 0)[0].key

    assert len({key(), key(OWN), key(WebChoices(search="own", search_results=4))}) == 3
    assert key(OWN) == key(OWN)


def test_results_of_the_web_can_carry_an_order(tmp_path):
    (question, *_) = with_web(questions(), search_provider(OWN, tmp_path), OWN)
    attacked = under_attack(question, next(iter(injections().values())))
    tools = {tool.name: tool for tool in attacked.make_tools(question.task, 0)}
    plain = {tool.name: tool for tool in question.make_tools(question.task, 0)}
    assert tools["web_search"].run(query="island") != plain["web_search"].run(query="island")
