"""Roles of columns (prompt, chosen response, …), inferred from the words in their names.

If a column is misspelt in the settings, or has another name in the file, the error message proposes settings that fit.
A wrong proposal is worse than none: with chosen and rejected responses swapped, training runs and teaches the opposite.
A column is therefore proposed for a role only if its name indicates this role and no other, and no second column does.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from rlhf_lab.config.overrides import literal
from rlhf_lab.data.rows import MissingColumns

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
"""Role → words in a column's name that indicate it. A name with words of several roles is ambiguous, except that
"response" may be combined with another role."""
NEGATIONS = ("not", "non", "un", "less", "least", "second", "never")
"""Words that reverse the meaning of a name, as in "not_chosen"."""
NEGATING_PREFIX = re.compile(r"(un|non|dis|in|not)(.+)")  # "unchosen", "dispreferred", "nonpreferred"
ABOUT = ("id", "ids", "idx", "index", "model", "source", "length", "tokens", "reason", "label", "rank", "name", "url")
"""Words in names of columns that describe a text instead of containing it, such as chosen_model."""
SPELLING = 0.8
"""Minimum similarity of a misspelling: it accepts "choosen", but not "dispreferred" for "preferred"."""


def role_of(name: str) -> str | None:
    """Return the role that a column's name indicates; None for no role, several roles, or a description of a text."""
    # camelCase is split as well: "preferredResponse" has two words
    words = re.findall(r"[^\W\d_]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower())
    if any(word in ABOUT for word in words):
        return None
    roles = {role for word in words if (role := _role_of_word(word))}
    if GRADE in roles:  # e.g. chosen_score, which is a number and not a response
        return GRADE if roles <= {GRADE, RESPONSE} else None
    preference = roles & {CHOSEN, REJECTED}
    if preference:
        roles -= {RESPONSE}  # "good answer" is a response and the chosen one
    if any(word in NEGATIONS for word in words):  # "not chosen" is rejected; "not bad" is too ambiguous
        roles = {REJECTED} if roles == {CHOSEN} else set()
    return roles.pop() if len(roles) == 1 else None


def _role_of_word(word: str) -> str | None:
    for role, words in WORDS.items():
        # singular and plural
        if word in words or (word.endswith("s") and word[:-1] in words):
            return role
    negated = NEGATING_PREFIX.fullmatch(word)
    if negated and _role_of_word(negated[2]) == CHOSEN:
        return REJECTED
    role_by_word = {word: role for role, words in WORDS.items() for word in words}
    close = get_close_matches(word, role_by_word, n=1, cutoff=SPELLING)
    return role_by_word[close[0]] if close else None


def require_columns(
    row: Mapping[str, Any], columns: Mapping[str, str], meaning: Mapping[str, str], hint: str = ""
) -> None:
    """Raise MissingColumns with the message of `columns_problem`, if there is one."""
    problem = columns_problem(row, columns, meaning, hint)
    if problem:
        raise MissingColumns(problem)


def columns_problem(
    row: Mapping[str, Any], columns: Mapping[str, str], meaning: Mapping[str, str], hint: str = ""
) -> str | None:
    """Return a message about missing columns with the settings that fit, as one line to paste; None if none is missing.

    Args:
        columns: setting below `data`, which is also the role → the column that it names.
        meaning: the same settings → a description of their column.
        hint: an alternative to naming the columns.
    """
    missing = {setting: name for setting, name in columns.items() if name not in row}
    if not missing:
        return None
    proposals = {setting: _column_for(setting, row, columns) for setting in missing}
    line = " ".join(_format_override(setting, name) for setting, name in proposals.items())
    unknown = [setting for setting, name in proposals.items() if not name]
    if unknown:  # the user has to choose the columns
        meanings = ", ".join(f"data.{setting} is {meaning[setting]}" for setting in unknown)
        fix = f"write {line}{hint}, where {meanings}"
    else:
        names = " and ".join(repr(name) for name in proposals.values())
        fix = f"did you mean {names}? Then write {line}"
    return f"{missing_columns(list(missing.values()), row)}; {fix}"


def missing_columns(missing: list[str], row: Mapping[str, Any]) -> str:
    """Return the beginning of a message: the missing columns and the columns of the row."""
    listed = ", ".join(map(repr, row)) or "no column"
    names = " and ".join(map(repr, missing))
    subject, verb = ("column", "is") if len(missing) == 1 else ("columns", "are")
    return f"{subject} {names} {verb} missing; the row has {listed}"


def _column_for(role: str, row: Mapping[str, Any], columns: Mapping[str, str]) -> str | None:
    """Return the only column whose name indicates the role and that no other setting names; None if there is none."""
    # one column must not play two roles
    taken = {name for setting, name in columns.items() if setting != role}
    candidates = [name for name in row if role_of(name) == role and name not in taken]
    return candidates[0] if len(candidates) == 1 else None


def _format_override(setting: str, name: str | None) -> str:
    """Return a setting as it is pasted into a shell, with COLUMN as placeholder if the user has to choose."""
    if name is None:
        return f"data.{setting}=COLUMN"
    return shlex.quote(f"data.{setting}={literal(name)}")
