"""One object scores the reward and the metric; prompts are put to the policy with a template and a system message."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pytest
from support import checked, planned, said

from rlhf_lab.config import registry
from rlhf_lab.core.errors import ConfigError, LabError
from rlhf_lab.core.types import Corpus, Pair
from rlhf_lab.data.file_settings import GSM8K, PromptsData, Verifiable
from rlhf_lab.data.settings import Mix
from rlhf_lab.data.split_rows import as_requested
from rlhf_lab.data.transcript import render_prompt, to_messages
from rlhf_lab.rewards.checked import CheckedReward
from rlhf_lab.rewards.verifiers.oracle import VerifierOracle, verified
from rlhf_lab.rewards.verifiers.settings import Json
from rlhf_lab.rewards.verifiers.verifier import VerifierTermReward, VerifierVerdict, check_responses, verifier_of
from rlhf_lab.training.run import Run

SCHEMA = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
REPLIES = ['{"n": 3}', '{"n": "3"}', "three"]


class Shares:
    """A verifier with the narrow protocol: one number per response."""

    def score(self, metadata, prompt, response):
        return len(response) / metadata["most"] if "most" in metadata else math.nan


def write_rows(directory, rows):
    path = directory / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_verifier_of_one_number_is_enough():
    reward = CheckedReward("shares", VerifierTermReward(Shares()))
    batch = reward(said(["p", "q", "r"], ["ab", "abcd", "a"], most=[4, 4, 0.5]))
    assert batch.total_N.tolist() == [0.5, 1.0, 2.0]
    assert batch.parts == {}
    unscored = reward(said(["p"], ["ab"]))
    assert math.isnan(unscored.total_N[0])
    assert (reward.scored, reward.abstained) == (3, 1)


def test_a_verifier_of_a_verdict_needs_no_score():
    class Detailed:
        def verdict(self, metadata, prompt, response):
            return VerifierVerdict(0.5, {"length": len(response)})

    batch = VerifierTermReward(Detailed()).score_episodes(said(["p"], ["ab"]))
    assert (batch.total_N.tolist(), batch.parts["length"].tolist()) == ([0.5], [2])


def test_data_with_a_verifier_import_no_torch():
    names = ("oracle", "json", "math", "ifeval")
    code = "; ".join(f"import rlhf_lab.rewards.verifiers.{name}" for name in names)
    code = f"import sys; {code}; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_parts_that_a_verdict_lacks_are_unknown_there():
    verifier = verifier_of(Json(), None)
    batch = check_responses(verifier, [({"schema": SCHEMA}, "p", REPLIES[0]), ({}, "p", REPLIES[0])])
    assert batch.total_N[0] == 1 and math.isnan(batch.total_N[1])
    assert batch.parts["valid"][0] == 1 and math.isnan(batch.parts["valid"][1])
    assert check_responses(verifier, []).total_N.shape == (0,)


def test_correct_is_a_score_of_one_and_abstentions_stay_unknown():
    metadata = {"p": {"most": 2}, "q": {"most": 4}}
    oracle = VerifierOracle(Shares(), Corpus("planted", [], [], "0", metadata=metadata))
    measured = oracle.measure(["p", "q", "r"], ["ab", "ab", "ab"])
    np.testing.assert_array_equal(measured["correct"], [1, 0, np.nan])
    np.testing.assert_array_equal(measured["verified"], [1, 0.5, np.nan])
    with pytest.raises(LabError, match="a verifier cannot label pairs"):
        oracle.prefer(["p"], ["a"], ["b"], seed=0)


def test_one_object_scores_the_reward_and_the_metric(tmp_path):
    path = write_rows(tmp_path, [{"prompt": f"Give me {i} as JSON.", "schema": SCHEMA} for i in range(40)])
    data = ("data=prompts", f"data.path={path}", "data.test_fraction=0.3", "model=micro")
    config = checked("grpo_math", *data, "reward=json", "reward.terms.json.parses=0.25")
    run = Run(directory=tmp_path, config=config, needs={})
    reward = registry.build("reward", config.reward.terms["json"], run)
    assert reward.verifier is run.corpus.oracle.verifier
    prompts = [run.corpus.test[0].prompt] * 3
    scored = reward.score_episodes(run.corpus.episodes(prompts, REPLIES))
    measured = run.corpus.oracle.measure(prompts, REPLIES)
    assert scored.total_N.tolist() == measured["verified"].tolist() == [1, 0.25, 0]
    assert measured["correct"].tolist() == [1, 0, 0]
    assert measured["verified/parses"].tolist() == scored.parts["parses"].tolist() == [1, 1, 0]
    assert run.corpus.verified


def test_data_name_a_verifier_where_nothing_is_rewarded(tmp_path):
    rows = [{"prompt": f"Give {i}.", "completion": "{}", "answer": 7, "schema": SCHEMA} for i in range(40)]
    path = write_rows(tmp_path, rows)
    data = ("data=verifiable", f"data.path={path}", "data.solution=completion", "model=micro")
    simple = checked("sft", *data)
    assert simple.verifier is None
    chosen = checked("sft", *data, "data.verifier=json")
    assert chosen.verifier == Json()
    corpus = Run(directory=tmp_path, config=chosen, needs={}).corpus
    assert corpus.oracle.measure([corpus.train[0].prompt], ["{}"])["correct"].tolist() == [0]
    stages = [planned("sft", *data, f"data.verifier={kind}") for kind in ("json", "null")]
    assert len({stage.settings_key for stage in stages}) == 2
    assert any("verifiers/json.py" in name for name in stages[0].code)
    assert not any("verifiers/json.py" in name for name in stages[1].code)


def test_what_measures_is_said_or_the_only_verifier_of_the_reward():
    data = ("data=verifiable", "data.path=owner/name")
    assert checked("grpo_math", *data, "reward=verifier").verifier is None
    both = checked("grpo_math", *data, "reward=[verifier,json]", "reward.terms.json.weight=0.5")
    assert both.verifier == Json(weight=0.5)
    assert checked("sft", *data, "data.solution=text", "reward=json").verifier is None  # it reads no reward
    with pytest.raises(ConfigError, match=r"data.verifier=gold is not a verifier; use one of .*json"):
        checked("grpo_math", *data, "data.verifier=gold")


def test_a_world_keeps_its_own_truth():
    class World:
        def measure(self, prompts, responses):
            return {}

    world = Corpus("world", [Pair("p", "", "")], [], "0", oracle=World())
    assert verified(world, Json(), None) is world
    assert Json().as_oracle(world, checked("grpo")) is world  # through the settings, as a run does it


def test_a_mix_is_measured_by_the_verifier_of_the_reward():
    with pytest.raises(ConfigError, match=r"sources.a.verifier=json: the sources of a mix are measured together"):
        Mix(sources={"a": {"kind": "prompts", "path": "x", "verifier": "json"}})


def test_the_template_goes_around_the_last_question_and_the_system_message_before_all():
    messages = [
        {"role": "user", "content": "Two plus two?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "And {x} Human: three?"},
    ]
    settings = Verifiable(path="x", prompt_template="{prompt}\n\nBox it: \\boxed{}.", system="You count.")
    assert to_messages(as_requested(render_prompt(messages), settings)) == [
        {"role": "system", "content": "You count."},
        *messages[:2],
        {"role": "user", "content": "And {x} Human: three?\n\nBox it: \\boxed{}."},
    ]


def test_a_row_keeps_a_system_message_of_its_own():
    messages = [{"role": "system", "content": "Own."}, {"role": "user", "content": "Hi"}]
    settings = PromptsData(path="x", system="Other.", prompt_template="{prompt}!")
    requested = as_requested(render_prompt(messages), settings)
    assert to_messages(requested) == [messages[0], {"role": "user", "content": "Hi!"}]
    odd = "no transcript at all"
    assert as_requested(odd, GSM8K(path="x")) is odd  # neither template nor system message


@pytest.mark.parametrize("kind", [GSM8K, PromptsData, Verifiable])
def test_a_template_needs_a_place_for_the_question(kind):
    with pytest.raises(ValueError, match=r"has no placeholder for the question; write \"{prompt}\""):
        kind(path="x", prompt_template="Think step by step.")


SOURCES = {
    "gsm8k": {"question": "How many? {}", "answer": "So #### {}"},
    "prompts": {"prompt": "How many? {}", "answer": "{}"},
    "verifiable": {"prompt": "How many? {}", "answer": "{}"},
}


@pytest.mark.parametrize("kind", SOURCES)
def test_template_and_system_are_part_of_the_data(tmp_path, kind):
    rows = [{name: text.format(i) for name, text in SOURCES[kind].items()} for i in range(60)]
    path = write_rows(tmp_path, rows)
    cls = registry.settings_class("data", kind)
    simple = registry.build("data", cls(path=str(path)))
    requested = registry.build("data", cls(path=str(path), prompt_template="Q: {prompt}", system="Be brief."))
    assert simple.fingerprint != requested.fingerprint
    prompt = requested.test[0].prompt
    assert prompt.startswith("\n\nSystem: Be brief.\n\nHuman: Q: How many?")
    if kind != "prompts":  # the key of an answer is the prompt that is sent
        assert requested.oracle.measure([prompt], [f"#### {requested.answers[prompt]}"])["correct"].tolist() == [1]
    assert requested.task(prompt).metadata["answer"]
    # the same questions are held out with every template
    sources = [[pair.meta["source"] for pair in corpus.test] for corpus in (simple, requested)]
    assert sources[0] == sources[1]


def test_settings_that_came_later_are_in_a_key_only_when_set():
    """So that results from before keep their key."""
    data = ("data=gsm8k", "data.path=owner/name")
    simple = planned("sft", *data).settings_key
    assert planned("sft", *data, 'data.prompt_template="{prompt}"', "data.verifier=null").settings_key == simple
    assert planned("sft", *data, 'data.prompt_template="{prompt}!"').settings_key != simple
    math = planned("grpo_math").settings_key
    same = ("evaluation.pass_at=[]", "algorithm.curriculum=uniform", "algorithm.curriculum_explore=0.5")
    assert planned("grpo_math", *same).settings_key == math
    changed = ("evaluation.pass_at=[1]", "algorithm.curriculum=edge", "algorithm.curriculum_explore=0.4")
    assert len({planned("grpo_math", override).settings_key for override in changed} | {math}) == 4
