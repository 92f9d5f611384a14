r"""Lossless conversion between conversations (messages and tools) and text transcripts.

A transcript is text in which each turn starts with a boundary: "\n\nHuman: …\n\nAssistant: …". A prompt is a transcript
that ends with the boundary "\n\nAssistant:", where the response starts. The turns, by the word of their boundary:

    System, Human, Assistant   content of a message, unchanged, after the colon and one space
    Tools                      definitions of the tools, a JSON list; the first turn, if there are any
    Calls                      tool calls of an assistant, a JSON list; follows its Assistant turn
    Tool                       result of a tool; a first line of JSON names the tool and the call, if known

A message may contain a line that looks like a boundary. It is quoted as mboxrd quotes "From " lines: after a blank
line, writing adds one backslash to `\*Human:`, and reading removes one. A user therefore cannot start a turn by typing
its boundary, and `parse(render(messages, tools)) == (messages, tools)` for every content. A model without a chat
template reads the quoted text, for the same reason. Responses (`Pair.chosen`) are not part of a transcript and are not
quoted.

Text from other sources has no quoting: every boundary in it starts a turn, see split_rows.py.
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
TURN = re.compile(rf"\n\n({WORDS}):")  # start of a turn
# text that looks like the start of a turn; a backslash is put in front
TO_QUOTE = re.compile(rf"(\n\n\\*)(?=(?:{WORDS}):)")
QUOTED = re.compile(rf"(\n\n\\*)\\(?=(?:{WORDS}):)")  # the same with the backslash, of which one is removed
SAID = re.compile(r"\n\n(Human|Assistant|System):")
"""Boundaries in text from other sources."""
TOOL_HEADER = ("name", "tool_call_id")


class Conversation(NamedTuple):
    """Parsed transcript.

    Attributes:
        messages: messages with role and content and, if present, tool_calls, name and tool_call_id.
        tools: definitions of the tools that the assistant may call, as chat templates take them.
    """

    messages: list[Message]
    tools: list[dict[str, Any]]


def quote(content: str) -> str:
    """Add one backslash before every word in a content that would start a turn."""
    # the substring test is faster than the pattern, and few contents pass it
    return TO_QUOTE.sub(r"\1\\", content) if "\n\n" in content else content


def unquote(text: str) -> str:
    """Invert `quote`."""
    return QUOTED.sub(r"\1", text) if "\n\n\\" in text else text


def after_colon(content: str) -> str:
    """Return a content with the one space that follows a boundary; "" for an empty content."""
    return f" {content}" if content else ""


def render(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> str:
    """Render messages and tools as a transcript. Inverse of `parse`; a missing or None content is parsed as ""."""
    turns = [f"\n\nTools: {_json(tools)}"] if tools else []
    for message in messages:
        content = message.get("content") or ""
        if message["role"] == "tool":
            content = _tool_header(message, content) + content
        speaker = ROLES[message["role"]]
        turns.append(f"\n\n{speaker}:{after_colon(quote(content))}")
        if message.get("tool_calls"):
            turns.append(CALLS + _json(message["tool_calls"]))
    return "".join(turns)


def render_prompt(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> str:
    """Render messages and tools as a prompt, which ends where the assistant's response starts."""
    return render(messages, tools) + REPLY


def parse(transcript: str) -> Conversation:
    """Parse a transcript into messages and tools. Inverse of `render`.

    Raises DataError for text before the first boundary, and for Tools and Calls that are not JSON or misplaced.
    """
    parts = TURN.split(normalise(transcript))
    if parts[0].strip():
        raise DataError(
            'a transcript must start with "\\n\\nHuman:", "\\n\\nAssistant:" or "\\n\\nSystem:", but it starts with '
            f"{parts[0][:40]!r}"
        )
    messages: list[Message] = []
    tools: list[dict[str, Any]] = []
    speakers, bodies = parts[1::2], parts[2::2]
    # Calls are not quoted, because their JSON contains no newlines
    for index, (speaker, body) in enumerate(zip(speakers, bodies, strict=True)):
        body = body.removeprefix(" ")
        if speaker == "Tools":
            tools = _json_list(speaker, body, index == 0, "be the first turn")
        elif speaker == "Calls":
            is_after = index > 0 and speakers[index - 1] == "Assistant"
            messages[-1]["tool_calls"] = _json_list(speaker, body, is_after, "follow an Assistant turn")
        elif speaker == "Tool":
            messages.append(_tool_message(unquote(body)))
        else:
            messages.append({"role": SPEAKERS[speaker], "content": unquote(body)})
    return Conversation(messages, tools)


