"""Text to token rows and back: one place decides spaces, BOS, EOS and truncation.

A row is a prompt and a reply, tokenised separately and laid end to end, so the boundary is exact. EOS belongs to the
reply; a reply that had to be cut has none, and is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.messages import Message
from rlhf_lab.core.transfer import to_device
from rlhf_lab.data.transcript import render_prompt, reply_message, reply_text
from rlhf_lab.models.chat import ChatTemplate
from rlhf_lab.models.tool_calls import calls_of

Row = tuple[list[int], list[int]]
"""Token ids of a prompt and of the reply to it."""


@dataclass
class Encoder:
    """Wraps a Hugging Face tokenizer.

    Args:
        to_conversation: transcript → (messages, tools); set it to format prompts with the chat template.
        more_stop_ids: further tokens that end a reply, such as those of the model's generation_config.

    Attributes:
        eos_id: the token that ends a reply in training data: of the chat template's turns where it is used.
        stop_ids: every token that ends a sampled reply, `eos_id` first.
        counts: how often each event occurred while encoding: rows, truncated replies, truncated prompts.
    """

    tokenizer: Any
    to_conversation: Callable[[str], tuple[list[Message], list[dict[str, Any]]]] | None = None
    more_stop_ids: tuple[int, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.tokenizer.eos_token_id is None:
            raise ValueError("the tokenizer has no EOS token; without one no reply can end")
        self.chat = ChatTemplate(self.tokenizer, self.more_stop_ids) if self.to_conversation else None
        own_stop_ids = (self.tokenizer.eos_token_id, *self.more_stop_ids)
        self.stop_ids: tuple[int, ...] = self.chat.stop_ids if self.chat else tuple(dict.fromkeys(own_stop_ids))
        self.eos_id: int = self.stop_ids[0]
        # BOS goes first only where the tokenizer itself puts it there: some define a BOS and never use it.
        bos = self.tokenizer.bos_token_id
        ids_of_empty_text = self.tokenizer("")["input_ids"]
        adds_bos = bos is not None and ids_of_empty_text[:1] == [bos] and bos != self.eos_id
        self._prefix = [bos] if adds_bos else []

    @property
    def takes_tools(self) -> bool:
        """Whether the model has a chat template that takes tools and writes calls in a form that is read."""
        return self.chat is not None and self.chat.call_format is not None

    def _count(self, event: str) -> None:
        self.counts[event] = self.counts.get(event, 0) + 1

    def _ids(self, text: str) -> list[int]:
        """Token ids; "<|endoftext|>" in a data row is text."""
        return self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]

    def prompt(self, text: str, max_tokens: int | None = None) -> list[int]:
        """Token ids of a prompt, BOS first where the model has one. Too long a prompt loses its beginning."""
        if text and self.chat and self.to_conversation:  # plain text to imitate has no prompt
            ids = self.chat.prompt(*self.to_conversation(text))
            # Many templates write BOS themselves; it must not stand there twice.
            prefix = [] if ids[:1] == self._prefix else self._prefix
        else:
            ids = self._ids(text)
            prefix = self._prefix
        if max_tokens is not None and len(prefix) + len(ids) > max_tokens:
            # The end of a conversation, with the question to answer, matters more than its beginning.
            self._count("prompts cut at the beginning")
            ids = ids[len(prefix) + len(ids) - max_tokens :]
        return [*prefix, *ids]

    def conversation(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), max_tokens: int | None = None
    ) -> list[int]:
        """Token ids of a conversation in which the assistant has spoken, up to where its next reply begins.

        In a plain transcript its turns end with EOS, as the replies that it was trained on and samples do; `prompt`
        takes the turns of a prompt for text like any other. Too long a conversation loses its beginning.
        """
        spoken = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        if self.chat or not spoken:
            return self.prompt(render_prompt(messages, tools), max_tokens)
        ids = self.prompt(render_prompt(messages[: spoken[0]], tools))
        for number, next_number in zip(spoken, [*spoken[1:], len(messages)], strict=True):
            ids += self.response(reply_text(messages[number]))
            ids += self.continuation(render_prompt(messages[number + 1 : next_number]))
        if max_tokens is not None and len(ids) > max_tokens:
            self._count("prompts cut at the beginning")
            ids = [*self._prefix, *ids[len(ids) + len(self._prefix) - max_tokens :]]
        return ids

    def response(self, text: str) -> list[int]:
        """Token ids of a reply with EOS."""
        if self.chat:
            message = reply_message(text)
            if "tool_calls" in message:  # in the words of the template, not of our transcripts
                return self.chat.turns([{"role": "user", "content": "hi"}, message], None, [1])[0]
            return self.chat.reply(text)
        # The plain transcript ends in "Assistant:", so the space belongs to the reply's first word.
        return [*self._ids(f" {text}"), self.eos_id]

    def continuation(self, text: str) -> list[int]:
        """Token ids of plain text that goes on behind a reply, such as the user's next turn."""
        return self._ids(text)

    def row(self, prompt: str, response: str, max_length: int) -> Row:
        """A prompt and a reply in at most `max_length` tokens; at least a quarter of them are left to the reply."""
        return self.fit(prompt, self.response(response), max_length)

    def fit(self, prompt: str, reply_ids: list[int], max_length: int) -> Row:
        """`row` of a reply that is tokens already."""
        self._count("rows")
        reserved_for_reply = min(len(reply_ids), max(max_length // 4, 1))
        prompt_ids = self.prompt(prompt, max_length - reserved_for_reply)
        room = max_length - len(prompt_ids)
        if len(reply_ids) > room:
            self._count("replies cut at the end (no EOS)")
        return prompt_ids, reply_ids[:room]

    def next_prompt(self, messages: Sequence[Message], *, ended: bool) -> list[int]:
        """Token ids that follow a sampled reply: further messages, up to where the next reply begins.

        What the model has seen so far is never rendered again: these tokens are laid behind it.

        Args:
            ended: whether the reply ended with a stop token, or still lacks the end of its turn.
        """
        if self.chat:
            return self.chat.next_prompt(messages, ended=ended)
        end = [] if ended else [self.eos_id]
        return [*end, *self._ids(render_prompt(messages))]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Token ids as text, special tokens left out."""
        return str(self.tokenizer.decode(token_ids, skip_special_tokens=True))

    def token_ids_of(self, texts: Sequence[str], setting: str) -> list[int]:
        """The one token of each text. Raises ConfigError, with the setting, for a text of several tokens."""
        ids = [self._ids(text) for text in texts]
        for text, token_ids in zip(texts, ids, strict=True):
            if len(token_ids) != 1:
                raise ConfigError(
                    f"{setting}: {text!r} is {len(token_ids)} tokens of this tokenizer; each text must be one token"
                )
        return [token_ids[0] for token_ids in ids]

    def text(self, reply_ids: Sequence[int], stop: Sequence[str] = ()) -> str:
        """The reply as text, without what ends it and trailing space; with a chat template it keeps its indentation.

        Args:
            stop: texts that end a reply; the first of them, and what follows it, is cut off.
        """
        text = self._decoded(reply_ids, stop, skip_special_tokens=True)
        # Without a template the first word has the space after "Assistant:", and indentation cannot be told from it.
        return text.rstrip() if self.chat else text.strip()

    def message(self, reply_ids: Sequence[int], stop: Sequence[str] = ()) -> Message:
        """The reply as the assistant's message: `text`, and the tools that it calls, as they are written in prompts.

        Args:
            stop: as of `text`.
        """
        if self.chat:
            # what marks a call may be a special token
            message = self.chat.message(self._decoded(reply_ids, stop, skip_special_tokens=False))
        else:
            message = reply_message(self._decoded(reply_ids, stop, skip_special_tokens=True))
            message["content"] = message["content"].strip()
        calls = calls_of(message.get("tool_calls", []))
        if not calls:
            return Message(role="assistant", content=self.text(reply_ids, stop))
        return Message(role="assistant", content=message["content"], tool_calls=calls)

    def _decoded(self, reply_ids: Sequence[int], stop: Sequence[str], *, skip_special_tokens: bool) -> str:
        """A reply as text, without the tokens that end it, up to the first of the texts that end it."""
        without_end = [token for token in reply_ids if token not in self.stop_ids]
        text: str = self.tokenizer.decode(without_end, skip_special_tokens=skip_special_tokens)
        return text[: min((place for end in stop if (place := text.find(end)) >= 0), default=len(text))]


@dataclass(frozen=True)
class TokenBatch:
    """Right-padded rows. Masks come from lengths, never from the pad id.

    Lengths are known to the host, and their tensors are made from them at first use: nothing has to be read back from a
    GPU, which would have the host wait until the GPU has done everything that was asked of it before. A batch that was
    used in inference mode keeps tensors that autograd refuses: make another one.

    Attributes:
        tokens_BT: token ids, 0 beyond each row's length.
        prompt_lengths, lengths: tokens of the prompt, and of prompt and reply, of each row.
        prompt_of: which distinct prompt each row starts with; None when no two rows share one.
        learned_BT: (B, T) on the host, True where a token is learned; None when every token of every reply is.
    """

    tokens_BT: torch.Tensor
    prompt_lengths: Sequence[int]
    lengths: Sequence[int]
    prompt_of: Sequence[int] | None = None
    learned_BT: torch.Tensor | None = None

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[Row],
        device: torch.device | str = "cpu",
        masks: Sequence[Sequence[bool]] | None = None,
    ) -> TokenBatch:
        """Pad rows to the longest of them and number their distinct prompts in order of first appearance.

        Args:
            masks: per row, a value per token of its reply: True where the token is learned, False where it is only
                read, such as the result of a tool. None learns every token of every reply.
        """
        lengths = [len(prompt) + len(reply) for prompt, reply in rows]
        width = max(lengths)
        padded = [
            [*prompt, *reply, *([0] * (width - length))] for (prompt, reply), length in zip(rows, lengths, strict=True)
        ]
        number_of_prompt: dict[tuple[int, ...], int] = {}
        prompt_of = [number_of_prompt.setdefault(tuple(prompt), len(number_of_prompt)) for prompt, _ in rows]
        # An empty prompt has no last token whose hidden state could predict the reply's first one.
        shared = len(number_of_prompt) < len(rows) and all(prompt for prompt, _ in rows)
        return cls(
            tokens_BT=to_device(padded, device),
            prompt_lengths=[len(prompt) for prompt, _ in rows],
            lengths=lengths,
            prompt_of=prompt_of if shared else None,
            learned_BT=None if masks is None else _learned_mask(rows, masks, width),
        )

    @cached_property
    def prompt_len_B(self) -> torch.Tensor:
        return to_device(self.prompt_lengths, self.tokens_BT.device)

    @cached_property
    def length_B(self) -> torch.Tensor:
        return to_device(self.lengths, self.tokens_BT.device)

    @cached_property
    def prompt_of_B(self) -> torch.Tensor | None:
        return None if self.prompt_of is None else to_device(self.prompt_of, self.tokens_BT.device)

    @cached_property
    def first_row_P(self) -> torch.Tensor | None:
        """A row that starts with each distinct prompt; None when no two rows share one."""
        if self.prompt_of is None:
            return None
        first_rows = [self.prompt_of.index(number) for number in range(self.prompts)]
        return to_device(first_rows, self.tokens_BT.device)

    @property
    def prompts(self) -> int:
        """Distinct prompts, or rows when none is shared."""
        return len(self.lengths) if self.prompt_of is None else max(self.prompt_of) + 1

    @property
    def prompts_width(self) -> int:
        """Tokens of the longest prompt."""
        return max(self.prompt_lengths)

    @property
    def replies_width(self) -> int:
        """Tokens of the longest reply."""
        return max(length - prompt for prompt, length in zip(self.prompt_lengths, self.lengths, strict=True))

    def targets(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows and columns (each (N,)) of the reply tokens that are learned: row-major, column ≥ 1."""
        return self._targets

    @cached_property
    def _targets(self) -> tuple[torch.Tensor, torch.Tensor]:
        column_T = torch.arange(self.tokens_BT.shape[1])
        # nothing predicts column 0, the first token of an empty prompt's row
        first_B1 = torch.tensor(self.prompt_lengths)[:, None].clamp(min=1)
        length_B1 = torch.tensor(self.lengths)[:, None]
        mask_BT = (column_T >= first_B1) & (column_T < length_B1)
        if self.learned_BT is not None:
            mask_BT &= self.learned_BT
        row_N, column_N = mask_BT.nonzero(as_tuple=True)
        device = self.tokens_BT.device
        return to_device(row_N, device), to_device(column_N, device)


def _learned_mask(rows: Sequence[Row], masks: Sequence[Sequence[bool]], width: int) -> torch.Tensor:
    """(B, width): the rows' masks over their replies, False over prompts and padding."""
    learned = []
    for number, ((prompt, reply), mask) in enumerate(zip(rows, masks, strict=True)):
        if len(mask) != len(reply):
            raise ValueError(f"row {number}: a mask of {len(mask)} values for a reply of {len(reply)} tokens")
        padding = width - len(prompt) - len(reply)
        learned.append([*([False] * len(prompt)), *map(bool, mask), *([False] * padding)])
    return torch.tensor(learned)


def length_parts(rows: Sequence[Row], max_tokens: int) -> list[list[int]]:
    """Indices of rows in batches of at most `max_tokens` padded tokens, in order of length, longest first."""
    lengths = [len(prompt) + len(reply) for prompt, reply in rows]
    remaining = sorted(range(len(rows)), key=lambda i: -lengths[i])
    batches = []
    while remaining:
        longest = lengths[remaining[0]]
        size = max(1, max_tokens // longest)  # a row longer than max_tokens makes a batch of its own
        batches.append(remaining[:size])
        remaining = remaining[size:]
    return batches
