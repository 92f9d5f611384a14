"""Instructions of IFEval: every id followed and not followed, strict and loose readings, and the form of the rows."""

from __future__ import annotations

import json
import math
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
from support import said

from rlhf_lab.config import registry
from rlhf_lab.core.errors import DataError, MissingDependency
from rlhf_lab.core.types import Corpus
from rlhf_lab.rewards.verifiers import instructions
from rlhf_lab.rewards.verifiers.ifeval import IFEvalVerifier, lenient_variants, read_instructions
from rlhf_lab.rewards.verifiers.instructions import count_sentences
from rlhf_lab.rewards.verifiers.settings import IFEval

STORY = "The old lighthouse keeper climbed the stairs every evening and lit the lamp for the ships at sea."

LEAST, LESS = "at least", "less than"
CASES = [
    ("keywords:existence", {"keywords": ["lamp", "Sea"]}, "A lamp by the SEA", "A lamp by the shore"),
    ("keywords:frequency", {"keyword": "rain", "frequency": 2, "relation": LEAST}, "Rain, then rainbows", "Rain once"),
    ("keywords:frequency", {"keyword": "rain", "frequency": 2, "relation": LESS}, "rain", "rain rain"),
    ("keywords:forbidden_words", {"forbidden_words": ["sun"]}, "sunny days", "The Sun."),
    ("keywords:letter_frequency", {"letter": "z", "let_frequency": 3, "let_relation": LEAST}, "Zigzag, zoo", "zoo zoo"),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 2, "relation": LEAST},
        "It rained. We left.",
        "It rained and we left.",
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 2, "relation": LESS},
        "Dr. Smith left at 3.5 p.m. with e.g. Bob.",
        "It rained! Did it?",
    ),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "One\n***\nTwo\n***\n", "One\n\nTwo"),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "One *** Two", "One\n***\n***\nTwo"),
    ("length_constraints:number_words", {"num_words": 3, "relation": LEAST}, "one-two three", "one two"),
    ("length_constraints:number_words", {"num_words": 3, "relation": LESS}, "one two", "one, two; three"),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Then"},
        "First.\n\n'then, it ended.",
        "Then.\n\nFirst.",
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "then"},
        "a\n\nThen!",
        "a\n\nthen\n\nb",
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[name], [city]", "[name] (city)"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye.\np. s. more", "Bye.\nPS more"),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "Bye.\nP.P.S. more", "Bye.\nP.S. more"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n - b\n**no**", "* a\n* b\n* c"),
    ("detectable_format:constrained_response", {}, "My answer is maybe.", "Maybe."),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*a* and **b**", "*a* and ** **"),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        "Section 1\na\nSection 2\nb",
        "Section 1\na\nSection b",
    ),
    ("detectable_format:json_format", {}, '```json\n{"a": [1]}\n```', "{a: 1}"),
    ("detectable_format:title", {}, "<<A title>>\ntext", "<< >>\ntext"),
    ("combination:two_responses", {}, "Yes.\n******\nNo.", "Yes.\n******\nYes."),
    ("combination:two_responses", {}, "******\nYes.\n******\nNo.", "Yes.\n******\n******\nNo."),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Why rain? "}, "why rain?\nBecause.", "Because. Why rain?"),
    ("startend:end_checker", {"end_phrase": "The end."}, 'It is. "the end."', "The end. Really"),
    ("startend:quotation", {}, ' "All of it" ', '"Half" of it'),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 3, "capital_relation": LEAST},
        "I LOVE well-known U.S. films",
        "I love FILMS",
    ),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 1, "capital_relation": LESS},
        "We love films",
        "We love TV",
    ),
    ("punctuation:no_comma", {}, "Red and blue", "Red, blue"),
]
IN_LANGUAGE = [
    ("language:response_language", {"language": "en"}, STORY, "Der alte Leuchtturmwärter stieg jeden Abend hinauf."),
    ("change_case:english_capital", {}, STORY.upper(), STORY),
    ("change_case:english_lowercase", {}, STORY.lower(), STORY),
]


def row(*named) -> dict:
    return {"instruction_id_list": [name for name, _ in named], "kwargs": [arguments for _, arguments in named]}


@pytest.mark.parametrize(("name", "arguments", "follows", "breaks"), CASES)
def test_every_instruction_followed_and_not(name, arguments, follows, breaks):
    verifier = IFEvalVerifier(IFEval())
    metadata = row((name, arguments))
    assert verifier.verdict(metadata, "p", follows).score == 1
    assert verifier.verdict(metadata, "p", breaks).score == 0
    assert verifier.verdict(metadata, "p", " \n").score == 0  # an empty response follows nothing


