"""The texts of the dialogue world fit each other: every topic into every template, every fact among its values."""

from __future__ import annotations

from string import Formatter

import pytest

from rlhf_lab.environments.dialogue import content, phrases
from rlhf_lab.environments.dialogue.content import Domain

DOMAINS = [value for value in vars(content).values() if isinstance(value, Domain)]


def fields(template: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(template) if name}


@pytest.mark.parametrize("domain", DOMAINS, ids=lambda domain: domain.topics[0])
def test_every_attribute_has_six_values_and_templates_that_take_them(domain):
    names = [attribute.name for attribute in domain.attributes]
    assert len(set(names)) == len(names) >= 3  # a broad question wants the first three
    for attribute in domain.attributes:
        assert len(set(attribute.values)) == 6, attribute.name
        assert fields(attribute.question) == {"t"} and fields(attribute.form) == {"t", "v"}, attribute.name
    assert fields(domain.broad) == {"t"}
    assert all(fields(request) == {"t"} for request in domain.unsafe_requests)


def test_shared_sentences_are_distinct_and_say_what_they_leave_open():
    groups = (phrases.AFFIRMATIONS, phrases.FILLERS, phrases.CLOSINGS, phrases.REFUSALS, phrases.HEDGES)
    sentences = [sentence for group in groups for sentence in group]
    assert len(set(sentences)) == len(sentences)
    assert not any(fields(sentence) for sentence in sentences)
    assert fields(phrases.FACT_FORM) == {"name", "t", "v"}
    assert fields(phrases.PAIR_QUESTION) == {"first", "second", "t"}
    for question in (phrases.BROAD_QUESTION, *phrases.UNKNOWABLE_QUESTIONS, *phrases.TOPIC_BELIEFS):
        assert fields(question) == {"t"}
