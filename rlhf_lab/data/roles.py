"""Which column of a row plays which role, judged by the words in its name.

A column that is misspelt in the settings, or that goes by another name in the file, is answered with the settings that
fit. A wrong proposal is worse than none: with the preferred and the rejected reply swapped, training runs and teaches
the opposite. So a column is proposed for a role only when its name says that role and no other, and when no second
column does.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from rlhf_lab.config.overrides import literal

PROMPT, CHOSEN, REJECTED, RESPONSE, GRADE = "prompt", "chosen", "rejected", "response", "grade"
WORDS: dict[str, tuple[str, ...]] = {
    PROMPT: (
        *("prompt", "question", "instruction", "input", "query", "context", "problem", "q"),
        *("history", "conversation", "dialogue", "dialog"),
    ),
    CHOSEN: (
        *("chosen", "good", "preferred", "better", "best", "winner", "winning", "accepted", "positive", "liked"),
        *("favoured", "favored", "selected", "pos"),
    ),
    REJECTED: (
        *("rejected", "reject", "bad", "worse", "worst", "loser", "losing", "dispreferred", "negative", "disliked"),
        *("wrong", "declined", "refused", "neg"),
    ),
    RESPONSE: ("response", "completion", "answer", "reply", "output", "solution", "generation"),
    GRADE: ("score", "grade", "rating", "quality", "stars", "points", "mark"),
}
"""Role → words of a column's name that say it. Several roles in one name make it unclear, but for the response."""
NEGATIONS = ("not", "non", "un", "less", "least", "second", "never")
NEGATING_PREFIX = re.compile(r"(un|non|dis|in|not)(.+)")
ABOUT = ("id", "ids", "idx", "index", "model", "source", "length", "tokens", "reason", "label", "rank", "name", "url")
"""Words of columns that describe a text instead of holding it, such as chosen_model."""
SPELLING = 0.8
"""Similarity from which a word counts as a misspelling: "choosen", not "dispreferred" for "preferred"."""


def role_of(name: str) -> str | None:
    """The role that a column's name says; None when it says none, several, or holds something about a text."""
    words = re.findall(r"[^\W\d_]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower())
    if any(word in ABOUT for word in words):
        return None
    roles = {role for word in words if (role := _role_of_word(word))}
    if GRADE in roles:  # chosen_score is a number
        return GRADE if roles <= {GRADE, RESPONSE} else None
    preference = roles & {CHOSEN, REJECTED}
    if preference:
        roles -= {RESPONSE}  # "good answer" is a response, and the chosen one
    if any(word in NEGATIONS for word in words):  # "not chosen"; a negated "bad" is nothing to rely on
        roles = {REJECTED} if roles == {CHOSEN} else set()
    return roles.pop() if len(roles) == 1 else None


def _role_of_word(word: str) -> str | None:
    for role, words in WORDS.items():
        if word in words or (word.endswith("s") and word[:-1] in words):
            return role
    negated = NEGATING_PREFIX.fullmatch(word)
    if negated and _role_of_word(negated[2]) == CHOSEN:
        return REJECTED
    role_by_word = {word: role for role, words in WORDS.items() for word in words}
    close = get_close_matches(word, role_by_word, n=1, cutoff=SPELLING)
    return role_by_word[close[0]] if close else None


def columns_problem(
    row: Mapping[str, Any], columns: Mapping[str, str], meaning: Mapping[str, str], hint: str = ""
) -> str | None:
    """What to say of a row that lacks columns: the settings that name the right ones, in one line to paste.

    Args:
        columns: setting below `data`, which is also the role → the column that it names.
        meaning: the same settings → what their column holds, for a person.
        hint: what else could be written.
    """
    missing = {setting: name for setting, name in columns.items() if name not in row}
    if not missing:
        return None
    proposals = {setting: _column_for(setting, row, columns) for setting in missing}
    line = " ".join(_format_override(setting, name) for setting, name in proposals.items())
    unknown = [setting for setting, name in proposals.items() if not name]
    if None in proposals.values():
        meanings = ", ".join(f"data.{setting} is {meaning[setting]}" for setting in unknown)
        fix = f"write {line}{hint}, where {meanings}"
    else:
        names = " and ".join(repr(name) for name in proposals.values())
        fix = f"did you mean {names}? then write {line}"
    return f"{missing_columns(list(missing.values()), row)}; {fix}"


def missing_columns(missing: list[str], row: Mapping[str, Any]) -> str:
    """The beginning of a message: what is missing and what is there."""
    listed = ", ".join(map(repr, row)) or "no column"
    names = " and ".join(map(repr, missing))
    subject, verb = ("column", "is") if len(missing) == 1 else ("columns", "are")
    return f"{subject} {names} {verb} missing; the row has {listed}"


def _column_for(role: str, row: Mapping[str, Any], columns: Mapping[str, str]) -> str | None:
    """The one column whose name says the role and that no other setting names already."""
    taken = {name for setting, name in columns.items() if setting != role}
    candidates = [name for name in row if role_of(name) == role and name not in taken]
    return candidates[0] if len(candidates) == 1 else None


def _format_override(setting: str, name: str | None) -> str:
    """A setting as it is pasted into a shell; COLUMN where the reader has to choose."""
    return shlex.quote(f"data.{setting}={literal(name)}") if name is not None else f"data.{setting}=COLUMN"
