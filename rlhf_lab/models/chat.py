"""Messages as a model's chat template writes them: prompts, replies, and what ends a turn.

The template is text with the model's special tokens in it. Two things must not happen on the way to token ids: a user
who types "<|im_end|>" must not end a turn, and a reply that begins with spaces (code) must keep them. So a reply is
never part of the rendered text: it follows the rendered prompt as tokens of its own, and the text of a message that
looks like a special token is tokenised as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.messages import Message
from rlhf_lab.core.tools import call_id, declared_names, function_call, name_problem
from rlhf_lab.models.tool_calls import CallFormat, find_format

MARK = "\ue000{}\ue001"
"""Stands for the text of a message while a template is rendered: characters that no template changes or strips."""
MADE_UP = "made_up"
"""Name and only argument of a call that is rendered for what the template writes behind it."""


class ChatTemplate:
    """The chat template of a tokenizer.

    Args:
        tokenizer: of Hugging Face, with a `chat_template`.
        stop_ids: further tokens that end a reply, such as those of the model's generation_config.

    Attributes:
        end_of_turn: token ids that follow a reply, up to the one that ends the turn.
        stop_ids: every token that ends a reply; the template's own first.
    """

    def __init__(self, tokenizer: Any, stop_ids: Iterable[int] = ()):
        self.tokenizer = tokenizer
        special = {*tokenizer.all_special_ids}
        special |= {id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._special_ids = special
        self._special_texts = [text for text in tokenizer.convert_ids_to_tokens(sorted(special)) if text]
        self.end_of_turn = self._end_of_turn()
        known = [self.end_of_turn[-1], tokenizer.eos_token_id, *stop_ids]
        self.stop_ids = tuple(dict.fromkeys(id for id in known if id is not None))

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None) -> list[int]:
        """Token ids up to where the assistant's reply begins. Raises DataError for what the template refuses."""
        texts = [str(message.get("content") or "") for message in messages]
        if not any(special in text for text in texts for special in self._special_texts):
            return self._ids(self._render(messages, tools))
        return self._prompt_with_special_text(messages, texts, tools)

    @cached_property
    def call_format(self) -> CallFormat | None:
        """How the template writes calls of tools; None where it takes no tools, or in a form that is not read."""
        return find_format(
            lambda messages, tools, generation: self._render(messages, tools, generation=generation),
            end_of_turn=self.tokenizer.decode([self.end_of_turn[-1]]),
            markers=[token.content for token in self.tokenizer.added_tokens_decoder.values()],
        )

    def message(self, raw: str) -> Message:
        """The assistant's message that a reply is, with its calls; of a reply as text, special tokens included."""
        said, calls = self.call_format.read(raw) if self.call_format else (raw, [])
        for special in self._special_texts:
            said = said.replace(special, "")
        message = Message(role="assistant", content=said.rstrip())
        if calls:
            message["tool_calls"] = calls
        return message

    def reply(self, text: str) -> list[int]:
        """Token ids of a reply as it follows `prompt`, the end of its turn included. Spaces stay as they are."""
        return [*self._ids(text, as_text=True), *self.end_of_turn]

    def next_prompt(self, messages: Sequence[Message], *, ended: bool) -> list[int]:
        """Token ids behind a sampled reply: what the template writes between it and the next one.

        Found by difference: a short conversation is rendered with the messages behind a reply, and what stands before
        them is left out.

        Args:
            ended: whether the reply's last token is the end of its turn already.
        """
        texts = [str(message.get("content") or "") for message in messages]
        if any(message["role"] == "tool" for message in messages) and self.call_format:
            return self._behind_calls(messages, texts, ended=ended)
        opening = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": MARK.format(0)}]
        behind = self._render([*opening, *_marked(messages, texts, first=1)], None).partition(MARK.format(0))[2]
        if any(text and MARK.format(number) not in behind for number, text in enumerate(texts, start=1)):
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise DataError(
                f"the chat template of the tokenizer does not write these messages behind a reply ({roles}); change "
                "the roles, or use model.chat_template=false"
            )
        ids = self._filled_ids(behind, ["", *texts])
        end = self.end_of_turn
        return ids[len(end) :] if ended and ids[: len(end)] == end else ids

    def _behind_calls(self, messages: Sequence[Message], texts: Sequence[str], *, ended: bool) -> list[int]:
        """`next_prompt` where tools answer: behind a reply that calls one, as templates want it.

        One call stands for all that the reply makes: what follows a turn does not depend on what is in it.
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
        has_special_text = any(special in text for text in texts for special in self._special_texts)
        # some templates write a result as JSON, which a mark in its place would not be
        shown: Sequence[Mapping[str, Any]] = _marked(answered, texts) if has_special_text else answered
        end = self.end_of_turn
        _, _, called = self._render([*opening, *shown], None).partition(MADE_UP)
        behind = called.partition(self.tokenizer.decode([end[-1]]))[2]
        marked_behind = behind
        if not has_special_text:  # only looked at: what the template leaves out of a result would never be read
            _, _, marked = self._render([*opening, *_marked(answered, texts)], None).partition(MADE_UP)
            marked_behind = marked.partition(self.tokenizer.decode([end[-1]]))[2]
        missing = any(text and MARK.format(number) not in marked_behind for number, text in enumerate(texts))
        if not behind or missing:
            raise DataError(
                "the chat template of the tokenizer does not write a tool's result behind the call; use "
                "model.chat_template=false"
            )
        ids = self._filled_ids(behind, texts) if has_special_text else self._ids(behind)
        return ids if ended else [*end, *ids]

    def turns(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, learned: Sequence[int]
    ) -> tuple[list[int], list[bool]]:
        """Token ids from where the first learned turn begins, as they follow `prompt`, and which of them are learned.

        A learned turn is the difference between the conversation with it and the prompt before it: its text, tokenised
        by itself as `reply` does, calls of tools, and its end of turn. The last message is a learned one; what the
        template writes after its end of turn is left out.

        Args:
            learned: positions of the assistant's messages that are learned, ascending.
        Raises:
            DataError: the template refuses the messages, or does not write them in order.
        """
        texts = [str(message.get("content") or "") for message in messages]
        marked = _marked(messages, texts)
        whole = self._render(marked, tools, generation=False)
        ids: list[int] = []
        mask: list[bool] = []
        position = self._turn_start(whole, marked, tools, learned[0])
        for number, next_number in zip(learned, [*learned[1:], None], strict=True):
            next_start = len(whole) if next_number is None else self._turn_start(whole, marked, tools, next_number)
            turn, after = self._turn(whole[position:next_start], texts, number)
            ids += turn
            mask += [True] * len(turn)
            if next_number is not None:
                ids += after
                mask += [False] * len(after)
            position = next_start
        return ids, mask

    def _turn_start(
        self,
        whole: str,
        marked: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        number: int,
    ) -> int:
        """Where a turn of the assistant begins in the rendered conversation: where the prompt before it ends."""
        before = self._render(marked[:number], tools) if number else ""
        if before and whole.startswith(before):
            return len(before)
        # The template writes earlier turns otherwise when others follow: then the turn begins with its text.
        mark_start = whole.find(MARK.format(number)) if marked[number]["content"] else -1
        if mark_start < 0:
            raise DataError(
                f"the chat template does not write message {number + 1} where its prompt ends; use "
                "algorithm.assistant_turns=last, or model.chat_template=false"
            )
        return mark_start

    def _turn(self, rendered: str, texts: Sequence[str], number: int) -> tuple[list[int], list[int]]:
        """(ids of a turn with its end, ids up to the next learned turn) of what is rendered from its beginning on."""
        before, mark, rest = rendered.partition(MARK.format(number))
        text = texts[number]
        if not mark:  # a message without text, or whose text the template drops: Llama 3.1 does so beside a call
            before, text, rest = "", "", rendered
        # A space that the template puts before the text belongs to its first word.
        turn = [*self._ids(before)] if before.strip() else []
        said = text if before.strip() else before + text
        turn += self._ids(said, as_text=True)
        tail = self._filled_ids(rest, texts)
        end = self.end_of_turn[-1]
        if end not in tail:  # the template ends no turn
            return [*turn, *self.end_of_turn], tail
        ends = tail.index(end) + 1
        return [*turn, *tail[:ends]], tail[ends:]

    def _filled_ids(self, rendered: str, texts: Sequence[str]) -> list[int]:
        """Token ids of rendered text whose marks stand for messages; these are nothing but text."""
        strips = self._strips
        ids: list[int] = []
        waiting = ""  # template and messages without special text are tokenised together, as `prompt` does
        for number, text in enumerate(texts):
            before, mark, rest = rendered.partition(MARK.format(number))
            if not mark:
                continue
            said = text.strip() if strips else text
            waiting += before
            if any(special in said for special in self._special_texts):
                ids += [*self._ids(waiting), *self._ids(said, as_text=True)]
                waiting = ""
            else:
                waiting += said
            rendered = rest
        return [*ids, *self._ids(waiting + rendered)]

    def _prompt_with_special_text(
        self, messages: Sequence[Message], texts: Sequence[str], tools: Sequence[Mapping[str, Any]] | None
    ) -> list[int]:
        """The template's pieces as they are, and between them the messages as nothing but text."""
        strips = self._strips
        marked = [{**message, "content": MARK.format(k)} for k, message in enumerate(messages)]
        remaining, ids = self._render(marked, tools), []
        for number, text in enumerate(texts):
            before, mark, remaining = remaining.partition(MARK.format(number))
            if not mark:
                raise DataError(
                    f"message {number + 1} contains the text of a special token, and the chat template does not write "
                    "messages in order; remove that text, or use model.chat_template=false"
                )
            ids += [*self._ids(before), *self._ids(text.strip() if strips else text, as_text=True)]
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
                list(messages), tools=list(tools) if tools else None, tokenize=False, add_generation_prompt=generation
            )
        except Exception as error:  # a template raises whatever its author wrote
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise DataError(
                f"the chat template of the tokenizer refuses these messages ({roles}): {error}; change the roles, or "
                "use model.chat_template=false"
            ) from error
        return str(rendered)

    def _ids(self, text: str, *, as_text: bool = False) -> list[int]:
        encoded = self.tokenizer(text, add_special_tokens=False, split_special_tokens=as_text)
        return list(encoded["input_ids"])

    def _end_of_turn(self) -> list[int]:
        """What the template writes after a reply, up to the first special token."""
        messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": MARK.format(0)}]
        tail = self._ids(self._render(messages, None, generation=False).partition(MARK.format(0))[2])
        for position, token in enumerate(tail):
            if token in self._special_ids:
                return tail[: position + 1]
        if self.tokenizer.eos_token_id is None:
            raise DataError("the chat template ends no turn, and the tokenizer has no EOS token: no reply could end")
        return [self.tokenizer.eos_token_id]

    @cached_property
    def _strips(self) -> bool:
        """Whether the template removes the space around a message."""
        spaced = [{"role": "user", "content": f" {MARK.format(0)} "}]
        return f" {MARK.format(0)} " not in self._render(spaced, None)


def _marked(messages: Sequence[Message], texts: Sequence[str], first: int = 0) -> list[dict[str, Any]]:
    """The messages with numbered marks in place of their texts.

    An empty message stays empty: a mark would make the template write what it otherwise does not.
    """
    contents = [MARK.format(number) if text else "" for number, text in enumerate(texts, start=first)]
    return [{**message, "content": content} for message, content in zip(messages, contents, strict=True)]