def _json(values: Sequence[Any]) -> str:
    """Return JSON without newlines, so that nothing in it can look like a boundary."""
    return json.dumps(list(values), ensure_ascii=False)


def _json_list(speaker: str, body: str, in_place: bool, location: str) -> list[dict[str, Any]]:
    try:
        values = parse_json(body)
    except ValueError:
        values = None
    if in_place and isinstance(values, list):
        return values
    raise DataError(
        f'a "\\n\\n{speaker}:" turn must {location} and contain a JSON list, but it contains {body[:40]!r}; if it is '
        f'text, write "\\n\\n\\{speaker}:" with a backslash'
    )


def _tool_header(message: Message, content: str) -> str:
    """Return the header line of a tool's turn: its name and call id; "" if it has neither and needs no header.

    A content whose first line looks like a header needs an empty header.
    """
    known = {key: value for key, value in message.items() if key in TOOL_HEADER}
    # a content whose first line looks like a header gets an empty one, so that reading does not remove that line
    looks_like_header = _read_header(content.partition("\n")[0]) is not None
    return json.dumps(known, ensure_ascii=False) + "\n" if known or looks_like_header else ""


def _read_header(line: str) -> dict[str, str] | None:
    if not line.startswith("{"):
        return None
    try:
        values = parse_json(line)
    except ValueError:
        return None
    # any other JSON object is content of the tool
    return values if set(values) <= set(TOOL_HEADER) else None


def _tool_message(body: str) -> Message:
    line, _, rest = body.partition("\n")
    header = _read_header(line)
    message: Message = {"role": "tool", "content": body if header is None else rest}
    message.update(header or {})  # type: ignore[typeddict-item]
    return message


# Prompts


def normalise(text: str) -> str:
    """Restore the two newlines at the start of a transcript that lost them ("Human: hi")."""
    if TURN.match(text):
        return text
    restored = "\n\n" + text.lstrip()
    return restored if SAID.match(restored) else text


def is_transcript(text: str) -> bool:
    """Return True if the text starts with a turn boundary, False for a single message."""
    return TURN.match(normalise(text)) is not None


def to_conversation(prompt: str) -> Conversation:
    """Parse a prompt without its final "\\n\\nAssistant:". Plain text is one user message."""
    if not is_transcript(prompt):
        return Conversation([{"role": "user", "content": prompt}], [])
    messages, tools = parse(prompt)
    # the final boundary of a prompt is parsed as an empty assistant message
    opens_response = messages[-1:] == [{"role": "assistant", "content": ""}]
    return Conversation(messages[:-1] if opens_response else messages, tools)


def to_messages(prompt: str) -> list[Message]:
    """Return the messages of `to_conversation`."""
    return to_conversation(prompt).messages


def as_prompt(text: str) -> str:
    """Convert plain text or a transcript into a prompt: a human turn for plain text, and a final "\\n\\nAssistant:"."""
    stripped = normalise(text).rstrip()
    if not TURN.match(stripped):
        return render_prompt([{"role": "user", "content": text.strip()}])
    return stripped if stripped.endswith(REPLY) else stripped + REPLY


def last_turn(prompt: str) -> str:
    """Return a prompt from its last human turn on; the entire prompt if there is no human turn."""
    starts = [turn.start() for turn in TURN.finditer(prompt) if turn[1] == "Human"]
    return prompt[starts[-1] :] if starts else prompt


CONTEXTS: Mapping[str, Callable[[str], str]] = {"conversation": str, "last_turn": last_turn}
"""Name of a context → function that extracts the part of a prompt that a model reads."""


def human_turns(prompt: str) -> int:
    """Return the number of human turns. A prompt with more than one is multi-turn."""
    return sum(turn[1] == "Human" for turn in TURN.finditer(prompt))


# Responses


def response_text(message: Message) -> str:
    """Return an assistant's message as response text: its content, then its calls."""
    calls = message.get("tool_calls")
    return (message.get("content") or "") + (CALLS + _json(calls) if calls else "")


def response_message(response: str) -> Message:
    """Return the message of a response; inverse of `response_text`."""
    content, boundary, calls = response.rpartition(CALLS)
    if boundary:
        try:
            return {"role": "assistant", "content": content, "tool_calls": _json_list("Calls", calls, True, "")}
        except DataError:
            pass  # plain text that looks like calls
    return {"role": "assistant", "content": response}
