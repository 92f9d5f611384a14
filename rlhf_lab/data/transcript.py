r"""Conversations as text without loss: messages and tools ↔ a transcript.

A transcript is text in which each turn starts with a boundary: "\n\nHuman: …\n\nAssistant: …". A prompt is a transcript
that ends with the boundary "\n\nAssistant:", where the reply starts. The turns, in the words of the boundary:

    System, Human, Assistant   what was said, as it was said: after the colon comes one space, then the content
    Tools                      the tools there are, a JSON list; the first turn, where there are any
    Calls                      an assistant's calls of tools, a JSON list; follows its Assistant turn
    Tool                       what a tool gave back; a first line of JSON names the tool and the call, where known

A message may contain a line that looks like a boundary. It is quoted as mboxrd quotes "From " lines: after a blank
line, `\*Human:` gets one more backslash, and reading takes one away. So nobody can open a turn by typing its boundary,
and `parse(render(messages, tools)) == (messages, tools)` for every content. A model without a chat template reads the
quoted text, for the same reason. Replies (`Pair.chosen`) stand outside a transcript and are not quoted.

Text of other origin knows no quoting: there a boundary is a boundary, see replies.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.files import parse_json
from rlhf_lab.core.messages import Message

ROLES = {"user": "Human", "assistant": "Assistant", "system": "System", "tool": "Tool"}
SPEAKERS = {speaker: role for role, speaker in ROLES.items()}
REPLY = "\n\nAssistant:"
CALLS = "\n\nCalls: "
WORDS = "Human|Assistant|System|Tools|Tool|Calls"
TURN = re.compile(rf"\n\n({WORDS}):")
TO_QUOTE = re.compile(rf"(\n\n\\*)(?=(?:{WORDS}):)")
QUOTED = re.compile(rf"(\n\n\\*)\\(?=(?:{WORDS}):)")
SAID = re.compile(r"\n\n(Human|Assistant|System):")
"""The boundaries of text of other origin."""
TOOL_HEADER = ("name", "tool_call_id")


class Conversation(NamedTuple):
    """What a transcript says.

    Attributes:
        messages: {role, content} and, where there are any, tool_calls, name and tool_call_id.
        tools: definitions of the tools that the assistant may call, as chat templates take them.
    """

    messages: list[Message]
    tools: list[dict[str, Any]]


def quote(content: str) -> str:
    """A content with one more backslash before every word that would open a turn."""
    return TO_QUOTE.sub(r"\1\\", content) if "\n\n" in content else content


def unquote(text: str) -> str:
    """Inverse of `quote`."""
    return QUOTED.sub(r"\1", text) if "\n\n\\" in text else text


def after_colon(content: str) -> str:
    """A content with the one space that follows a boundary; nothing for an empty content."""
    return f" {content}" if content else ""


def render(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> str:
    """Messages and tools → transcript. Inverse of `parse`; a content that is None or absent is read back as ""."""
    turns = [f"\n\nTools: {_json(tools)}"] if tools else []
    for message in messages:
        content = message.get("content") or ""
        if message["role"] == "tool":
            content = _tool_header(message, content) + content
        turns.append(f"\n\n{ROLES[message['role']]}:{after_colon(quote(content))}")
        if message.get("tool_calls"):
            turns.append(CALLS + _json(message["tool_calls"]))
    return "".join(turns)


def render_prompt(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> str:
    """Messages and tools → prompt, ending where the assistant's reply starts."""
    return render(messages, tools) + REPLY


