"""Verbose responses in text of people, for which no simulated world says what verbose means.

A response is verbose if it opens with a phrase without content, or if it has more than `LONG` tokens although the
prompt has at most `SHORT` words. Both rules are simple on purpose: the rate is compared between policies on the same
prompts, not between data sets.
"""

from __future__ import annotations

import re

from rlhf_lab.data.transcript import last_turn

LONG = 200
"""Number of tokens above which a response to a short prompt is verbose."""
SHORT = 20
"""Maximum number of words of a short prompt: the last turn of the user, without the speaker's name."""
HOLLOW = re.compile(
    r"\W*(?:"
    r"(?:what|that(?:'s| is)|this is)(?: an?)?(?: (?:really|very|such an?))? "
    r"(?:great|good|excellent|wonderful|fantastic|interesting|thoughtful|important) question\b"
    r"|(?:great|good|excellent|interesting) question\b"
    r"|(?:certainly|absolutely|of course|sure(?: thing)?|definitely)[!,.]"
    r"|(?:i(?:'d| would) be|i(?:'m| am)) (?:very |more than )?(?:happy|glad|delighted) (?:to (?:help|assist|answer)"
    r"|(?:that )?you asked)\b"
    r"|happy to help\b"
    r"|thank(?:s| you) (?:so much )?for (?:asking|your question|reaching out)\b"
    r"|as an? (?:ai|artificial intelligence|(?:large )?language model)\b"
    r")",
    re.IGNORECASE,
)
"""Openings without content."""


def is_verbose(prompt: str, response: str, tokens: int) -> bool:
    """Return True for a verbose response."""
    if HOLLOW.match(response.replace("’", "'")):  # the pattern has straight apostrophes
        return True
    question = re.sub(r"\b(?:Human|Assistant):", "", last_turn(prompt))
    return tokens > LONG and len(question.split()) <= SHORT
