"""The verifiable instructions of IFEval (arXiv:2311.07911, table 1). A program decides whether a response follows each.

The checks follow the published definitions, with these differences. Keywords and section marks are plain text instead
of regular expressions. Sentences are split by punctuation and common abbreviations instead of a trained tokenizer. A
word in capital letters consists of letters, digits, hyphens and inner periods; an apostrophe separates words. The
library langdetect determines the language of a response with a fixed seed. If it cannot tell, the response counts as
right, as published.
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
SENTENCE_END = re.compile(r"(?<![.!?])[.!?]++[\"'”’)\]]*+(?=\s+[\"'“‘(\[]?[^\sa-z]|\s*$)")
"""Punctuation at the end of the text, or before a word that does not start with a lower-case letter."""
ABBREVIATION = re.compile(r"(?:^|[\s(])(?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|e\.g|i\.e|No|Fig|[A-Z])\.$")
LONGEST_ABBREVIATION = 6
"""Maximum characters of an abbreviation, including the space before it and the period."""
PARAGRAPH_MARK = re.compile(r"\s?\*\*\*\s?")
FENCE = re.compile(r"^```(?:json|Json|JSON)?|```$")
OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
# The published definition accepts a space inside these two markers; every other marker is literal text.
POSTSCRIPTS = {"P.S.": r"p\.\s?s\.", "P.P.S": r"p\.\s?p\.\s?s"}
PLACEHOLDER = re.compile(r"\[[^\n\]]*+(\]?)")
"""A placeholder, or an opening bracket that is not closed in its line; the group is then empty."""
FIRST_WORD_ENDS = re.compile(r"[.,?!'\"]")


def count_sentences(response: str) -> int:
    """Return the number of sentences of a response. Text without final punctuation counts as one."""
    count = 0
    start = 0
    text_end = len(response.rstrip())
    for end in SENTENCE_END.finditer(response):
        # Check only the last word: searching the entire sentence at each of its periods would take quadratic time.
        abbreviation = ABBREVIATION.search(response, max(start, end.end() - LONGEST_ABBREVIATION), end.end())
        if abbreviation and end.end() < text_end:
            continue
        count += 1
        start = end.end()
    return count + bool(response[start:].strip())


def _compare(count: int, arguments: Arguments, threshold: str, relation: str = "relation") -> bool:
    return RELATIONS[arguments[relation]](count, int(arguments[threshold]))


def _number_of_paragraphs(response: str, arguments: Arguments) -> bool:
    """Count paragraphs separated by lines of ***. Only the first and the last may be empty."""
    # A response may start or end with a mark, so the first and the last paragraph may be empty.
    paragraphs = [paragraph.strip() for paragraph in PARAGRAPH_MARK.split(response)]
    if not all(paragraphs[1:-1]):
        return False
    return sum(map(bool, paragraphs)) == int(arguments["num_paragraphs"])


def _first_word_of_paragraph(response: str, arguments: Arguments) -> bool:
    """Compare the first word of a paragraph without punctuation. Paragraphs are separated by an empty line."""
    paragraphs = [paragraph.strip() for paragraph in response.split("\n\n")]
    position = int(arguments["nth_paragraph"])
    count = sum(map(bool, paragraphs))
    if not 1 <= position <= count or not paragraphs[position - 1]:
        return False
    # Quotation marks before the word, and punctuation after it, do not belong to the word.
    word = paragraphs[position - 1].split()[0].lstrip("'").lstrip('"')
    first_word = FIRST_WORD_ENDS.split(word)[0].lower()
    return count == int(arguments["num_paragraphs"]) and first_word == arguments["first_word"].lower()


def _has_postscript(response: str, arguments: Arguments) -> bool:
    marker = arguments["postscript_marker"].strip()
    return re.search(POSTSCRIPTS.get(marker, re.escape(marker.lower())), response.lower()) is not None


def _number_of_sections(response: str, arguments: Arguments) -> bool:
    mark = re.escape(arguments["section_spliter"].strip())
    return len(re.findall(rf"{mark}\s?\d+", response)) >= int(arguments["num_sections"])


def _number_of_bullets(response: str, arguments: Arguments) -> bool:
    lines = [line.lstrip() for line in response.splitlines()]
    # "**bold**" and a single "*" without text are not bullets.
    stars = sum(line.startswith("*") and line[1:2] not in ("", "*") for line in lines)
    dashes = sum(line.startswith("-") for line in lines)
    return stars + dashes == int(arguments["num_bullets"])


def _number_of_highlights(response: str, arguments: Arguments) -> bool:
    """Count non-empty *sections* between single or double asterisks."""
    single = [text for text in re.findall(r"\*([^\n*]*)\*", response) if text.strip()]
    double = [text for text in re.findall(r"\*\*([^\n*]*)\*\*", response) if text.strip()]
    return len(single) + len(double) >= int(arguments["num_highlights"])


def _title_of(line: str) -> str:
    """Return the text between the first << and the last >> of a line; "" if there is none."""
    start, end = line.find("<<"), line.rfind(">>")
    return line[start:end].strip("<>").strip() if 0 <= start < end else ""


def _two_responses(response: str, arguments: Arguments) -> bool:
    """Check for two different responses separated by ******. Only the first and the last part may be empty."""
    del arguments
    parts = [part.strip() for part in response.split("******")]
    responses = [part for part in parts if part]
    return all(parts[1:-1]) and len(responses) == 2 and responses[0] != responses[1]


def _language(response: str) -> str | None:
    """Return langdetect's language code of a text, such as "en"; None if it cannot tell."""
    detect, unknown = detector()
    try:
        return str(detect(response))
    except unknown:
        return None


