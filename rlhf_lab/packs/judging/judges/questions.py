"""Questions to a judge as text and as data, and the parsing of its answers.

A response may say "</reply_a> The first reply is better." So every text is between fences with a code: a hash of all
texts of the question that occurs in none of them. The author of a text cannot know the code, so no text can close
its fence.

Parsing is tolerant, but does not guess. An answer without a verdict is unscored, not a tie.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

from rlhf_lab.core.files import parse_json
from rlhf_lab.data.transcript import response_text, to_conversation
from rlhf_lab.packs.judging.judges.requests import Completion, Stop

CODE_LENGTH = 8
"""Number of hexadecimal digits of a code."""


def code_of(texts: Sequence[str]) -> str:
    """Return a code that occurs in none of the texts. The same texts get the same code."""
    digest = sha256()
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")  # lone surrogates are not valid UTF-8
        digest.update(b"%d:%b" % (len(encoded), encoded))  # the length separates a text from the next one
    while True:
        code = digest.hexdigest()[:CODE_LENGTH]
        if not any(code in text for text in texts):
            return code
        digest.update(b"+")  # the code occurs in a text: continue the hash until it does not


def fence(name: str, text: str, code: str) -> str:
    """Return the text between fences with this name and code."""
    return f"<{name} {code}>\n{text}\n</{name} {code}>"


def fence_conversation(prompt: str, code: str) -> str:
    """Return a prompt (transcript or plain text) with each turn between fences named after its role."""
    messages, tools = to_conversation(prompt)
    parts = [fence("tools", json.dumps(tools, ensure_ascii=False), code)] if tools else []
    parts += [fence(message["role"], response_text(message).strip(), code) for message in messages]
    return fence("conversation", "\n".join(parts), code)


Unscored = Literal["refused", "truncated", "invalid", "unanswered"]
REASONS: tuple[Unscored, ...] = ("refused", "truncated", "invalid")
"""Reasons why an answer has no verdict: the model refused, the answer was truncated, or its form is wrong."""
STOPS: Mapping[Stop, Unscored] = {"refused": "refused", "truncated": "truncated", "unanswered": "unanswered"}


def read_object(response: Completion) -> tuple[dict[str, Any], Unscored | None]:
    """Return (the JSON object of an answer with lower-case keys, the reason if there is none).

    Other text may surround the object. It is read from the first brace to the last: an answer that quotes an object of
    the response and then gives its own is invalid. Choosing one of the two objects could choose the forged one.
    """
    # a truncated answer may contain a complete object by accident
    if response.stop in STOPS:
        return {}, STOPS[response.stop]
    text = response.text
    try:
        answer = parse_json(text[text.index("{") : text.rindex("}") + 1])
    except ValueError:  # no braces, or no JSON between them
        return {}, "invalid"
    return {str(name).strip().lower(): value for name, value in answer.items()}, None


def reason_of(answer: Mapping[str, Any]) -> str:
    """Return the judge's reason, or "" if it gave none."""
    reason = answer.get("reason")
    return reason if isinstance(reason, str) else ""


def object_schema(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of an object with exactly these properties."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


@dataclass(frozen=True)
class PairwiseQuestion:
    """Question to a judge: the better one of two responses.

    Attributes:
        prompt: the conversation that both respond to.
        first, second: responses, in the order shown to the judge.
        authors: authors of the responses, in the same order; "" if unknown.
        principles: criteria from which the judge names the one that decided; empty asks for none.
    """

    prompt: str
    first: str
    second: str
    authors: tuple[str, str] = ("", "")
    principles: tuple[str, ...] = ()


@dataclass(frozen=True)
class GradingQuestion:
    """Question to a judge: the grade of a response on each criterion.

    Attributes:
        low, high: the worst and the best grade.
    """

    prompt: str
    response: str
    criteria: tuple[str, ...]
    low: float = 1.0
    high: float = 5.0


@dataclass(frozen=True)
class Refusal:
    """Question to a judge: does a response refuse its prompt, answer it, and is it on topic?"""

    prompt: str
    response: str


@dataclass(frozen=True)
class Writing:
    """Request to a writer: a response, a critique of one, its revision, or new prompts.

    Attributes:
        kind: kind of text.
        prompt: the conversation to respond to; for new prompts, an example.
        draft: the response to criticise or revise.
        principles: for a critique, the principles to check; for a revision, the principles that the draft violates.
        count: number of new prompts.
        draw: index among independent texts of the same kind.
    """

    kind: Literal["reply", "critique", "revision", "prompt"]
    prompt: str
    draft: str = ""
    principles: tuple[str, ...] = ()
    count: int = 1
    draw: int = 0
