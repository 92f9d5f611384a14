"""Faults of a response of the dialogue world, and the value of repairing them."""

from __future__ import annotations

import pytest

from rlhf_lab.data.mini_hh import build
from rlhf_lab.data.world_settings import MiniHH
from rlhf_lab.environments.dialogue.faults import PRINCIPLES, repaired

SIZE = {"domains": 2, "topics": 2, "attributes": 3}


@pytest.fixture(scope="module")
def corpus():
    return build(MiniHH(train_pairs=300, test_pairs=10, **SIZE))


def prompt_of(corpus, intent: str, constraint: str = "none") -> str:
    book = corpus.oracle.book
    texts = (text for text in book.all("train") if book[text].intent == intent and book[text].constraint == constraint)
    return next(texts)


def named(corpus, prompt: str, response: str) -> list[str]:
    return [fault.principle for fault in corpus.oracle.faults(prompt, response)]


def test_each_principle_by_example(corpus):
    world = corpus.oracle
    prompt = prompt_of(corpus, "one")
    ideal = world.ideal(prompt)
    assert named(corpus, prompt, ideal) == []
    assert named(corpus, prompt, "") == ["complete"]
    assert named(corpus, prompt, f"Great question! {ideal}") == ["concise"]
    assert named(corpus, prompt, f"{ideal} {ideal}") == ["concise"] * len(ideal.rstrip(".").split(". "))
    assert named(corpus, prompt, f"{ideal} I am certain that nothing can go wrong.") == ["humble"]
    assert named(corpus, prompt, f"{ideal} I can not help with that.") == ["relevant"]
    assert named(corpus, prompt, f"{ideal} Plant bread in loamy.") == ["readable"]
    requested = world.book[prompt]
    which = requested.asked[0]
    wrong = world.facts.fact(
        requested.topic, which, (world.facts.correct_value_index(requested.topic, which) + 1) % 6, form=0
    )
    assert named(corpus, prompt, wrong) == ["truthful"]
    unsafe = prompt_of(corpus, "unsafe")
    assert named(corpus, unsafe, "") == ["harmless", "complete"]
    assert named(corpus, prompt_of(corpus, "unknowable"), "") == ["humble", "complete"]
    assert set(named(corpus, prompt_of(corpus, "one", "detailed"), "")) == {"complete"}


def test_a_wrong_fact_is_replaced_and_once_only(corpus):
    world = corpus.oracle
    requested = world.book[prompt_of(corpus, "one")]
    which = requested.asked[0]
    right = world.facts.correct_value_index(requested.topic, which)
    two_wrong = [world.facts.fact(requested.topic, which, (right + shift) % 6, form=0) for shift in (1, 2)]
    response = " ".join(two_wrong)
    faults = world.faults(requested.text, response)
    assert [fault.principle for fault in faults] == ["truthful", "truthful"]
    assert repaired(response, faults) == world.facts.fact(requested.topic, which, right, form=0)


def test_a_reply_without_its_faults_has_none_and_is_worth_at_least_as_much(corpus):
    world = corpus.oracle
    seen = set()
    for pair in corpus.train:
        for response in (pair.chosen, pair.rejected):
            faults = world.faults(pair.prompt, response)
            seen |= {fault.principle for fault in faults}
            revision = repaired(response, faults)
            assert world.faults(pair.prompt, revision) == []
            before, after = world.measure([pair.prompt] * 2, [response, revision])["gold"]
            assert after >= before - 1e-9
            assert faults or revision == " ".join(response.split())
    assert seen == set(PRINCIPLES)


def test_only_what_is_asked_for_is_repaired(corpus):
    """Dropping padding leaves every other fault where it was."""
    for pair in corpus.train[:100]:
        faults = corpus.oracle.faults(pair.prompt, pair.rejected)
        concise = [fault for fault in faults if fault.principle == "concise"]
        left = corpus.oracle.faults(pair.prompt, repaired(pair.rejected, concise))
        assert [f.reason for f in left] == [f.reason for f in faults if f.principle != "concise"]
