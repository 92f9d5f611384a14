"""A row as prompt and responses: reads transcripts from other sources and notes oddities of a pair.

Transcripts from other sources (hh-rlhf) have the boundaries "\\n\\nHuman:", "\\n\\nAssistant:" and "\\n\\nSystem:" and
no quoting. Their turns are stripped. Other text that our own transcripts would read as a boundary is quoted.

The two transcripts of a pair are split at the last "\\n\\nAssistant:" boundary, never at the end of their common
prefix. Responses often start with the same words, and a common prefix would move those words into the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from rlhf_lab.core.messages import Message
from rlhf_lab.data.file_settings import PROMPT, PromptFileSettings
from rlhf_lab.data.transcript import (
    REPLY,
    SAID,
    TURN,
    after_colon,
    normalise,
    quote,
    render_prompt,
    to_conversation,
    to_messages,
)

MARKER = re.compile(r"\b(?:Human|Assistant)\s*:")
"""Text that looks like the start of a turn, at any position within the text of another turn."""

NO_REPLY = "no assistant turn at the end"
DIFFERENT_HISTORY = "different history"
IDENTICAL = "identical replies"
EMPTY_CHOSEN = "empty chosen"
EMPTY_REJECTED = "empty rejected"

NOT_ALTERNATING = "turns do not alternate"
NO_HUMAN_FIRST = "first turn is not human"
MARKER_IN_BODY = "role marker inside a body"
PREFIX = "one reply is a prefix of the other"


@dataclass(frozen=True, slots=True)
class SplitRow:
    """A row as prompt and two responses.

    Attributes:
        prompt: shared transcript up to and including the last "\\n\\nAssistant:"; the chosen side's if the two differ.
        chosen: chosen response; empty if a side has no response turn.
        rejected: rejected response; empty if a side has no response turn.
        drop: reason why the row is not a usable pair, or None.
        notes: oddities that do not prevent its use.
        meta: other data about the pair.
        metadata: other columns of the row; None if `loading` should determine them.
        asked: prompt before `prompt_template` and `system` are added to it; "" for rows of other sources.
        answer: correct answer, if the source has one.
    """

    prompt: str
    chosen: str
    rejected: str
    drop: str | None = None
    notes: list[str] = field(default_factory=list)
    meta: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] | None = None
    asked: str = ""
    answer: str = ""

    @property
    def decides_split(self) -> str:
        """Text whose hash decides the split: the question, the same with every template, or plain text to imitate."""
        return self.asked or self.identity

    @property
    def identity(self) -> str:
        """Text that makes two rows repetitions of each other, as in `Pair.identity`."""
        return self.prompt or self.chosen


def read_transcript(text: str) -> str:
    """Convert a transcript from another source: strip turns, and quote text that is a boundary only in our format."""
    before, *parts = SAID.split(normalise(text))  # text before the first turn, then speaker, body, speaker, body, …
    turns = zip(parts[::2], parts[1::2], strict=True)
    transcript = "".join(f"\n\n{speaker}:{after_colon(quote(body.strip()))}" for speaker, body in turns)
    return quote(before) + transcript if before.strip() else transcript


def read_prompt(text: str) -> str:
    """Convert a text column into a prompt. Plain text becomes a human turn; a transcript keeps its turns."""
    if not SAID.match(normalise(text)):
        return render_prompt([{"role": "user", "content": text.strip()}])
    transcript = read_transcript(text)
    return transcript if transcript.endswith(REPLY) else transcript + REPLY


def prompt_of(provided: str | Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> str:
    """Convert a column of text or messages into a prompt that offers the tools of its row."""
    if isinstance(provided, str):
        return with_tools(read_prompt(provided), tools)
    return render_prompt(provided, tools)


def with_tools(prompt: str, tools: Sequence[Mapping[str, Any]]) -> str:
    """Add the tool definitions of a row to a prompt that has none."""
    return render_prompt(to_messages(prompt), tools) if tools else prompt


def split_response(transcript: str) -> tuple[str, str] | None:
    """Split a transcript from another source before its last turn; None unless this is an "\\n\\nAssistant:" turn."""
    head, boundary, response = normalise(transcript).rpartition(REPLY)
    if not boundary or SAID.search(response):
        return None
    return read_transcript(head) + boundary, response.strip()


def split_pair(chosen: str, rejected: str) -> SplitRow:
    """Split two full transcripts into the shared prompt and two responses, with the reason if the pair is unusable."""
    chosen_side = split_response(chosen)
    rejected_side = split_response(rejected)
    if chosen_side is None or rejected_side is None:
        # the prompt is only used to count the row in a split
        prompt, _ = chosen_side or rejected_side or ("", "")
        return SplitRow(prompt, "", "", drop=NO_REPLY)
    prompt, chosen_response = chosen_side
    rejected_prompt, rejected_response = rejected_side
    if prompt != rejected_prompt:
        return SplitRow(prompt, chosen_response, rejected_response, drop=DIFFERENT_HISTORY)
    return check(prompt, chosen_response, rejected_response)


def check(prompt: str, chosen: str, rejected: str) -> SplitRow:
    """Return a pair with a known prompt, with its drop reason or its oddities. Responses are right-stripped."""
    chosen = chosen.rstrip()
    rejected = rejected.rstrip()
    drop = None  # the first reason counts: two empty responses are identical
    if chosen == rejected:
        drop = IDENTICAL
    elif not chosen:
        drop = EMPTY_CHOSEN
    elif not rejected:
        drop = EMPTY_REJECTED
    if drop:
        return SplitRow(prompt, chosen, rejected, drop=drop)
    notes = prompt_oddities(prompt)
    if MARKER_IN_BODY not in notes and (has_marker(chosen) or has_marker(rejected)):
        notes.append(MARKER_IN_BODY)
    if is_prefix(chosen, rejected):
        notes.append(PREFIX)
    return SplitRow(prompt, chosen, rejected, notes=notes)


def is_prefix(first: str, second: str) -> bool:
    """Return True if one response is a proper prefix of the other."""
    return first != second and (first.startswith(second) or second.startswith(first))


def has_marker(body: str) -> bool:
    """Return True if a turn's text names a speaker like a boundary does ("Human:")."""
    # The two substring tests are much faster than the pattern, and almost no text passes them.
    return ("Human" in body or "Assistant" in body) and MARKER.search(body) is not None


