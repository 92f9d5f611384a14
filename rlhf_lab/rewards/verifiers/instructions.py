"""The verifiable instructions of IFEval (arXiv:2311.07911, table 1): each a question of a reply that a program answers.

Decided as the published definitions do, but for these: keywords and section marks are taken as text and not as regular
expressions; sentences are split by punctuation, with common abbreviations, and not by a trained tokenizer; a word in
capital letters is a run of letters, digits, hyphens and inner periods, and an apostrophe parts words. The language of
a reply is asked of langdetect, with a fixed seed; what it cannot tell counts as right, as published.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any

from rlhf_lab.core.errors import OPTIONAL, MissingDependency
from rlhf_lab.rewards.verifiers.json import NO_VALUE, read_json

Arguments = Mapping[str, Any]
Check = Callable[[str, Arguments], bool]

RELATIONS: Mapping[str, Callable[[int, int], bool]] = {
    "at least": lambda count, threshold: count >= threshold,
    "less than": lambda count, threshold: count < threshold,
}
WORD = re.compile(r"\w+")
CAPITAL_WORD = re.compile(r"\w[\w-]*(?:\.\w+)*")
SENTENCE_END = re.compile(r"[.!?]+[\"'”’)\]]*(?=\s+[\"'“‘(\[]?[^\sa-z]|\s*$)")
"""Punctuation before a word that does not begin with a small letter, or at the end."""
ABBREVIATION = re.compile(r"(?:^|[\s(])(?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|e\.g|i\.e|No|Fig|[A-Z])\.$")
PARAGRAPH_MARK = re.compile(r"\s?\*\*\*\s?")
FENCE = re.compile(r"^```(?:json|Json|JSON)?|```$")
OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
POSTSCRIPTS = {"P.S.": r"p\.\s?s\.", "P.P.S": r"p\.\s?p\.\s?s"}
FIRST_WORD_ENDS = re.compile(r"[.,?!'\"]")


def count_sentences(reply: str) -> int:
    """Sentences of a reply; text that no punctuation ends is one."""
    count = 0
    begin = 0
    for end in SENTENCE_END.finditer(reply):
        if ABBREVIATION.search(reply[begin : end.end()]) and reply[end.end() :].strip():
            continue
        count += 1
        begin = end.end()
    return count + bool(reply[begin:].strip())


def _compare(count: int, arguments: Arguments, threshold: str, relation: str = "relation") -> bool:
    return RELATIONS[arguments[relation]](count, int(arguments[threshold]))


def _has_keywords(reply: str, arguments: Arguments) -> bool:
    text = reply.casefold()
    return all(keyword.casefold() in text for keyword in arguments["keywords"])


def _keyword_frequency(reply: str, arguments: Arguments) -> bool:
    count = reply.casefold().count(arguments["keyword"].strip().casefold())
    return _compare(count, arguments, "frequency")


def _has_no_forbidden_word(reply: str, arguments: Arguments) -> bool:
    words = arguments["forbidden_words"]
    return not any(re.search(rf"\b{re.escape(word)}\b", reply, re.IGNORECASE) for word in words)


def _letter_frequency(reply: str, arguments: Arguments) -> bool:
    count = reply.lower().count(arguments["letter"].strip().lower())
    return _compare(count, arguments, "let_frequency", "let_relation")


def _is_in_language(reply: str, arguments: Arguments) -> bool:
    return _language(reply) in (arguments["language"], None)


def _number_of_sentences(reply: str, arguments: Arguments) -> bool:
    return _compare(count_sentences(reply), arguments, "num_sentences")


def _number_of_words(reply: str, arguments: Arguments) -> bool:
    return _compare(len(WORD.findall(reply)), arguments, "num_words")


def _number_of_paragraphs(reply: str, arguments: Arguments) -> bool:
    """Paragraphs between lines of ***; an empty one may stand at the beginning and at the end, not between."""
    paragraphs = [paragraph.strip() for paragraph in PARAGRAPH_MARK.split(reply)]
    if not all(paragraphs[1:-1]):
        return False
    return sum(map(bool, paragraphs)) == int(arguments["num_paragraphs"])


def _first_word_of_paragraph(reply: str, arguments: Arguments) -> bool:
    """Paragraphs are separated by an empty line; the word is compared without its punctuation."""
    paragraphs = [paragraph.strip() for paragraph in reply.split("\n\n")]
    position = int(arguments["nth_paragraph"])
    count = sum(map(bool, paragraphs))
    if not 1 <= position <= count or not paragraphs[position - 1]:
        return False
    word = paragraphs[position - 1].split()[0].lstrip("'").lstrip('"')
    first_word = FIRST_WORD_ENDS.split(word)[0].lower()
    return count == int(arguments["num_paragraphs"]) and first_word == arguments["first_word"].lower()


def _number_of_placeholders(reply: str, arguments: Arguments) -> bool:
    return len(re.findall(r"\[.*?\]", reply)) >= int(arguments["num_placeholders"])


def _has_postscript(reply: str, arguments: Arguments) -> bool:
    marker = arguments["postscript_marker"].strip()
    return re.search(POSTSCRIPTS.get(marker, re.escape(marker.lower())), reply.lower()) is not None


def _number_of_bullets(reply: str, arguments: Arguments) -> bool:
    lines = [line.lstrip() for line in reply.splitlines()]
    stars = sum(line.startswith("*") and line[1:2] not in ("", "*") for line in lines)
    dashes = sum(line.startswith("-") for line in lines)
    return stars + dashes == int(arguments["num_bullets"])


def _is_an_option(reply: str, arguments: Arguments) -> bool:
    del arguments
    return any(option in reply for option in OPTIONS)


def _number_of_highlights(reply: str, arguments: Arguments) -> bool:
    """*Sections* between single or double asterisks that are not empty."""
    single = [text for text in re.findall(r"\*([^\n*]*)\*", reply) if text.strip()]
    double = [text for text in re.findall(r"\*\*([^\n*]*)\*\*", reply) if text.strip()]
    return len(single) + len(double) >= int(arguments["num_highlights"])


def _number_of_sections(reply: str, arguments: Arguments) -> bool:
    mark = re.escape(arguments["section_spliter"].strip())
    return len(re.findall(rf"{mark}\s?\d+", reply)) >= int(arguments["num_sections"])


def _is_json(reply: str, arguments: Arguments) -> bool:
    del arguments
    return read_json(FENCE.sub("", reply.strip()).strip()) is not NO_VALUE


def _has_title(reply: str, arguments: Arguments) -> bool:
    del arguments
    return any(title.strip("<>").strip() for title in re.findall(r"<<[^\n]+>>", reply))


def _two_responses(reply: str, arguments: Arguments) -> bool:
    """Two different replies with ****** between them; an empty part may stand at the beginning and at the end."""
    del arguments
    parts = [part.strip() for part in reply.split("******")]
    replies = [part for part in parts if part]
    return all(parts[1:-1]) and len(replies) == 2 and replies[0] != replies[1]


def _repeats_prompt(reply: str, arguments: Arguments) -> bool:
    return reply.strip().lower().startswith(arguments["prompt_to_repeat"].strip().lower())


def _ends_with(reply: str, arguments: Arguments) -> bool:
    return reply.strip().strip('"').lower().endswith(arguments["end_phrase"].strip().lower())


def _number_of_capital_words(reply: str, arguments: Arguments) -> bool:
    count = sum(word.isupper() for word in CAPITAL_WORD.findall(reply))
    return _compare(count, arguments, "capital_frequency", "capital_relation")


def _is_english_in_capitals(reply: str, arguments: Arguments) -> bool:
    del arguments
    return reply.isupper() and _language(reply) in ("en", None)


def _is_english_in_small_letters(reply: str, arguments: Arguments) -> bool:
    del arguments
    return reply.islower() and _language(reply) in ("en", None)


def _has_no_comma(reply: str, arguments: Arguments) -> bool:
    del arguments
    return "," not in reply


def _is_quoted(reply: str, arguments: Arguments) -> bool:
    del arguments
    text = reply.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


def _language(reply: str) -> str | None:
    """The language of a text as langdetect tells it, a code such as "en"; None where it cannot tell."""
    detect, unknown = detector()
    try:
        return str(detect(reply))
    except unknown:
        return None


@cache
def detector() -> tuple[Callable[[str], str], type[Exception]]:
    """(langdetect.detect, what it raises for a text without a language), the same answer for the same text always."""
    if find_spec("langdetect") is None:
        raise MissingDependency(*OPTIONAL["langdetect"])
    import langdetect

    langdetect.DetectorFactory.seed = 0
    return langdetect.detect, langdetect.LangDetectException


INSTRUCTIONS: Mapping[str, tuple[Check, tuple[str, ...]]] = {
    "keywords:existence": (_has_keywords, ("keywords",)),
    "keywords:frequency": (_keyword_frequency, ("keyword", "frequency", "relation")),
    "keywords:forbidden_words": (_has_no_forbidden_word, ("forbidden_words",)),
    "keywords:letter_frequency": (_letter_frequency, ("letter", "let_frequency", "let_relation")),
    "language:response_language": (_is_in_language, ("language",)),
    "length_constraints:number_sentences": (_number_of_sentences, ("num_sentences", "relation")),
    "length_constraints:number_paragraphs": (_number_of_paragraphs, ("num_paragraphs",)),
    "length_constraints:number_words": (_number_of_words, ("num_words", "relation")),
    "length_constraints:nth_paragraph_first_word": (
        _first_word_of_paragraph,
        ("num_paragraphs", "nth_paragraph", "first_word"),
    ),
    "detectable_content:number_placeholders": (_number_of_placeholders, ("num_placeholders",)),
    "detectable_content:postscript": (_has_postscript, ("postscript_marker",)),
    "detectable_format:number_bullet_lists": (_number_of_bullets, ("num_bullets",)),
    "detectable_format:constrained_response": (_is_an_option, ()),
    "detectable_format:number_highlighted_sections": (_number_of_highlights, ("num_highlights",)),
    "detectable_format:multiple_sections": (_number_of_sections, ("section_spliter", "num_sections")),
    "detectable_format:json_format": (_is_json, ()),
    "detectable_format:title": (_has_title, ()),
    "combination:two_responses": (_two_responses, ()),
    "combination:repeat_prompt": (_repeats_prompt, ("prompt_to_repeat",)),
    "startend:end_checker": (_ends_with, ("end_phrase",)),
    "startend:quotation": (_is_quoted, ()),
    "change_case:capital_word_frequency": (_number_of_capital_words, ("capital_frequency", "capital_relation")),
    "change_case:english_capital": (_is_english_in_capitals, ()),
    "change_case:english_lowercase": (_is_english_in_small_letters, ()),
    "punctuation:no_comma": (_has_no_comma, ()),
}
"""Id → the check, and the arguments that it reads."""

ABOUT_LANGUAGE = ("language:response_language", "change_case:english_capital", "change_case:english_lowercase")
"""Ids that need langdetect."""