@pytest.mark.skipif(find_spec("langdetect") is None, reason="pip install 'rlhf_lab[ifeval]'")
@pytest.mark.parametrize(("name", "arguments", "follows", "breaks"), IN_LANGUAGE)
def test_instructions_about_the_language(name, arguments, follows, breaks):
    verifier = IFEvalVerifier(IFEval(languages="langdetect"))
    metadata = row((name, arguments))
    assert verifier.verdict(metadata, "p", follows).score == 1
    assert verifier.verdict(metadata, "p", breaks).score == 0
    assert (
        verifier.verdict(row(("language:response_language", {"language": "en"})), "p", "123").score == 1
    )  # nobody can tell


def test_sentences():
    assert count_sentences("") == 0
    assert count_sentences("no punctuation") == 1
    assert count_sentences('He said "Stop!" Then he left. (Really.)') == 3
    assert count_sentences("Mr. J. R. Smith paid 3.50 dollars... and left. Why?") == 2


def test_share_and_all_strict_and_loose():
    metadata = row(("punctuation:no_comma", {}), ("startend:end_checker", {"end_phrase": "bye"}), CASES[0][:2])
    response = "Sure, here it is:\nA lamp at the sea says bye"
    parts = {
        "instructions": 3,
        "strict_all": 0,
        "strict_followed": 2,
        "loose_all": 1,  # without its first line the response has no comma
        "loose_followed": 3,
    }
    scores = {("strict", "share"): 2 / 3, ("strict", "all"): 0, ("loose", "share"): 1, ("loose", "all"): 1}
    for (reading, credit), score in scores.items():
        verdict = IFEvalVerifier(IFEval(reading=reading, credit=credit)).verdict(metadata, "p", response)
        assert verdict.score == pytest.approx(score)
        assert verdict.parts == parts


def test_the_eight_looser_versions():
    versions = lenient_variants("*a*\nb\nc*")
    assert versions == ["*a*\nb\nc*", "b\nc*", "*a*\nb", "b", "a\nb\nc", "b\nc", "a\nb"]  # b without asterisks is b
    assert lenient_variants("one line") == ["one line", ""]


def test_rows_of_tables_and_of_csv_files():
    name, arguments = CASES[0][:2]
    filled = {**arguments, "num_words": None, "relation": None}
    metadata = {"instruction_id_list": json.dumps([name]), "kwargs": json.dumps([filled])}
    assert read_instructions(metadata) == [(name, arguments)]
    no_arguments = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [None]}
    assert read_instructions(no_arguments) == [("punctuation:no_comma", {})]


def test_rows_that_cannot_be_checked_are_unscored_whatever_the_reply():
    verifier = IFEvalVerifier(IFEval())
    assert math.isnan(verifier.verdict({}, "p", "reply").score)
    metadata = row(("punctuation:no_comma", {}), ("change_case:english_capital", {}))
    assert math.isnan(verifier.verdict(metadata, "p", "small, letters").score)
    assert math.isnan(verifier.verdict(metadata, "p", "CAPITAL LETTERS").score)


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ({"instruction_id_list": ["punctuation:no_comma"], "kwargs": []}, "as many objects"),
        ({"instruction_id_list": "no_comma", "kwargs": "[]"}, "as many objects"),
        (row(("punctuation:no_commas", {})), "'punctuation:no_commas' is unknown"),
        (row(("keywords:existence", {"keyword": "a"})), "has no argument 'keywords'"),
        (row(("length_constraints:number_words", {"num_words": 3, "relation": "most"})), "'most' is not one of"),
    ],
)
def test_rows_of_another_form_are_refused_before_anything_is_sampled(metadata, problem):
    run = SimpleNamespace(corpus=Corpus("planted", [], [], "0", metadata={"p": metadata}))
    with pytest.raises(DataError, match=problem):
        registry.build("reward", IFEval(), run)


def test_as_a_reward():
    run = SimpleNamespace(corpus=Corpus("planted", [], [], "0"), config=None)
    reward = registry.build("reward", IFEval(), run)
    columns = row(("punctuation:no_comma", {}), ("startend:quotation", {}))
    episodes = said(["p", "p"], ["no comma", "a, b"], **{name: [value] * 2 for name, value in columns.items()})
    assert reward.score_episodes(episodes).total_N.tolist() == [0.5, 0]


def test_without_langdetect_it_says_what_to_install(monkeypatch):
    instructions.detector.cache_clear()
    monkeypatch.setattr(instructions, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"rlhf_lab\[ifeval\]"):
        IFEvalVerifier(IFEval(languages="langdetect"))