def prompt_oddities(prompt: str) -> list[str]:
    """Return the oddities of a prompt's turns: `NOT_ALTERNATING`, `NO_HUMAN_FIRST`, `MARKER_IN_BODY`."""
    parts = TURN.split(prompt)  # text before the first turn, then speaker, body, speaker, body, …
    # system and tool definitions do not take part in the alternation
    speakers = [speaker for speaker in parts[1::2] if speaker not in ("System", "Tools")]
    notes = []
    # Several tool results in a row are normal.
    if any(speaker == following != "Tool" for speaker, following in pairwise(speakers)):
        notes.append(NOT_ALTERNATING)
    if parts[0].strip() or not speakers or speakers[0] != "Human":
        notes.append(NO_HUMAN_FIRST)
    if any(map(has_marker, parts[::2])):
        notes.append(MARKER_IN_BODY)
    return notes


def as_requested(prompt: str, settings: PromptFileSettings) -> str:
    """Return a prompt with the source's template around its last user message, and with its system message.

    Both are part of the prompt's text, and thus of the fingerprint of the corpus, the answer key and the model's input.
    A row with its own system message keeps that one. A prompt without a user message has no question that the template
    could hold, so it gets no template.
    """
    if settings.prompt_template == PROMPT and not settings.system:
        return prompt
    messages, tools = to_conversation(prompt)
    requested: list[Message] = [message.copy() for message in messages]
    questions = [message for message in requested if message["role"] == "user"]
    if questions:
        question = questions[-1]
        # not str.format: a template may have other braces, such as those of \boxed{}
        question["content"] = settings.prompt_template.replace(PROMPT, question.get("content") or "")
    has_system = any(message["role"] == "system" for message in requested)
    if settings.system and not has_system:
        requested.insert(0, {"role": "system", "content": settings.system})
    return render_prompt(requested, tools)