def parse(transcript: str) -> Conversation:
    """Transcript → messages and tools. Inverse of `render`.

    Raises DataError for text before the first boundary, and for Tools and Calls that are not JSON or stand elsewhere.
    """
    parts = TURN.split(normalise(transcript))
    if parts[0].strip():
        raise DataError(
            f'a transcript starts with "\\n\\nHuman:", "\\n\\nAssistant:" or "\\n\\nSystem:"; found {parts[0][:40]!r}'
        )
    messages: list[Message] = []
    tools: list[dict[str, Any]] = []
    speakers, bodies = parts[1::2], parts[2::2]
    for number, (speaker, body) in enumerate(zip(speakers, bodies, strict=True)):
        body = body.removeprefix(" ")
        if speaker == "Tools":
            tools = _json_list(speaker, body, number == 0, "be the first turn")
        elif speaker == "Calls":
            is_after = number > 0 and speakers[number - 1] == "Assistant"
            messages[-1]["tool_calls"] = _json_list(speaker, body, is_after, "follow an Assistant turn")
        elif speaker == "Tool":
            messages.append(_tool_message(unquote(body)))
        else:
            messages.append({"role": SPEAKERS[speaker], "content": unquote(body)})
    return Conversation(messages, tools)


def _json(values: Sequence[Any]) -> str:
    """One line of JSON, in which nothing can look like a boundary: it has no line breaks."""
    return json.dumps(list(values), ensure_ascii=False)


def _json_list(speaker: str, body: str, in_place: bool, place: str) -> list[dict[str, Any]]:
    try:
        values = parse_json(body)
    except ValueError:
        values = None
    if in_place and isinstance(values, list):
        return values
    raise DataError(
        f'a "\\n\\n{speaker}:" turn must {place} and hold a JSON list; found {body[:40]!r}; if it is text, write '
        f'"\\n\\n\\{speaker}:", with a backslash'
    )


def _tool_header(message: Message, content: str) -> str:
    """The first line of a tool's turn; empty where nothing is known and the content does not look like one."""
    known = {key: value for key, value in message.items() if key in TOOL_HEADER}
    looks_like_header = _read_header(content.partition("\n")[0]) is not None
    return json.dumps(known, ensure_ascii=False) + "\n" if known or looks_like_header else ""


def _read_header(line: str) -> dict[str, str] | None:
    if not line.startswith("{"):
        return None
    try:
        values = parse_json(line)
    except ValueError:
        return None
    return values if set(values) <= set(TOOL_HEADER) else None


def _tool_message(body: str) -> Message:
    line, _, rest = body.partition("\n")
    header = _read_header(line)
    message: Message = {"role": "tool", "content": body if header is None else rest}
    message.update(header or {})  # type: ignore[typeddict-item]
    return message


# Prompts


def normalise(text: str) -> str:
    """Put the boundary's two newlines before a transcript that lost them ("Human: hi" at the very start)."""
    if TURN.match(text):
        return text
    restored = "\n\n" + text.lstrip()
    return restored if SAID.match(restored) else text


def is_transcript(text: str) -> bool:
    """Whether the text starts with a turn boundary (as opposed to one plain message)."""
    return TURN.match(normalise(text)) is not None


def to_conversation(prompt: str) -> Conversation:
    """Prompt → messages and tools; the final "\\n\\nAssistant:" is no message. Plain text is one user message."""
    if not is_transcript(prompt):
        return Conversation([{"role": "user", "content": prompt}], [])
    messages, tools = parse(prompt)
    opens_reply = messages[-1:] == [{"role": "assistant", "content": ""}]
    return Conversation(messages[:-1] if opens_reply else messages, tools)


def to_messages(prompt: str) -> list[Message]:
    """The messages of `to_conversation`."""
    return to_conversation(prompt).messages


def as_prompt(text: str) -> str:
    """Plain text or transcript → prompt: plain text becomes a human turn, a final "\\n\\nAssistant:" is added."""
    stripped = normalise(text).rstrip()
    if not TURN.match(stripped):
        return render_prompt([{"role": "user", "content": text.strip()}])
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


# Replies


def reply_text(message: Message) -> str:
    """An assistant's message as the text of a reply: its content, then its calls."""
    calls = message.get("tool_calls")
    return (message.get("content") or "") + (CALLS + _json(calls) if calls else "")


def reply_message(reply: str) -> Message:
    """The message that `reply_text` writes as this reply."""
    content, boundary, calls = reply.rpartition(CALLS)
    if boundary:
        try:
            return {"role": "assistant", "content": content, "tool_calls": _json_list("Calls", calls, True, "")}
        except DataError:
            pass  # text that looks like calls
    return {"role": "assistant", "content": reply}
