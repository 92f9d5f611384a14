"""Rendering of messages with a model's chat template: prompts, responses, and the end of turns.

A template produces text that contains the model's special tokens. Two errors must not happen on the way to token ids. A
user who types "<|im_end|>" must not end a turn. A response that starts with spaces (code) must keep them. A response is
therefore never part of the rendered text: its tokens are appended to those of the rendered prompt. Message text that
looks like a special token is tokenised as ordinary text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.messages import Message
from rlhf_lab.core.text import well_formed
from rlhf_lab.core.tools import call_id, declared_names, function_call, name_problem
from rlhf_lab.models.tool_calls import CallFormat, find_format

MARK = "\ue000{}\ue001"
"""Placeholder for the text of a message while a template is rendered; no template changes or strips its characters."""
TODAY = datetime(2024, 7, 26)
"""Date that every prompt gets from a template that writes today's date, such as that of Llama 3.2.

Otherwise the prompts of a stage that is resumed or repeated on another day would differ. It is the date that Llama's
templates write if they do not know the time.
"""
DATE = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""")
"""Call in a template for the current date; the second group is its format."""
MADE_UP = "made_up"
"""Name of a tool call, and of its only argument, that is rendered to find out what the template writes after it."""


class ChatTemplate:
    """The chat template of a tokenizer.

    Args:
        stop_ids: additional tokens that end a response, such as those of the model's generation_config.

    Attributes:
        end_of_turn: token ids that follow a response, up to the one that ends the turn.
        stop_ids: all tokens that end a response, the template's own first.
    """

    def __init__(self, tokenizer: Any, stop_ids: Iterable[int] = ()):
        self.tokenizer = tokenizer
        special = {*tokenizer.all_special_ids}
        special |= {id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._special_ids = special
        self._special_texts = [text for text in tokenizer.convert_ids_to_tokens(sorted(special)) if text]
        self.end_of_turn = self._end_of_turn()
        known = dict.fromkeys([self.end_of_turn[-1], tokenizer.eos_token_id, *stop_ids])  # no duplicates, in order
        self.stop_ids = tuple(id for id in known if id is not None)

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None) -> list[int]:
        """Return the token ids up to the start of the assistant's response.

        Raises DataError if the template rejects the messages.
        """
        texts = _texts_of(messages)
        if not any(map(self._holds_special_text, texts)):
            # no message contains the text of a special token, so the rendered text can be tokenised as it is
            return self._ids(self._render(messages, tools))
        return self._prompt_with_special_text(messages, texts, tools)

    @cached_property
    def call_format(self) -> CallFormat | None:
        """Form in which the template writes tool calls; None if it has no tools or an unknown form."""
        return find_format(
            lambda messages, tools, generation: self._render(messages, tools, generation=generation),
            end_of_turn=self.tokenizer.decode([self.end_of_turn[-1]]),
            markers=[token.content for token in self.tokenizer.added_tokens_decoder.values()],
        )

    def message(self, raw: str) -> Message:
        """Return a response as the assistant's message with its tool calls; `raw` includes special tokens."""
        text, calls = self.call_format.read(raw) if self.call_format else (raw, [])
        for special in self._special_texts:
            text = text.replace(special, "")
        message = Message(role="assistant", content=text.rstrip())
        if calls:
            message["tool_calls"] = calls
        return message

    def response(self, text: str) -> list[int]:
        """Return the token ids of a response as it follows `prompt`, with the end of its turn. All spaces are kept."""
        return [*self._ids(text, as_text=True), *self.end_of_turn]

    def next_prompt(self, messages: Sequence[Message], *, finished: bool) -> list[int]:
        """Return the token ids after a sampled response: the template's text between it and the next response.

        They are found by difference: a short conversation is rendered with a response and the messages after it, and
        the part before the messages is removed.

        Args:
            finished: True if the response's last token already ends its turn.
        """
        texts = _texts_of(messages)
        if any(message["role"] == "tool" for message in messages) and self.call_format:
            return self._behind_calls(messages, texts, finished=finished)
        opening = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": MARK.format(0)}]
        marked = _marked(messages, texts, first=1)
        behind = self._render([*opening, *marked], None).partition(MARK.format(0))[2]
        # a template that drops or reorders messages cannot be used to continue a conversation
        dropped = [number for number, text in enumerate(texts, start=1) if text and MARK.format(number) not in behind]
        if dropped:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise DataError(
                f"the chat template of the tokenizer does not write these messages after a response ({roles}); change "
                "the roles, or set model.chat_template=false"
            )
        ids = self._filled_ids(behind, ["", *texts])
        end = self.end_of_turn
        if finished and ids[: len(end)] == end:
            return ids[len(end) :]  # the response already contains its end of turn
        return ids

    def _behind_calls(self, messages: Sequence[Message], texts: Sequence[str], *, finished: bool) -> list[int]:
        """Return the result of `next_prompt` for tool results.

        Templates accept tool results only after a response with a tool call. One call represents all calls of the
        response, because the text after a turn does not depend on its content.
        """
        results = [message for message in messages if message["role"] == "tool"]
        id = results[0].get("tool_call_id") or call_id(0)
        call = function_call(results[0].get("name", MADE_UP), {MADE_UP: MADE_UP}, id)
        calling: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
        opening: list[Mapping[str, Any]] = [{"role": "user", "content": "hi"}, calling]
        answered = [message.copy() for message in messages]
        for message in answered:
            if message["role"] == "tool":
                message.setdefault("tool_call_id", id)
        has_special_text = any(map(self._holds_special_text, texts))
        # some templates write a result as JSON, which a placeholder would not be
        shown: Sequence[Mapping[str, Any]] = _marked(answered, texts) if has_special_text else answered
        end = self.end_of_turn
        end_text = self.tokenizer.decode([end[-1]])
        # the call ends with the first end of turn after its name
        _, _, called = self._render([*opening, *shown], None).partition(MADE_UP)
        behind = called.partition(end_text)[2]
        marked_behind = behind
        if not has_special_text:  # rendered only to check that the template keeps all results
            _, _, marked = self._render([*opening, *_marked(answered, texts)], None).partition(MADE_UP)
            marked_behind = marked.partition(end_text)[2]
        missing = any(text and MARK.format(index) not in marked_behind for index, text in enumerate(texts))
        if not behind or missing:
            raise DataError(
                "the chat template of the tokenizer does not write a tool's result after the call; set "
                "model.chat_template=false"
            )
        ids = self._filled_ids(behind, texts) if has_special_text else self._ids(behind)
        return ids if finished else [*end, *ids]

    def turns(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, learned: Sequence[int]
    ) -> tuple[list[int], list[bool]]:
        """Return the token ids after the prompt of the first learned turn, and a mask that is True for learned tokens.

        A learned turn is an assistant turn whose tokens are in the loss: the rendered conversation up to its end
        without the prompt before it. It consists of its text, tokenised separately as in `response`, its tool calls,
        and its end of turn. The last message is a learned turn; text that the template writes after its end of turn is
        omitted.

        Args:
            learned: indices of the assistant's messages that are learned, ascending.
        Raises:
            DataError: the template rejects the messages, or does not write them in order.
        """
        texts = _texts_of(messages)
        marked = _marked(messages, texts)
        full = self._render(marked, tools, generation=False)
        ids: list[int] = []
        mask: list[bool] = []
        position = self._turn_start(full, marked, tools, learned[0])
        for number, next_number in zip(learned, [*learned[1:], None], strict=True):
            next_start = len(full) if next_number is None else self._turn_start(full, marked, tools, next_number)
            turn, after = self._turn(full[position:next_start], texts, number)
            ids += turn
            mask += [True] * len(turn)
            if next_number is not None:  # messages of others up to the next learned turn are only read
                ids += after
                mask += [False] * len(after)
            position = next_start
        return ids, mask

    def _turn_start(
        self, full: str, marked: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, number: int
    ) -> int:
        """Return the offset at which an assistant turn starts in the rendered conversation: the end of its prompt."""
        before = self._render(marked[:number], tools) if number else ""
        if before and full.startswith(before):
            return len(before)
        # the template writes earlier turns differently if others follow; the turn then starts with its text
        mark_start = full.find(MARK.format(number)) if marked[number]["content"] else -1
        if mark_start < 0:
            raise DataError(
                f"the chat template does not write message {number + 1} where its prompt ends; set "
                "algorithm.assistant_turns=last, or model.chat_template=false"
            )
        return mark_start

    def _turn(self, rendered: str, texts: Sequence[str], number: int) -> tuple[list[int], list[int]]:
        """Split text that starts with a learned turn into (ids of that turn, ids up to the next learned turn)."""
        before, mark, rest = rendered.partition(MARK.format(number))
        text = texts[number]
        if not mark:
            # A message without text, or whose text the template drops, as Llama 3.1 does next to a tool call.
            before, text, rest = "", "", rendered
        # A space that the template writes before the text belongs to the text's first word.
        turn = [*self._ids(before)] if before.strip() else []
        output_text = text if before.strip() else before + text
        turn += self._ids(output_text, as_text=True)
        tail = self._filled_ids(rest, texts)
        end = self.end_of_turn[-1]
        if end not in tail:  # the template does not end turns
            return [*turn, *self.end_of_turn], tail
        ends = tail.index(end) + 1
        return [*turn, *tail[:ends]], tail[ends:]

    def _filled_ids(self, rendered: str, texts: Sequence[str]) -> list[int]:
        """Return the token ids of rendered text, with its placeholders replaced by messages as ordinary text."""
        strips = self._strips
        ids: list[int] = []
        # Template text and messages without special text are tokenised together, as in `prompt`.
        waiting = ""
        for index, text in enumerate(texts):
            before, mark, rest = rendered.partition(MARK.format(index))
            if not mark:
                continue
            output_text = text.strip() if strips else text
            waiting += before
            if self._holds_special_text(output_text):
                ids += [*self._ids(waiting), *self._ids(output_text, as_text=True)]
                waiting = ""
            else:
                waiting += output_text
            rendered = rest
        return [*ids, *self._ids(waiting + rendered)]

    def _prompt_with_special_text(
        self, messages: Sequence[Message], texts: Sequence[str], tools: Sequence[Mapping[str, Any]] | None
    ) -> list[int]:
        """Return the token ids of the template's text, with the messages between its pieces as ordinary text."""
        strips = self._strips
        marked = [{**message, "content": MARK.format(index)} for index, message in enumerate(messages)]
        remaining = self._render(marked, tools)
        ids: list[int] = []
        for index, text in enumerate(texts):
            before, mark, remaining = remaining.partition(MARK.format(index))
            if not mark:
                raise DataError(
                    f"message {index + 1} contains the text of a special token, and the chat template does not write "
                    "messages in order; remove that text, or set model.chat_template=false"
                )
            output_text = text.strip() if strips else text
            # as text: a user who writes a special token must not be able to end a turn
            ids += [*self._ids(before), *self._ids(output_text, as_text=True)]
        return [*ids, *self._ids(remaining)]

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        generation: bool = True,
    ) -> str:
        for problem in filter(None, map(name_problem, declared_names(tools or []))):
            raise DataError(problem)
        try:
            rendered = self.tokenizer.apply_chat_template(
                list(messages),
                tools=list(tools) if tools else None,
                tokenize=False,
                add_generation_prompt=generation,
                chat_template=template_on_one_day(self.tokenizer, tools),
            )
        except Exception as error:  # a template may raise any exception
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise DataError(
                f"the chat template of the tokenizer rejects these messages ({roles}): {error}; change the roles, or "
                "set model.chat_template=false"
            ) from error
        return str(rendered)

    def _holds_special_text(self, text: str) -> bool:
        return any(special in text for special in self._special_texts)

    def _ids(self, text: str, *, as_text: bool = False) -> list[int]:
        encoded = self.tokenizer(well_formed(text), add_special_tokens=False, split_special_tokens=as_text)
        return list(encoded["input_ids"])

    def end_turns_in_full(self) -> None:
        """Let responses end with all that the template writes, such as a line break after the end of the turn.

        Reward models of other programs read their score at the last token of a rendered conversation.
        """
        tail = self._behind_response()
        if tail[: len(self.end_of_turn)] == self.end_of_turn:
            self.end_of_turn = tail

    def _behind_response(self) -> list[int]:
        """Return the tokens that the template writes after a response."""
        messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": MARK.format(0)}]
        return self._ids(self._render(messages, None, generation=False).partition(MARK.format(0))[2])

    def _end_of_turn(self) -> list[int]:
        """Return the tokens that the template writes after a response, up to the first special token."""
        tail = self._behind_response()
        # a template may write a line break after the special token, which a model need not generate
        for position, token in enumerate(tail):
            if token in self._special_ids:
                return tail[: position + 1]
        if self.tokenizer.eos_token_id is None:
            raise DataError(
                "the chat template does not end turns, and the tokenizer has no EOS token, so no response could end; "
                "set tokenizer.eos_token"
            )
        return [self.tokenizer.eos_token_id]

    @cached_property
    def _strips(self) -> bool:
        """True if the template removes the space around a message."""
        return f" {MARK.format(0)} " not in self._render([{"role": "user", "content": f" {MARK.format(0)} "}], None)


def _texts_of(messages: Sequence[Message]) -> list[str]:
    return [str(message.get("content") or "") for message in messages]


def template_on_one_day(tokenizer: Any, tools: Sequence[Mapping[str, Any]] | None) -> str:
    """Return the text of the tokenizer's template with `TODAY` instead of the current date."""
    template = str(tokenizer.get_chat_template(tools=list(tools) if tools else None))
    return DATE.sub(lambda call: repr(TODAY.strftime(call[2])), template)


def _marked(messages: Sequence[Message], texts: Sequence[str], first: int = 0) -> list[dict[str, Any]]:
    """Return the messages with numbered placeholders instead of their texts.

    An empty message stays empty, because a placeholder would make the template write text that it otherwise omits.
    """
    return [
        {**message, "content": MARK.format(number) if text else ""}
        for number, (message, text) in enumerate(zip(messages, texts, strict=True), start=first)
    ]
