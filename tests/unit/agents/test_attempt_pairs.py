"""Preference pairs of attempts: which attempts at a task become pairs, and what is kept of held-out tasks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rlhf_lab.core.episodes import Episode, Segment, Task
from rlhf_lab.core.errors import ArtifactError, ConfigError
from rlhf_lab.core.tools import function_call
from rlhf_lab.data.generated import Attempts, attempt_text, read_attempts, write_attempts
from rlhf_lab.data.transcript import render_prompt, response_text, to_conversation
from rlhf_lab.packs.agents.synthesis import attempt_pairs
from rlhf_lab.packs.agents.synthesis.attempt_pairs import ALL_RIGHT, ALL_WRONG, AttemptPairMaker, distinct_outcomes
from rlhf_lab.packs.agents.synthesis.settings import AttemptPairs
from rlhf_lab.packs.agents.tools.settings import HabitSettings, Tools
from rlhf_lab.packs.agents.tools.tools import build
from rlhf_lab.packs.judging.synthesis.making import CONTAMINATED

PROMPT = "\n\nHuman: where?\n\nAssistant:"


def maker(**settings) -> AttemptPairMaker:
    """A maker that samples nothing."""
    generated = object.__new__(AttemptPairMaker)
    generated.settings = AttemptPairs(**settings)
    generated.held_out_prompts = {"\n\nHuman: held out\n\nAssistant:"}
    return generated


def rows(responses: str, correct: list[int], prompt: str = PROMPT, **settings) -> list[tuple[str, str]] | str:
    """(chosen, rejected) of the rows of a task, whose responses are letters; the problem if it has none."""
    generated = maker(**settings)._rows(Attempts(prompt, list(responses), correct))
    if generated[0]["problem"]:
        assert len(generated) == 1
        return generated[0]["problem"]
    assert all(row["correct_chosen"] == 1 and row["prompt"] == prompt for row in generated)
    return [(row["chosen"], row["rejected"]) for row in generated]


def test_each_pair_has_another_wrong_attempt_and_right_ones_take_turns():
    assert rows("abcde", [1, 0, 0, 1, 0]) == [("a", "b"), ("d", "c"), ("a", "e")]
    assert rows("abcde", [1, 0, 0, 1, 0], pairs_per_task=2) == [("a", "b"), ("d", "c")]
    assert rows("abcde", [1, 1, 1, 1, 0]) == [("a", "e")]


def test_repeated_attempts_count_once():
    """Five attempts with three different answers give one pair with each wrong answer."""
    assert distinct_outcomes(Attempts(PROMPT, list("abbca"), [1, 0, 0, 0, 1])) == (["a"], ["b", "c"])
    assert rows("abbca", [1, 0, 0, 0, 1]) == [("a", "b"), ("a", "c")]
    # a tool that is busy at random lets the same turns end right once and wrong once
    assert distinct_outcomes(Attempts(PROMPT, list("aab"), [1, 0, 0])) == (["a"], ["b"])


def test_tasks_without_a_pair():
    assert rows("abc", [1, 1, 1]) == ALL_RIGHT
    assert rows("abc", [0, 0, 0]) == ALL_WRONG
    assert rows("ab", [1, 0], prompt="\n\nHuman: held out\n\nAssistant:") == CONTAMINATED


def test_a_held_out_prompt_is_attempted_once(monkeypatch):
    """Two tasks may ask the same about different facts. Attempts at one of them would count for both."""
    tasks = {
        "train": [Task("a", {"answer": "1"})],
        "test": [Task("b", {"answer": "2"}), Task("c", {"answer": "3"}), Task("b", {"answer": "4"})],
    }
    monkeypatch.setattr(attempt_pairs, "PolicyResponses", lambda run: None)
    run = SimpleNamespace(corpus=SimpleNamespace(environment=object(), tasks=tasks.__getitem__))
    prepared = AttemptPairMaker(AttemptPairs(heldout_tasks=3), run)
    assert prepared.heldout == [prepared.tasks["b"], prepared.tasks["c"]]


def showing(**data):
    """A corpus of demonstrations without habits, and a maker that shows them where every attempt failed."""
    none = HabitSettings(wrong_relation=0.0, take_redirect=0.0, stop_early=0.0, repeat_call=0.0)
    corpus = build(Tools(test_tasks=2, habits=none, **data))
    generated = maker(demonstrate=True)
    generated.environment = corpus.environment
    generated.tasks = {task.prompt: task for task in corpus.tasks("train")}
    return corpus, generated


def test_the_environment_shows_what_the_policy_never_did():
    corpus, generated = showing(train_tasks=6)
    for task, demonstration in zip(corpus.tasks("train"), corpus.train, strict=True):
        (row,) = generated._rows(Attempts(task.prompt, ["Answer: nonsense"], [0]))
        assert row["rejected"] == "Answer: nonsense"
        assert f"{task.prompt} {row['chosen']}" == f"{demonstration.prompt} {demonstration.chosen}"


def test_a_demonstration_that_fails_is_not_preferred():
    """Most calls of a busy tool fail, so the environment's own attempt often ends with the answer "unknown"."""
    _, generated = showing(train_tasks=20, busy=0.9)
    attempts = [Attempts(prompt, ["Answer: nonsense"], [0]) for prompt in generated.tasks]
    problems = [generated._rows(each)[0]["problem"] for each in attempts]
    assert ALL_WRONG in problems and None in problems


