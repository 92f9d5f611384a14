"""hh-rlhf transcripts and their turns.

A transcript is text in which each turn starts with a boundary: "\\n\\nHuman: …\\n\\nAssistant: …". A prompt is a
transcript that ends with the boundary "\\n\\nAssistant:", where the reply starts; a reply is stripped text.

Two transcripts of a pair are split at the last "\\n\\nAssistant:" boundary, never at the end of their common prefix:
replies often share their first words, and a prefix would move those words from the replies into the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from rlhf_lab.core.errors import DataError

Message = Mapping[str, str]
ROLES = {"user": "Human", "assistant": "Assistant", "system": "System"}
SPEAKERS = {speaker: role for role, speaker in ROLES.items()}
REPLY = "\n\nAssistant:"
TURN = re.compile(r"\n\n(Human|Assistant|System):")
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
        chosen, rejected: stripped replies; both empty where a side has no reply turn.
        drop: why the row is not a preference pair, or None.
        notes: oddities that do not stop it from being one.
        meta: what else the row says about the pair.
    """

    prompt: str
    chosen: str
    rejected: str
    drop: str | None = None
    notes: list[str] = field(default_factory=list)
    meta: Mapping[str, Any] = field(default_factory=dict)


def normalise(text: str) -> str:
    """Put the boundary's two newlines before a transcript that lost them ("Human: hi" at the very start)."""
    if TURN.match(text):
        return text
    restored = "\n\n" + text.lstrip()
    return restored if TURN.match(restored) else text


def is_transcript(text: str) -> bool:
    """Whether the text starts with a turn boundary (as opposed to one plain message)."""
    return TURN.match(normalise(text)) is not None


def parse(transcript: str) -> list[dict[str, str]]:
    """Transcript → messages {role, content}, contents stripped. Raises DataError for text before the first boundary."""
    parts = TURN.split(normalise(transcript))
    if parts[0].strip():
        raise DataError(
            f'a transcript starts with "\\n\\nHuman:", "\\n\\nAssistant:" or "\\n\\nSystem:"; found {parts[0][:40]!r}'
        )
    return [
        {"role": SPEAKERS[speaker], "content": body.strip()}
        for speaker, body in zip(parts[1::2], parts[2::2], strict=True)
    ]


def to_messages(prompt: str) -> list[dict[str, str]]:
    """Prompt → messages, without one for the final "\\n\\nAssistant:". Plain text is one user message."""
    if not is_transcript(prompt):
        return [{"role": "user", "content": prompt}]
    messages = parse(prompt)
    return messages[:-1] if messages[-1:] == [{"role": "assistant", "content": ""}] else messages


def render(messages: Sequence[Message]) -> str:
    """Messages → transcript. Inverse of `parse` for stripped contents without a boundary inside."""
    return "".join(f"\n\n{ROLES[message['role']]}:" + after_colon(message["content"]) for message in messages)


def after_colon(content: str) -> str:
    """A stripped content with the one space that follows a boundary; nothing for an empty content."""
    content = content.strip()
    return f" {content}" if content else ""


def render_prompt(messages: Sequence[Message]) -> str:
    """Messages → prompt, ending where the assistant's reply starts."""
    return render(messages) + REPLY


def as_prompt(text: str) -> str:
    """Plain text or transcript → prompt: plain text becomes a human turn, a final "\\n\\nAssistant:" is added."""
    stripped = normalise(text).rstrip()
    if not TURN.match(stripped):
        return render_prompt([{"role": "user", "content": text}])
    return stripped if stripped.endswith(REPLY) else stripped + REPLY


def last_turn(prompt: str) -> str:
    """A prompt from its last human turn on; all of it where no human speaks."""
    starts = [turn.start() for turn in TURN.finditer(prompt) if turn[1] == "Human"]
    return prompt[starts[-1] :] if starts else prompt


CONTEXTS: Mapping[str, Callable[[str], str]] = {"conversation": str, "last_turn": last_turn}
"""What a model reads of a prompt."""


def human_turns(prompt: str) -> int:
    """How often the human speaks; more than once makes it multi-turn."""
    return sum(turn[1] == "Human" for turn in TURN.finditer(prompt))


def split_reply(transcript: str) -> tuple[str, str] | None:
    """Transcript → (prompt, stripped reply) at the last "\\n\\nAssistant:"; None when another role ends it."""
    head, boundary, reply = normalise(transcript).rpartition(REPLY)
    if not boundary or TURN.search(reply):
        return None
    return head + boundary, reply.strip()


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
    """A pair whose prompt is known → the same pair with its drop reason or its oddities. Replies are stripped."""
    chosen, rejected = chosen.strip(), rejected.strip()
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
    speakers = [speaker for speaker in parts[1::2] if speaker != "System"]
    notes = []
    if any(speaker == following for speaker, following in pairwise(speakers)):
        notes.append(NOT_ALTERNATING)
    if parts[0].strip() or not speakers or speakers[0] != "Human":
        notes.append(NO_HUMAN_FIRST)
    if any(map(has_marker, parts[::2])):
        notes.append(MARKER_IN_BODY)
    return notes
