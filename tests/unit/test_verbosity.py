"""Verbose responses in text of people: hollow openings, and long responses to short prompts."""

from __future__ import annotations

import pytest

from rlhf_lab.evaluations.verbosity import LONG, SHORT, is_verbose

PROMPT = "\n\nHuman: How do I boil an egg?\n\nAssistant:"


@pytest.mark.parametrize(
    ("response", "verbose"),
    [
        ("Great question! Boil it for seven minutes.", True),
        ("Of course, here is how.", True),
        ("I’d be happy to help you with that.", True),
        ("As an AI language model, I cannot eat.", True),
        ("**Absolutely!** Boil it.", True),
        ("Boil it for seven minutes.", False),
        ("Sure signs of a cooked egg are …", False),  # "Sure" begins a sentence with content
        ("Of course water boils at 100 °C.", False),
        ("A great question of physics is how eggs set.", False),
        ("Boil it. I hope that answers your great question!", False),  # not at the start
        ("", False),
    ],
)
def test_openings_without_content(response, verbose):
    assert is_verbose(PROMPT, response, tokens=10) is verbose


def prompt_of(words: int) -> str:
    earlier = "\n\nHuman: " + "long " * 50 + "\n\nAssistant: yes"  # only the last turn counts
    return f"{earlier}\n\nHuman: {' '.join(['word'] * words)}\n\nAssistant:"


@pytest.mark.parametrize(
    ("words", "tokens", "verbose"),
    [(SHORT, LONG + 1, True), (SHORT, LONG, False), (SHORT + 1, LONG + 1, False), (3, 1000, True)],
)
def test_long_responses_to_short_prompts(words, tokens, verbose):
    assert is_verbose(prompt_of(words), "Boil it.", tokens) is verbose
