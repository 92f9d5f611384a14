"""Messages as a model's chat template writes them: prompts, replies, and what ends a turn.

The template is text with the model's special tokens in it. Two things must not happen on the way to token ids: a user
who types "<|im_end|>" must not end a turn, and a reply that begins with spaces (code) must keep them. So a reply is
never part of the rendered text: it follows the rendered prompt as tokens of its own, and the text of a message that
looks like a special token is tokenised as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.types import Message

MARK = "\ue000{}\ue001"
"""Stands for the text of a message while a template is rendered: characters that no template changes or strips."""


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

    def reply(self, text: str) -> list[int]:
        """Token ids of a reply as it follows `prompt`, the end of its turn included. Spaces stay as they are."""
        return [*self._ids(text, as_text=True), *self.end_of_turn]

    def _prompt_with_special_text(
        self, messages: Sequence[Message], texts: Sequence[str], tools: Sequence[Mapping[str, Any]] | None
    ) -> list[int]:
        """The template's pieces as they are, and between them the messages as nothing but text."""
        strips = self._strips()
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

    def _strips(self) -> bool:
        """Whether the template removes the space around a message."""
        spaced = [{"role": "user", "content": f" {MARK.format(0)} "}]
        return f" {MARK.format(0)} " not in self._render(spaced, None)
