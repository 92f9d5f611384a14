"""A row as prompt and replies: text of other origin read as a transcript, and what is odd about a pair.

Transcripts of other origin (hh-rlhf) have the boundaries "\\n\\nHuman:", "\\n\\nAssistant:" and "\\n\\nSystem:" and no
quoting. Their turns are stripped, and what else our own transcripts would read as a boundary is quoted.

Two transcripts of a pair are split at the last "\\n\\nAssistant:" boundary, never at the end of their common prefix:
replies often share their first words, and a prefix would move those words from the replies into the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from rlhf_lab.data.transcript import REPLY, SAID, TURN, after_colon, normalise, quote, render_prompt

MARKER = re.compile(r"\b(?:Human|Assistant)\s*:")

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
class Split:
    """A row as prompt and two replies.

    Attributes:
        prompt: shared transcript up to and with the last "\\n\\nAssistant:"; the chosen side's where the two differ.
        chosen, rejected: replies; both empty where a side has no reply turn.
        drop: why the row is not a preference pair, or None.
        notes: oddities that do not stop it from being one.
        meta: what else the row says about the pair.
        facts: the row's other columns; None where they are the source's to find.
    """

    prompt: str
    chosen: str
    rejected: str
    drop: str | None = None
    notes: list[str] = field(default_factory=list)
    meta: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] | None = None


def read_transcript(text: str) -> str:
    """A transcript of other origin as one of our own: turns stripped, what is no boundary there quoted."""
    before, *parts = SAID.split(normalise(text))  # text before the first turn, then speaker, body, speaker, body, …
    turns = zip(parts[::2], parts[1::2], strict=True)
    said = [f"\n\n{speaker}:{after_colon(quote(body.strip()))}" for speaker, body in turns]
    return quote(before) + "".join(said) if before.strip() else "".join(said)


def read_prompt(text: str) -> str:
    """A prompt column of text → prompt: a transcript of other origin, or plain text, which becomes a human turn."""
    if not SAID.match(normalise(text)):
        return render_prompt([{"role": "user", "content": text.strip()}])
    transcript = read_transcript(text)
    return transcript if transcript.endswith(REPLY) else transcript + REPLY


def split_reply(transcript: str) -> tuple[str, str] | None:
    """Transcript of other origin → (prompt, stripped reply) at its last "\\n\\nAssistant:"; None if another ends it."""
    head, boundary, reply = normalise(transcript).rpartition(REPLY)
    if not boundary or SAID.search(reply):
        return None
    return read_transcript(head) + boundary, reply.strip()


def split_pair(chosen: str, rejected: str) -> Split:
    """Two whole transcripts → shared prompt and two replies, with the reason when that is not a usable pair."""
    chosen_side = split_reply(chosen)
    rejected_side = split_reply(rejected)
    if chosen_side is None or rejected_side is None:
        prompt, _ = chosen_side or rejected_side or ("", "")
        return Split(prompt, "", "", drop=NO_REPLY)
    prompt, chosen_reply = chosen_side
    rejected_prompt, rejected_reply = rejected_side
    if prompt != rejected_prompt:
        return Split(prompt, chosen_reply, rejected_reply, drop=DIFFERENT_HISTORY)
    return check(prompt, chosen_reply, rejected_reply)


def check(prompt: str, chosen: str, rejected: str) -> Split:
    """A pair whose prompt is known → the same pair with its drop reason or its oddities. Replies are right-stripped."""
    chosen, rejected = chosen.rstrip(), rejected.rstrip()
    drop = None
    if chosen == rejected:
        drop = IDENTICAL
    elif not chosen:
        drop = EMPTY_CHOSEN
    elif not rejected:
        drop = EMPTY_REJECTED
    if drop:
        return Split(prompt, chosen, rejected, drop=drop)
    notes = prompt_oddities(prompt)
    if MARKER_IN_BODY not in notes and (has_marker(chosen) or has_marker(rejected)):
        notes.append(MARKER_IN_BODY)
    if is_prefix(chosen, rejected):
        notes.append(PREFIX)
    return Split(prompt, chosen, rejected, notes=notes)


def is_prefix(first: str, second: str) -> bool:
    """Whether one reply is the strict beginning of the other."""
    return first != second and (first.startswith(second) or second.startswith(first))


def has_marker(body: str) -> bool:
    """Whether a turn's text names a speaker as a boundary does ("Human:")."""
    # The two look-ups are much faster than the pattern, which nearly no text needs.
    return ("Human" in body or "Assistant" in body) and MARKER.search(body) is not None


def prompt_oddities(prompt: str) -> list[str]:
    """What is unusual about a prompt's turns: `NOT_ALTERNATING`, `NO_HUMAN_FIRST`, `MARKER_IN_BODY`."""
    parts = TURN.split(prompt)  # text before the first turn, then speaker, body, speaker, body, …
    speakers = [speaker for speaker in parts[1::2] if speaker not in ("System", "Tools")]
    notes = []
    # Several results of tools may follow each other.
    if any(speaker == following != "Tool" for speaker, following in pairwise(speakers)):
        notes.append(NOT_ALTERNATING)
    if parts[0].strip() or not speakers or speakers[0] != "Human":
        notes.append(NO_HUMAN_FIRST)
    if any(map(has_marker, parts[::2])):
        notes.append(MARKER_IN_BODY)
    return notes