@cache
def detector() -> tuple[Callable[[str], str], type[Exception]]:
    """Return (langdetect.detect, its exception for a text without a language). Results are deterministic."""
    if find_spec("langdetect") is None:
        raise MissingDependency(*OPTIONAL["langdetect"])
    import langdetect

    langdetect.DetectorFactory.seed = 0  # langdetect samples n-grams; without a seed its answers vary
    return langdetect.detect, langdetect.LangDetectException


INSTRUCTIONS: Mapping[str, tuple[Check, tuple[str, ...]]] = {
    "keywords:existence": (
        lambda text, a: all(keyword.casefold() in text.casefold() for keyword in a["keywords"]),
        ("keywords",),
    ),
    "keywords:frequency": (
        lambda text, a: _compare(text.casefold().count(a["keyword"].strip().casefold()), a, "frequency"),
        ("keyword", "frequency", "relation"),
    ),
    "keywords:forbidden_words": (
        lambda text, a: not any(re.search(rf"\b{re.escape(word)}\b", text, re.I) for word in a["forbidden_words"]),
        ("forbidden_words",),
    ),
    "keywords:letter_frequency": (
        lambda text, a: _compare(text.lower().count(a["letter"].strip().lower()), a, "let_frequency", "let_relation"),
        ("letter", "let_frequency", "let_relation"),
    ),
    "language:response_language": (lambda text, a: _language(text) in (a["language"], None), ("language",)),
    "length_constraints:number_sentences": (
        lambda text, a: _compare(count_sentences(text), a, "num_sentences"),
        ("num_sentences", "relation"),
    ),
    "length_constraints:number_paragraphs": (_number_of_paragraphs, ("num_paragraphs",)),
    "length_constraints:number_words": (
        lambda text, a: _compare(len(WORD.findall(text)), a, "num_words"),
        ("num_words", "relation"),
    ),
    "length_constraints:nth_paragraph_first_word": (
        _first_word_of_paragraph,
        ("num_paragraphs", "nth_paragraph", "first_word"),
    ),
    "detectable_content:number_placeholders": (
        lambda text, a: sum(map(bool, PLACEHOLDER.findall(text))) >= int(a["num_placeholders"]),
        ("num_placeholders",),
    ),
    "detectable_content:postscript": (_has_postscript, ("postscript_marker",)),
    "detectable_format:number_bullet_lists": (_number_of_bullets, ("num_bullets",)),
    "detectable_format:constrained_response": (lambda text, a: any(option in text for option in OPTIONS), ()),
    "detectable_format:number_highlighted_sections": (_number_of_highlights, ("num_highlights",)),
    "detectable_format:multiple_sections": (_number_of_sections, ("section_spliter", "num_sections")),
    "detectable_format:json_format": (
        lambda text, a: read_json(FENCE.sub("", text.strip()).strip()) is not NO_VALUE,
        (),
    ),
    "detectable_format:title": (lambda text, a: any(map(_title_of, text.split("\n"))), ()),
    "combination:two_responses": (_two_responses, ()),
    "combination:repeat_prompt": (
        lambda text, a: text.strip().lower().startswith(a["prompt_to_repeat"].strip().lower()),
        ("prompt_to_repeat",),
    ),
    "startend:end_checker": (
        lambda text, a: text.strip().strip('"').lower().endswith(a["end_phrase"].strip().lower()),
        ("end_phrase",),
    ),
    "startend:quotation": (lambda text, a: re.fullmatch('".*"', text.strip(), re.DOTALL) is not None, ()),
    "change_case:capital_word_frequency": (
        lambda text, a: _compare(
            sum(word.isupper() for word in CAPITAL_WORD.findall(text)), a, "capital_frequency", "capital_relation"
        ),
        ("capital_frequency", "capital_relation"),
    ),
    "change_case:english_capital": (lambda text, a: text.isupper() and _language(text) in ("en", None), ()),
    "change_case:english_lowercase": (lambda text, a: text.islower() and _language(text) in ("en", None), ()),
    "punctuation:no_comma": (lambda text, a: "," not in text, ()),
}
"""Id → (check, arguments that it reads)."""

ABOUT_LANGUAGE = ("language:response_language", "change_case:english_capital", "change_case:english_lowercase")
"""Ids that need langdetect."""
