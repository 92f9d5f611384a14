"""The simulated writer's dials are recovered from what it writes; the same question has the same answer."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.data.mini_hh import build
from rlhf_lab.data.world_settings import MiniHH
from rlhf_lab.environments.dialogue.faults import PRINCIPLES
from rlhf_lab.environments.splits import split_of
from rlhf_lab.packs.judging.judges.backends.settings import Simulated
from rlhf_lab.packs.judging.judges.backends.simulated import SimulatedBackend
from rlhf_lab.packs.judging.judges.backends.teacher import deciding_principle, write
from rlhf_lab.packs.judging.judges.questions import PairwiseQuestion, Writing
from rlhf_lab.packs.judging.judges.requests import CompletionRequest

DIALS = Simulated(misses=0.3, false_alarms=0.1, repairs=0.6, copies=0.25)
ROWS = 600


@pytest.fixture(scope="module")
def corpus():
    return build(MiniHH(train_pairs=ROWS, test_pairs=10))


def within(share: float, expected: float, count: int) -> bool:
    """Return True if a fraction of `count` lies within four standard errors of its expectation."""
    return abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / count)


def violations(world, prompt: str, draft: str, settings: Simulated) -> list[str]:
    answer = json.loads(write(Writing("critique", prompt, draft, PRINCIPLES), settings, world))
    return [violation["principle"] for violation in answer["violations"]]


def test_misses_and_false_alarms(corpus):
    missed, alarmed = [], []
    for pair in corpus.train:
        there = {fault.principle for fault in corpus.oracle.faults(pair.prompt, pair.rejected)}
        found = violations(corpus.oracle, pair.prompt, pair.rejected, DIALS)
        missed += [name not in found for name in there]
        alarmed += [name in found for name in PRINCIPLES if name not in there]
    assert within(np.mean(missed), 0.3, len(missed)) and within(np.mean(alarmed), 0.1, len(alarmed))
    perfect = replace(DIALS, misses=0.0, false_alarms=0.0)
    pair = corpus.train[0]
    exact = {fault.principle for fault in corpus.oracle.faults(pair.prompt, pair.rejected)}
    assert set(violations(corpus.oracle, pair.prompt, pair.rejected, perfect)) == exact


def test_repairs_at_the_stated_rate_and_nothing_that_was_not_named(corpus):
    before = after = 0
    for pair in corpus.train:
        about = Writing("revision", pair.prompt, pair.rejected, ("complete",))
        revision = json.loads(write(about, DIALS, corpus.oracle))["revision"]
        drafts, revised = (corpus.oracle.faults(pair.prompt, text) for text in (pair.rejected, revision))
        before += sum(fault.principle == "complete" for fault in drafts)
        after += sum(fault.principle == "complete" for fault in revised)
        others = [fault.principle for fault in drafts if fault.principle != "complete"]
        assert [fault.principle for fault in revised if fault.principle != "complete"] == others
    assert within(1 - after / before, 0.6, before)
    pair = corpus.train[0]
    untold = json.loads(write(Writing("revision", pair.prompt, pair.rejected, ()), DIALS, corpus.oracle))
    assert untold["revision"] == " ".join(pair.rejected.split())


def test_skill_is_the_quality_of_the_drafts(corpus):
    prompts = [pair.prompt for pair in corpus.train]
    means = []
    for skill in (0.0, 0.5, 1.0):
        drafts = [write(Writing("reply", prompt), replace(DIALS, skill=skill), corpus.oracle) for prompt in prompts]
        means.append(corpus.oracle.measure(prompts, drafts)["gold"].mean())
    assert means[0] + 0.3 < means[1] < means[2] - 0.3


def test_new_prompts_are_of_the_training_split_or_copies(corpus):
    example = "What did I ask before?"
    copies = 0
    for draw in range(50):
        about = Writing("prompt", example, count=8, draw=draw)
        prompts = json.loads(write(about, DIALS, corpus.oracle))["prompts"]
        assert len(prompts) == 8
        copies += prompts.count(example)
        for text in prompts:
            transcript = f"\n\nHuman: {text}\n\nAssistant:"
            assert text == example or split_of(transcript) == "train"
            assert text == example or corpus.oracle.book[transcript].text == transcript
    assert within(copies / 400, 0.25, 400)


def test_an_answer_follows_from_its_question(corpus):
    pair = corpus.train[1]
    response = Writing("reply", pair.prompt)
    assert write(response, DIALS, corpus.oracle) == write(response, DIALS, corpus.oracle)
    drafts = {write(replace(response, draw=draw), DIALS, corpus.oracle) for draw in range(8)}
    assert len(drafts) > 4
    assert write(response, replace(DIALS, seed=1), corpus.oracle) != write(response, DIALS, corpus.oracle)


def test_the_deciding_principle_is_where_the_better_reply_is_ahead(corpus):
    prompt = corpus.train[0].prompt
    ideal = corpus.oracle.ideal(prompt)
    padded = f"Great question! {ideal} I hope this helps!"
    names = ("harmless", "truthful", "concise")
    assert (
        deciding_principle(PairwiseQuestion(prompt, ideal, padded, principles=names), "A", corpus.oracle) == "concise"
    )
    assert (
        deciding_principle(PairwiseQuestion(prompt, padded, ideal, principles=names), "B", corpus.oracle) == "concise"
    )


def test_unknown_principles_and_worlds_are_errors(corpus):
    with pytest.raises(ConfigError, match=r"does not know the principles kind; it knows complete, "):
        write(Writing("critique", corpus.train[0].prompt, "", ("kind",)), DIALS, corpus.oracle)
    with pytest.raises(ConfigError, match="data=mini_hh"):
        write(Writing("reply", "hello"), DIALS, object())


def test_a_share_of_what_is_written_is_unusable(corpus):
    backend = SimulatedBackend(replace(DIALS, unusable=0.3), corpus.oracle)
    requests = [
        CompletionRequest((), about=Writing("critique", p.prompt, p.rejected, PRINCIPLES)) for p in corpus.train
    ]
    responses = backend.complete_many(requests)
    refused = np.mean([response.stop == "refused" for response in responses])
    truncated = np.mean([response.stop == "truncated" for response in responses])
    assert within(refused, 0.1, ROWS) and within(truncated, 0.1, ROWS)