def test_an_attempt_is_all_that_was_said_behind_the_task():
    task = Task(PROMPT)
    prompt = "\n\nHuman: where?\n\nAssistant: Action: look[ a ]\n\nTool: b\n\nAssistant:"
    assert attempt_text(Episode(task, prompt, "Answer: b")) == ("Action: look[ a ]\n\nTool: b\n\nAssistant: Answer: b")
    assert attempt_text(Episode(task, PROMPT, "Answer: b")) == "Answer: b"


def test_an_attempt_holds_no_tools_that_were_added_to_its_prompt():
    """A chat template receives the environment's tools; a row's prompt is the task's, for any model."""
    task = Task("\n\nHuman: where?\n\n\\Tools: typed\n\nAssistant:")
    tools = [{"type": "function", "function": {"name": "look", "description": "é", "parameters": {}}}]
    stated = render_prompt(to_conversation(task.prompt).messages, tools)
    assert attempt_text(Episode(task, stated, "Answer: b")) == "Answer: b"
    call = {"role": "assistant", "content": "", "tool_calls": [function_call("look", {"at": "a"}, "c1")]}
    result = {"role": "tool", "name": "look", "content": "b"}
    behind = render_prompt([*to_conversation(task.prompt).messages, call, result], tools)
    text = attempt_text(Episode(task, behind, "Answer: b"))
    assert "Tools:" not in text
    output_text = to_conversation(f"{task.prompt}{text}").messages
    assert output_text[1:] == [call, result, {"role": "assistant", "content": "Answer: b"}]
    # a first turn that is also the last
    calling = attempt_text(Episode(task, stated, response_text(call)))
    assert to_conversation(f"{task.prompt}{calling}").messages[1:] == [call]


def test_an_attempt_that_was_cut_is_wrong_and_what_cannot_be_graded_is_refused():
    generated = maker()
    generated.run = SimpleNamespace(corpus=SimpleNamespace(name="own"))
    generated.environment = SimpleNamespace(grade=lambda episodes: {"correct": [1.0] * len(episodes)})
    segment = Segment([5], sampled=True, logps=[-1.0])
    episodes = [Episode(Task(PROMPT), PROMPT, "x", [1], (segment,), finished=finished) for finished in (True, False)]
    assert generated._outcomes(episodes) == [1, 0]
    generated.environment = SimpleNamespace(grade=lambda episodes: {"gold": [0.0] * len(episodes)})
    with pytest.raises(ConfigError, match="grades episodes as right or wrong"):
        generated._outcomes(episodes)


def test_held_out_attempts_are_read_back(tmp_path):
    attempts = [Attempts("p", ["a", "b"], [1, 0]), Attempts("q", ["c", "d"], [0, 0])]
    write_attempts(tmp_path, attempts)
    assert read_attempts(tmp_path) == attempts
    with pytest.raises(ArtifactError, match=r"has no attempts\.jsonl; name a recipe with algorithm=attempt_pairs"):
        read_attempts(tmp_path / "elsewhere")
