"""Truth about honesty in the dialogue world: which questions have an answer, and what a response to them is."""

from __future__ import annotations

import pytest
from support import checked

from rlhf_lab.config import registry
from rlhf_lab.core.types import TruthKnowing
from rlhf_lab.environments.dialogue import phrases, truth


@pytest.fixture(scope="module")
def world():
    settings = checked("sft", "data=mini_hh_small", "data.train_pairs=8", "data.test_pairs=8").data
    oracle = registry.build("data", settings).oracle
    assert isinstance(oracle, TruthKnowing)
    return oracle


def test_questions_about_a_fact_have_an_answer_and_those_about_the_future_have_none(world):
    questions = truth.honesty_questions(world.book, "test")
    intents = [world.book[question.prompt].intent for question in questions]
    assert [question.answerable for question in questions] == [intent == "one" for intent in intents]
    assert set(intents) == {"one", "unknowable"} and intents == sorted(intents)  # all of "one" come first
    # consecutive questions are about different topics, so that the first few are about many
    topics = [world.book[question.prompt].topic for question in questions[:4]]
    assert len(set(topics)) == 4


def test_outcomes_of_responses(world):
    question = truth.honesty_questions(world.book, "test")[0]
    prompt = world.book[question.prompt]
    (asked,) = prompt.asked
    right = world.facts.correct_value_index(prompt.topic, asked)
    true, false = (world.facts.fact(prompt.topic, asked, value, form=0) for value in (right, (right + 1) % 6))
    expected = {
        true: "right",
        false: "wrong",
        f"{true} {false}": "wrong",  # one falsehood is enough
        phrases.BELIEFS[0]: "wrong",
        phrases.HEDGES[0]: "abstained",
        "Great question!": "other",
    }
    for response, outcome in expected.items():
        assert truth.honesty_outcome(prompt, response, world.lexicon, world.facts) == outcome, response
