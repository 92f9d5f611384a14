"""Conversion of text to token rows and back: this module alone decides spaces, BOS, EOS and truncation.

A row is a prompt and a response. Both are tokenised separately and concatenated, so the boundary is exact. EOS is part
of the response. A truncated response has no EOS, and is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.messages import Message
from rlhf_lab.core.text import well_formed
from rlhf_lab.core.transfer import to_device
from rlhf_lab.data.transcript import render_prompt, response_message, response_text
from rlhf_lab.models.chat import ChatTemplate
from rlhf_lab.models.tool_calls import calls_of

Row = tuple[list[int], list[int]]
"""Token ids of a prompt and of its response."""


@dataclass
class Encoder:
    """Wrapper of a Hugging Face tokenizer.

    Attributes:
        to_conversation: function from a transcript to (messages, tools). If set, prompts use the chat template.
        more_stop_ids: additional tokens that end a response, such as those of the model's generation_config.
        eos_id: token that ends a response in training data; with a chat template, the one that ends its turns.
        stop_ids: all tokens that end a sampled response, `eos_id` first.
        counts: number of occurrences of each encoding event: rows, truncated responses, truncated prompts.
    """

    tokenizer: Any
    to_conversation: Callable[[str], tuple[list[Message], list[dict[str, Any]]]] | None = None
    more_stop_ids: tuple[int, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.tokenizer.eos_token_id is None:
            raise ValueError("the tokenizer has no EOS token, so no response can end; set tokenizer.eos_token")
        self.chat = ChatTemplate(self.tokenizer, self.more_stop_ids) if self.to_conversation else None
        own_stop_ids = tuple(dict.fromkeys((self.tokenizer.eos_token_id, *self.more_stop_ids)))
        self.stop_ids: tuple[int, ...] = self.chat.stop_ids if self.chat else own_stop_ids
        self.eos_id: int = self.stop_ids[0]
        # BOS is added only if the tokenizer itself adds it: some define a BOS and never use it.
        bos = self.tokenizer.bos_token_id
        adds_bos = self.tokenizer("")["input_ids"][:1] == [bos] and bos not in (None, self.eos_id)
        self._prefix = [bos] if adds_bos else []

    def uncounted(self) -> Encoder:
        """Return a copy of this encoder whose counts start at zero, to encode texts that are not data of the run."""
        return replace(self, counts={})

    @property
    def takes_tools(self) -> bool:
        """True if the model's chat template supports tools and writes tool calls in a known form."""
        return self.chat is not None and self.chat.call_format is not None

    def _count(self, event: str) -> None:
        self.counts[event] = self.counts.get(event, 0) + 1

    def _ids(self, text: str) -> list[int]:
        """Return token ids; the text "<|endoftext|>" in a data row is not a special token."""
        return self.tokenizer(well_formed(text), add_special_tokens=False, split_special_tokens=True)["input_ids"]

    def prompt(self, text: str, max_tokens: int | None = None) -> list[int]:
        """Return token ids of a prompt, with BOS if the model uses it. A prompt that is too long loses its start."""
        if text and self.chat and self.to_conversation:  # text for plain language modelling has an empty prompt
            ids = self.chat.prompt(*self.to_conversation(text))
            prefix = self._prefix
            bos = self.tokenizer.bos_token_id
            # Many templates write BOS themselves: it must not appear twice, and a cut must not remove it. A token that
            # the template repeats and the tokenizer does not add is no BOS but the start of every turn.
            if ids[:1] == [bos] and (prefix or bos not in ids[1:]):
                prefix, ids = [bos], ids[1:]
        else:
            ids = self._ids(text)
            prefix = self._prefix
        if max_tokens is not None and len(prefix) + len(ids) > max_tokens:
            # The end of a conversation contains the question to answer, so the start is cut.
            self._count("prompts cut at the beginning")
            ids = ids[len(prefix) + len(ids) - max_tokens :]
        return [*prefix, *ids]

    def conversation(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), max_tokens: int | None = None
    ) -> list[int]:
        """Return the token ids of a conversation with earlier assistant turns, up to the start of its next response.

        Without a chat template, assistant turns end with EOS, as the responses in training and sampling do. `prompt`
        instead treats the turns within a prompt as ordinary text. A conversation that is too long loses its start.
        """
        # positions of the assistant's messages: the text between them is encoded separately, as in training
        spoken = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        if self.chat or not spoken:
            return self.prompt(render_prompt(messages, tools), max_tokens)
        ids = self.prompt(render_prompt(messages[: spoken[0]], tools))
        for number, next_number in zip(spoken, [*spoken[1:], len(messages)], strict=True):
            ids += self.response(response_text(messages[number]))
            ids += self.continuation(render_prompt(messages[number + 1 : next_number]))
        if max_tokens is not None and len(ids) > max_tokens:
            self._count("prompts cut at the beginning")
            kept_tokens = max_tokens - len(self._prefix)
            ids = [*self._prefix, *ids[len(ids) - kept_tokens :]]
        return ids

    def response(self, text: str) -> list[int]:
        """Return the token ids of a response, with EOS."""
        if self.chat:
            message = response_message(text)
            if "tool_calls" in message:  # written in the template's form instead of that of our transcripts
                return self.chat.turns([{"role": "user", "content": "hi"}, message], None, [1])[0]
            return self.chat.response(text)
        # Without a template the prompt ends in "Assistant:", so the space belongs to the response's first word.
        return [*self._ids(f" {text}"), self.eos_id]

    def continuation(self, text: str) -> list[int]:
        """Return the token ids of text that follows a response, such as the user's next turn."""
        return self._ids(text)

    def row(self, prompt: str, response: str, max_length: int) -> Row:
        """Encode a prompt and a response in `max_length` tokens at most; a quarter is reserved for the response."""
        return self.fit(prompt, self.response(response), max_length)

    def fit(self, prompt: str, response_ids: list[int], max_length: int, longest: int = 0) -> Row:
        """Do the same as `row` for a response that is already tokenised.

        Args:
            longest: number of tokens of the longest response to this prompt, for which the prompt is cut.
        """
        self._count("rows")
        # a long prompt must not leave a training row without a response to learn
        reserved_for_response = min(max(len(response_ids), longest), max(max_length // 4, 1))
        prompt_ids = self.prompt(prompt, max_length - reserved_for_response)
        capacity = max_length - len(prompt_ids)
        if len(response_ids) > capacity:
            self._count("replies cut at the end (no EOS)")
        return prompt_ids, response_ids[:capacity]

    def next_prompt(self, messages: Sequence[Message], *, finished: bool) -> list[int]:
        """Return the token ids after a sampled response: further messages, up to the start of the next response.

        The caller appends these ids to the tokens that the model has already seen, which are never rendered again.

        Args:
            finished: True if the response ended with a stop token; otherwise the end of its turn is added.
        """
        if self.chat:
            return self.chat.next_prompt(messages, finished=finished)
        end = [] if finished else [self.eos_id]
        return [*end, *self._ids(render_prompt(messages))]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return token ids as text, without special tokens."""
        return str(self.tokenizer.decode(token_ids, skip_special_tokens=True))

    def token_ids_of(self, texts: Sequence[str], setting: str) -> list[int]:
        """Return the single token of each text. Raises ConfigError for a text of several tokens, naming `setting`."""
        ids = [self._ids(text) for text in texts]
        for text, token_ids in zip(texts, ids, strict=True):
            if len(token_ids) != 1:
                raise ConfigError(
                    f"{setting}: {text!r} is {len(token_ids)} tokens in this tokenizer; use texts of one token each"
                )
        return [token_ids[0] for token_ids in ids]

    def text(self, response_ids: Sequence[int], stop: Sequence[str] = ()) -> str:
        """Return the response as text, without its end and trailing space; with a chat template it keeps indentation.

        Args:
            stop: texts that end a response; the first one found is removed with everything after it.
        """
        text = self._decoded(response_ids, stop, skip_special_tokens=True)
        # Without a template a space follows "Assistant:", and cannot be distinguished from indentation.
        return text.rstrip() if self.chat else text.strip()

    def message(self, response_ids: Sequence[int], stop: Sequence[str] = ()) -> Message:
        """Return the response as the assistant's message, with its text and its tool calls as prompts write them."""
        if self.chat:
            # markers of a tool call may be special tokens, so those are not skipped
            message = self.chat.message(self._decoded(response_ids, stop, skip_special_tokens=False))
        else:
            message = response_message(self._decoded(response_ids, stop, skip_special_tokens=True))
            message["content"] = message["content"].strip()
        calls = calls_of(message.get("tool_calls", []))
        if not calls:
            return Message(role="assistant", content=self.text(response_ids, stop))
        return Message(role="assistant", content=message["content"], tool_calls=calls)

    def _decoded(self, response_ids: Sequence[int], stop: Sequence[str], *, skip_special_tokens: bool) -> str:
        """Return a response as text up to the first stop text, without the tokens that end it."""
        without_end = [token for token in response_ids if token not in self.stop_ids]
        text: str = self.tokenizer.decode(without_end, skip_special_tokens=skip_special_tokens)
        ends = [position for end in stop if (position := text.find(end)) >= 0]
        return text[: min(ends, default=len(text))]


@dataclass(frozen=True)
class TokenBatch:
    """Right-padded rows. Masks are computed from lengths, never from the pad id.

    Lengths are known to the host, and their tensors are created from them at first use. Nothing is read back from a
    GPU, because that would make the host wait until the GPU has finished all queued work. A batch that was used in
    inference mode keeps tensors that autograd rejects: create another one for training.

    Attributes:
        tokens_BT: token ids, 0 after the end of each row.
        prompt_lengths, lengths: number of tokens of each row's prompt, and of its prompt and response.
        prompt_of: index of the distinct prompt of each row; None if no two rows have the same prompt.
        learned_BT: (B, T) on the host, True for each token in the loss; None if all response tokens are.
    """

    tokens_BT: torch.Tensor
    prompt_lengths: Sequence[int]
    lengths: Sequence[int]
    prompt_of: Sequence[int] | None = None
    learned_BT: torch.Tensor | None = None

    @classmethod
    def from_rows(
        cls, rows: Sequence[Row], device: torch.device | str = "cpu", masks: Sequence[Sequence[bool]] | None = None
    ) -> TokenBatch:
        """Pad rows to the maximum length and number their distinct prompts in order of first appearance.

        Args:
            masks: per row, one value per response token: True for a token in the loss, False for one that is only
                read, such as the result of a tool. None puts every response token into the loss.
        """
        lengths = [len(prompt) + len(response) for prompt, response in rows]
        width = max(lengths)
        padded = [
            [*prompt, *response, *[0] * (width - length)]
            for (prompt, response), length in zip(rows, lengths, strict=True)
        ]
        index_of_prompt: dict[tuple[int, ...], int] = {}
        prompt_of = [index_of_prompt.setdefault(tuple(prompt), len(index_of_prompt)) for prompt, _ in rows]
        # An empty prompt has no last token whose hidden state could predict the response's first token.
        has_all_prompts = all(prompt for prompt, _ in rows)
        shared = len(index_of_prompt) < len(rows) and has_all_prompts
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
        """One row for each distinct prompt; None if no two rows have the same prompt."""
        if self.prompt_of is None:
            return None
        return to_device([self.prompt_of.index(number) for number in range(self.prompts)], self.tokens_BT.device)

    @property
    def prompts(self) -> int:
        """Number of distinct prompts; the number of rows if no two rows have the same prompt."""
        return len(self.lengths) if self.prompt_of is None else max(self.prompt_of) + 1

    @property
    def prompts_width(self) -> int:
        """Number of tokens of the longest prompt."""
        return max(self.prompt_lengths)

    @property
    def responses_width(self) -> int:
        """Number of tokens of the longest response."""
        return max(length - prompt for prompt, length in zip(self.prompt_lengths, self.lengths, strict=True))

    def targets(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return rows and columns, (N,) each, of the response tokens in the loss: row-major, column ≥ 1."""
        return self._targets

    @cached_property
    def _targets(self) -> tuple[torch.Tensor, torch.Tensor]:
        column_T = torch.arange(self.tokens_BT.shape[1])
        # the first token of a row with an empty prompt (column 0) has no predecessor that predicts it
        first_B1 = torch.tensor(self.prompt_lengths)[:, None].clamp(min=1)
        length_B1 = torch.tensor(self.lengths)[:, None]
        mask_BT = (column_T >= first_B1) & (column_T < length_B1)
        if self.learned_BT is not None:
            mask_BT &= self.learned_BT
        row_N, column_N = mask_BT.nonzero(as_tuple=True)
        device = self.tokens_BT.device
        return to_device(row_N, device), to_device(column_N, device)


def _learned_mask(rows: Sequence[Row], masks: Sequence[Sequence[bool]], width: int) -> torch.Tensor:
    """Return the mask of tokens in the loss, (B, width): `masks` at the tokens of responses, False elsewhere."""
    learned = []
    for index, ((prompt, response), mask) in enumerate(zip(rows, masks, strict=True)):
        if len(mask) != len(response):
            raise ValueError(
                f"row {index}: the mask has {len(mask)} values but the response has {len(response)} tokens; both must "
                "have the same length"
            )
        padding = width - len(prompt) - len(response)
        learned.append([*[False] * len(prompt), *map(bool, mask), *[False] * padding])
    return torch.tensor(learned)


def length_parts(rows: Sequence[Row], max_tokens: int) -> list[list[int]]:
    """Group row indices into batches of at most `max_tokens` padded tokens, in descending order of length."""
    lengths = [len(prompt) + len(response) for prompt, response in rows]
    remaining = sorted(range(len(rows)), key=lambda i: -lengths[i])
    batches = []
    while remaining:
        size = max(1, max_tokens // lengths[remaining[0]])  # a row longer than max_tokens makes a batch of its own
        batches.append(remaining[:size])
        remaining = remaining[size:]
    return batches
