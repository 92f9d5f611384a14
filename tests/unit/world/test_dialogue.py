"""Data that the world generates: splits, determinism, readability, robustness."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.metrics import names
from rlhf_lab.core.types import Pair, TruthKnowing
from rlhf_lab.environments.annotator import Annotator
from rlhf_lab.environments.dialogue import phrases, truth
from rlhf_lab.environments.dialogue.lexicon import sentences
from rlhf_lab.environments.dialogue.prompts import INTENTS, enumerate_prompts
from rlhf_lab.environments.dialogue.responses import ResponseRates, ResponseWriter
from rlhf_lab.environments.dialogue.world import MEASURES, DialogueWorld
from rlhf_lab.environments.splits import split_of

ANNOTATOR = Annotator(length_bias=0.6, affirmation_bias=0.5, closing_bias=0.3, temperature=0.7)


def rebuilt(size=(3, 3, 4), seed=0) -> DialogueWorld:
    domains, topics, attributes = size
    return DialogueWorld(domains=domains, topics=topics, attributes=attributes, seed=seed, annotator=ANNOTATOR)


def test_no_two_prompts_share_a_text_and_no_prompt_is_in_both_splits(world):
    prompts = list(enumerate_prompts(world.facts))
    assert len({prompt.text for prompt in prompts}) == len(prompts) == len(world.book)
    train, test = set(world.book.all("train")), set(world.book.all("test"))
    assert not train & test
    assert len(train) + len(test) == len(world.book)
    assert 0.13 < len(test) / len(world.book) < 0.17
    assert set(world.prompts(2000, "train", seed=0)) <= train
    assert set(world.prompts(2000, "test", seed=0)) <= test
    assert {pair.prompt for pair in world.pairs(500, "test")} <= test


def test_split_is_a_fixed_property_of_the_text():
    code = "from rlhf_lab.environments.splits import split_of; print([split_of(f'prompt {i}') for i in range(60)])"
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert run.stdout == f"{[split_of(f'prompt {i}') for i in range(60)]}\n"
    # Known answers: a changed hash would silently move prompts between the splits of stored artifacts.
    assert split_of("\n\nHuman: Which soil is best for roses?\n\nAssistant:") == "train"


def test_prompt_shares_follow_the_intents(world):
    selected = [world.book[text].intent for text in world.prompts(4000, "train", seed=1)]
    for intent, fraction in INTENTS.items():
        assert selected.count(intent) / 4000 == pytest.approx(fraction, abs=0.03)  # 4 standard errors


def test_prompts_are_transcripts_and_follow_ups_say_that(world):
    prompts = list(enumerate_prompts(world.facts))
    assert {prompt.intent for prompt in prompts} >= {"one", "follow_up"}
    for prompt in prompts:
        assert prompt.text.startswith("\n\nHuman: ") and prompt.text.endswith("\n\nAssistant:")
        assert prompt.text.count("\n\nHuman: ") == (2 if prompt.intent == "follow_up" else 1)
        if prompt.intent == "follow_up":
            assert " that" in prompt.text.rsplit("\n\nHuman: ", 1)[1]


def test_same_seed_same_world_and_prefix(small):
    assert rebuilt().pairs(120, "train", seed=4) == small.pairs(120, "train", seed=4)
    assert small.pairs(120, "train", seed=4)[:40] == small.pairs(40, "train", seed=4)
    assert small.pairs(40, "train", seed=4) != small.pairs(40, "train", seed=5)
    assert rebuilt(seed=1).pairs(40, "train") != small.pairs(40, "train")
    assert small.prompts(30, "test", seed=2)[:10] == small.prompts(10, "test", seed=2)


def test_facts_do_not_change_with_the_size_of_the_world(world, small):
    for topic in small.facts.topics:
        for attribute in small.facts.attributes:
            values = {w.facts.correct_value_index(topic, attribute) for w in (small, world)}
            assert len(values) == 1


def test_uncorrupted_candidates_parse_and_corrupted_are_garble(world):
    prompts = world.prompts(600, "train", seed=0)
    for corrupt in (0.0, 1.0):
        writer = ResponseWriter(world.facts, world.lexicon, replace(ResponseRates(), corrupt=corrupt))
        rng = np.random.default_rng(0)
        responses = [writer.write(world.book[prompt], rng) for prompt in prompts]
        assert (world.measure(prompts, responses)["garble"] == corrupt).all()
        assert all(response == response.strip() and response for response in responses)


def test_no_candidate_beats_the_ideal_reply(world):
    prompts = world.prompts(3000, "train", seed=5)
    ideal = world.measure(prompts, [world.ideal(prompt) for prompt in prompts])
    candidates = world.measure(prompts, world.candidates(prompts, seed=6))
    assert ideal["gold"].min() >= 2.4 - 1e-9
    assert (candidates["gold"] <= ideal["gold"] + 1e-9).all()
    assert (ideal["verbose"] == 0).all() and (ideal["garble"] == 0).all()


def test_adding_or_dropping_a_sentence_never_improves_the_ideal_reply(small):
    extra = list(small.lexicon)[::7]
    texts = small.book.all("test")[::15]
    assert texts and extra
    for text in texts:
        parts = sentences(small.ideal(text))
        parts = [part.strip() for part in parts]
        variants = [" ".join([*parts, sentence]) for sentence in extra]
        variants += [" ".join(parts[:i] + parts[i + 1 :]) for i in range(len(parts))]
        best = small.measure([text], [small.ideal(text)])["gold"][0]
        assert small.measure([text] * len(variants), variants)["gold"].max() <= best + 1e-9


def test_measure_does_not_depend_on_order_or_company(world):
    prompts = world.prompts(60, "train", seed=2)
    responses = world.candidates(prompts, seed=3)
    together = world.measure(prompts, responses)["gold"]
    assert (world.measure(prompts[::-1], responses[::-1])["gold"][::-1] == together).all()
    assert [world.measure([p], [r])["gold"][0] for p, r in zip(prompts, responses, strict=True)] == together.tolist()


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=300))
def test_any_text_is_graded(world, text):
    prompt = world.book.all("test")[0]
    grades = world.measure([prompt], [text])
    assert all(np.isfinite(values).all() for values in grades.values())
    for name in ("helpfulness", "honesty", "harmlessness", "conciseness", "specificity"):
        assert 1 <= grades[name][0] <= 5


@settings(max_examples=60, deadline=None)
@given(before=st.text(" \n\t", max_size=4), after=st.text(" \n\t", max_size=4), row=st.integers(0, 49))
def test_surrounding_whitespace_changes_nothing(small, before, after, row):
    prompt = small.prompts(50, "train", seed=9)[row]
    (response,) = small.candidates([prompt], seed=row)
    simple, framed = small.measure([prompt], [response]), small.measure([prompt], [f"{before}{response}{after}"])
    assert all(simple[name][0] == framed[name][0] for name in names(MEASURES))


def test_unknown_prompts_and_wrong_arguments_say_what_to_write(world):
    with pytest.raises(DataError, match="does not know the prompt 'What is love"):
        world.measure(["What is love?"], ["Baby."])
    with pytest.raises(DataError, match="one response per prompt"):
        world.measure(world.prompts(2, "test", seed=0), ["Great question!"])
    with pytest.raises(DataError, match="use train or test"):
        world.prompts(2, "valid", seed=0)


def test_pairs_carry_their_truth(small):
    pairs, report = small.sample(400, "train")
    assert report.rows == report.kept + sum(report.dropped.values()) and report.kept == 400
    for pair in pairs:
        assert isinstance(pair, Pair) and pair.chosen != pair.rejected
    prompts = [pair.prompt for pair in pairs]
    for side in ("chosen", "rejected"):
        grades = small.measure(prompts, [getattr(pair, side) for pair in pairs])
        for name in ("gold", "words", "verbose", "garble"):
            assert [pair.meta[f"{name}_{side}"] for pair in pairs] == grades[name].tolist()
    _, probability = small.prefer(prompts, [pair.chosen for pair in pairs], [pair.rejected for pair in pairs], seed=0)
    assert [pair.meta["p_chosen"] for pair in pairs] == pytest.approx(probability.tolist())


def test_vocabulary_is_closed(world):
    """Prompts and known sentences hold every token, also those of corrupted candidates."""
    token = re.compile(r" ?\w+| ?[^\w\s]+|\s+")
    closed = {t for text in [*world.book.all("train"), *world.book.all("test")] for t in token.findall(text)}
    closed |= {t for sentence in world.lexicon for t in token.findall(f" {sentence}")}
    prompts = world.prompts(1500, "train", seed=0)
    responses = world.candidates(prompts, seed=1)
    assert {t for response in responses for t in token.findall(f" {response}")} <= closed
    assert len(closed) == 682  # documented in docs/world.md


def test_harmful_prompts_have_safe_ones_of_their_topics_and_replies_have_outcomes(world):
    requested = truth.safety_prompts(world.book, "test")
    harmful = [prompt for prompt in requested if prompt.harmful]
    assert harmful and requested[: len(harmful)] == harmful and len(requested) > len(harmful)
    assert {prompt.category for prompt in requested} <= set(truth.CATEGORIES)
    steps = world.facts.domains[truth.CATEGORIES.index(harmful[0].category)].unsafe_steps
    refusal = "I can not help with that."
    responses = [refusal, steps[0], f"{refusal} {steps[1]}", "mumble"]
    outcomes = world.safety_outcomes([harmful[0].base] * 4, responses)
    assert outcomes == ["refused", "complied", "partial", "evaded"]


def test_questions_about_a_fact_have_an_answer_and_those_about_the_future_have_none(small):
    assert isinstance(small, TruthKnowing)
    questions = truth.honesty_questions(small.book, "test")
    intents = [small.book[question.prompt].intent for question in questions]
    assert [question.answerable for question in questions] == [intent == "one" for intent in intents]
    assert set(intents) == {"one", "unknowable"} and intents == sorted(intents)  # all of "one" come first
    # consecutive questions are about different topics, so that the first few are about many
    topics = [small.book[question.prompt].topic for question in questions[:4]]
    assert len(set(topics)) == 4


def test_outcomes_of_responses(small):
    question = truth.honesty_questions(small.book, "test")[0]
    prompt = small.book[question.prompt]
    (asked,) = prompt.asked
    right = small.facts.correct_value_index(prompt.topic, asked)
    true, false = (small.facts.fact(prompt.topic, asked, value, form=0) for value in (right, (right + 1) % 6))
    expected = {
        true: "right",
        false: "wrong",
        f"{true} {false}": "wrong",  # one falsehood is enough
        phrases.BELIEFS[0]: "wrong",
        phrases.HEDGES[0]: "abstained",
        "Great question!": "other",
    }
    for response, outcome in expected.items():
        assert truth.honesty_outcome(prompt, response, small.lexicon, small.facts) == outcome, response
