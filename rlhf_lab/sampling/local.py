"""The built-in sampler: groups of responses per prompt, with exact log-probabilities.

The noise of sampling is a matrix of uniform random numbers, with one row for each turn of each response. A sample
therefore depends neither on the other responses of its batch nor on the length of their turns.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_lab.core import ranks
from rlhf_lab.core.errors import ConfigError, NumericError
from rlhf_lab.core.packs import load
from rlhf_lab.models.by_block import gather_context_of, gather_while_reading
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.models.families import family_of
from rlhf_lab.models.sharded import at_hand, within
from rlhf_lab.models.truncation import Truncation
from rlhf_lab.sampling.cache import StepCost
from rlhf_lab.sampling.decoder import Decoder
from rlhf_lab.sampling.decoding import Decoding
from rlhf_lab.sampling.settings import Local
from rlhf_lab.sampling.turns import NextTurn, OneTurn, RowTokens, SeveralTurns, new_token_limit
from rlhf_lab.training.run import seed_for

STOP_MARGIN = 8  # extra tokens decoded before a possible stop text, so that decoding starts at a complete character


@dataclass(frozen=True)
class Samples:
    """G rows for each of B prompts, in prompt order.

    Attributes:
        rows_BG: tokens that each row added to its prompt.
    """

    prompts: list[list[int]]
    rows_BG: list[list[RowTokens]]

    @classmethod
    def gathered(cls, prompts: Sequence[list[int]], group: int, own_rows: Mapping[int, RowTokens]) -> Samples:
        """Combine the rows of every process. All processes must call it.

        Args:
            own_rows: rows of this process by row index (prompt index · group + sample index).
        """
        rows: dict[int, RowTokens] = {}
        for process_rows in ranks.exchange(own_rows):
            rows.update(process_rows)
        return cls(list(prompts), [[rows[i * group + g] for g in range(group)] for i in range(len(prompts))])

    @property
    def responses_BG(self) -> list[list[list[int]]]:
        """Token ids of each response, including its end token."""
        return [[row.token_ids for row in rows] for rows in self.rows_BG]

    @property
    def logps_BG(self) -> list[list[list[float]]]:
        """Log-probability of each sampled token under the sampled distribution, nats."""
        return [[row.logps for row in rows] for rows in self.rows_BG]

    @property
    def finished_BG(self) -> list[list[bool]]:
        """False for each row whose last turn was truncated."""
        return [[row.finished for row in rows] for rows in self.rows_BG]


def own_prompts(prompts: Sequence[list[int]]) -> list[int]:
    """Return the indices of the prompts that this process samples, shortest first.

    Prompts of similar length share a batch, and short and long prompts are spread over the processes.
    """
    by_length = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    return ranks.shard(by_length)


def longest_row(prompts: Sequence[list[int]], opened: Sequence[int], max_tokens_left: int) -> int:
    """Return the maximum number of tokens of a row with its prompt; see `new_token_limit`."""
    pairs = zip(prompts, opened, strict=True)
    return max(len(prompt) + new_token_limit(max_tokens_left, tokens) for prompt, tokens in pairs)


class LocalSampler:
    """Sampler for a Hugging Face causal LM. It reads the weights at each call, so it follows training.

    Attributes:
        exact: True if the log-probabilities equal those of a float32 forward pass up to rounding.

    Args:
        stop_ids: tokens that end a turn.
        decode: function from token ids to text, for turns that end with a stop text (`rollout.stop`).
    """

    def __init__(
        self,
        settings: Local,
        stop_ids: Sequence[int],
        *,
        allowed: Sequence[int] = (),
        decode: Callable[[list[int]], str] | None = None,
    ):
        self.settings = settings
        self.stop_ids = tuple(stop_ids)
        self.exact = settings.dtype != "bfloat16"
        self.truncation = Truncation(tuple(allowed), settings.top_k, settings.top_p)
        self.decode = decode

    @torch.no_grad()
    def sample(
        self,
        model: nn.Module,
        prompts: Sequence[list[int]],
        group: int,
        seed: int | Sequence[int],
        *,
        temperature: float | None = None,
        next_turn: NextTurn | None = None,
        max_turns: int = 1,
        opened: Sequence[int] | None = None,
    ) -> Samples:
        """Sample `group` rows for each prompt. The same arguments give the same rows.

        Args:
            seed: one seed for all rows, or one per prompt. With one per prompt, the rows of a prompt do not depend on
                the other prompts.
            temperature: replaces `rollout.temperature`; 0 is greedy.
            next_turn: returns the tokens that follow a turn of a row (prompt index · group + sample index). It is
                called in the process that samples the row. None makes every row a single response.
            opened: for each prompt, the number of its last tokens that belong to the first turn of its rows and count
                as tokens of that turn; None is 0. A row gets at least one new token.
        """
        temperature = self.settings.temperature if temperature is None else temperature
        if not prompts:
            return Samples([], [])
        slots = self.settings.max_new_tokens
        rows = len(prompts) * group
        noise = Noise(seed, group, slots) if isinstance(seed, Sequence) else Noise([seed], rows, slots)
        order = own_prompts(prompts)
        opened = opened or [0] * len(prompts)
        own_rows: dict[int, RowTokens] = {}
        # a process without own prompts must enter too: it takes part in the all-gather of a sharded model
        with at_hand([model]), gather_while_reading(model) as readable_model:
            if order:
                own_rows = self._sample_rows(
                    readable_model, prompts, order, group, noise, temperature, next_turn, max_turns, opened
                )
        return Samples.gathered(prompts, group, own_rows)

    def _sample_rows(
        self,
        model: nn.Module,
        prompts: Sequence[list[int]],
        order: list[int],
        group: int,
        noise: Noise,
        temperature: float,
        next_turn: NextTurn | None,
        max_turns: int,
        opened: Sequence[int],
    ) -> dict[int, RowTokens]:
        max_tokens_left = self.settings.max_tokens_left(max_turns)
        positions = longest_row(prompts, opened, max_tokens_left)
        decoder = self._build_decoder(model, positions)
        device = next(model.parameters()).device
        # Inference mode is a few percent faster, but a module's own forward may keep a tensor that training needs.
        guard = torch.no_grad if isinstance(decoder, ModelDecoder) else torch.inference_mode
        numbers = [i * group + g for i in order for g in range(group)]
        opened_rows = [opened[i] for i in order for _ in range(group)]
        turns: OneTurn | SeveralTurns
        # without an environment or stop texts, a row ends with a token: no token has to reach the host in between
        if next_turn is None and not self.settings.stop:
            limits = [new_token_limit(max_tokens_left, o) for o in opened_rows]
            turns = OneTurn(numbers, noise(0)[torch.tensor(numbers)], self.stop_ids, device, limits)
        else:
            turns = SeveralTurns(
                numbers,
                lambda turn: noise(turn).numpy(),
                self.stop_ids,
                device,
                next_turn=next_turn or (lambda row, tokens: ()),
                ends_text=self.ends_text,
                slots=self.settings.max_new_tokens,
                max_tokens_left=max_tokens_left,
                opened=opened_rows,
            )
        decoding = Decoding(
            decoder,
            [prompts[i] for i in order],
            group,
            turns,
            temperature=temperature,
            truncation=self.truncation,
            slots=max_tokens_left,
            positions=positions,
            device=device,
        )
        max_rows = self.settings.batch_rows
        while True:
            out_of_memory = False
            try:
                with guard():
                    decoding.run(max_rows)
            except torch.OutOfMemoryError:
                # An environment has already seen the turns of these rows and cannot see them again. If blocks are
                # all-gathered, the other processes wait for this one. In both cases the batch cannot be repeated.
                if next_turn is not None or decoding.asked <= 1 or gather_context_of(model) is not None:
                    raise
                out_of_memory = True
            if not out_of_memory:
                break
            # outside the except block, because the exception holds references to the tensors of the batch
            max_rows = decoding.asked // 2
            decoding.restart()
            torch.cuda.empty_cache()
        rows = turns.rows()
        require_finite(rows)
        return rows

    def ends_text(self, tokens: list[int]) -> bool:
        """Return True if the tokens of a turn end with a stop text."""
        return completes_stop(tokens, self.settings.stop, self.decode)

    def _build_decoder(self, model: nn.Module, positions: int) -> Any:
        """Return a bare decoder for up to `positions` tokens, or the model's own forward if the family is unknown."""
        name = self.settings.dtype
        dtype = next(model.parameters()).dtype if name == "model" else getattr(torch, name)
        config: Any = model.config
        family = family_of(config.model_type)
        if family is not None:
            return load(family.decoder)(model, dtype, positions)
        return Decoder.of(model, dtype, positions) or ModelDecoder(model)


class Noise:
    """Uniform numbers for every row and position of a turn. Each (seed, turn) has its own matrix.

    Every process generates the numbers of all rows, so that a row does not depend on which process and batch sample it.

    Args:
        seeds: one seed for each block of `rows` consecutive rows.
    """

    def __init__(self, seeds: Sequence[int], rows: int, slots: int):
        self.seeds = seeds
        self.shape = (rows, slots)
        self._turns: dict[int, Tensor] = {}

    def __call__(self, turn: int) -> Tensor:
        """Return the numbers of a turn, (seeds · rows, slots) in [0, 1)."""
        if turn not in self._turns:
            # The first turn uses the seed itself: a single response is the same with and without an environment.
            turn_seeds = [seed_for(seed, "turn", turn) if turn else seed for seed in self.seeds]
            generators = [torch.Generator().manual_seed(seed) for seed in turn_seeds]
            blocks = [torch.rand(self.shape, generator=generator) for generator in generators]
            self._turns[turn] = torch.cat(blocks)
        return self._turns[turn]


def build(settings: Local, encoder: Encoder) -> LocalSampler:
    return LocalSampler(settings, encoder.stop_ids, allowed=allowed_ids(settings, encoder), decode=encoder.decode)


def allowed_ids(settings: Local, encoder: Encoder) -> list[int]:
    """Return the ids of the only tokens that may be sampled; empty if all are allowed."""
    allowed = encoder.token_ids_of(settings.allowed_tokens, "rollout.allowed_tokens")
    return [*allowed, *encoder.stop_ids] if allowed else []  # without the stop tokens no turn could end


def completes_stop(tokens: list[int], stop: Sequence[str], decode: Callable[[list[int]], str] | None) -> bool:
    """Return True if the last token of a turn completes one of the stop texts."""
    if not stop or decode is None:
        return False
    # A token has at least one byte, so a stop text of n bytes lies within the last n tokens.
    max_length = max(len(text.encode()) for text in stop)
    tail = decode(tokens[-max_length - STOP_MARGIN :])
    return any(text in tail for text in stop)


def require_finite(rows: Mapping[int, RowTokens]) -> None:
    for row in rows.values():
        if not all(map(math.isfinite, row.logps)):
            raise NumericError(
                "the policy's probabilities are not finite, so no token can be sampled; if the policy was being "
                "trained, lower algorithm.lr or algorithm.max_grad_norm, or set runtime.dtype=float32"
            )


class ModelDecoder:
    """Same interface as `Decoder`, with the model's own forward pass and cache, for architectures without a decoder."""

    refills = False

    def __init__(self, model: nn.Module):
        self.model: Any = model
        self.cache: Any = None
        self.mask_RT: Tensor | None = None
        # with a large vocabulary, the logits of all prompt positions would be the largest tensor in memory
        takes_last = "logits_to_keep" in inspect.signature(self.model.forward).parameters
        self.last_logits = {"logits_to_keep": 1} if takes_last else {}

    def start(self, prompts: Sequence[list[int]], group: int, device: torch.device) -> tuple[Tensor, ModelDecoder]:
        """Run left-padded prompts and repeat their KV cache for the rows of each group. The cache is this object."""
        self.cache = None  # frees the cache of the previous batch before the prompts run
        width = max(map(len, prompts))
        # left padding puts every prompt's last token, whose logits are needed, into the last column
        tokens_BT = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts], device=device)
        mask_BT = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
        self.mask_RT = mask_BT
        position = (mask_BT.cumsum(1) - 1).clamp(min=0)
        out = self._run(tokens_BT, position, None)
        self.cache = out.get("past_key_values")
        if self.cache is None:
            raise ConfigError(
                f"{type(self.model).__name__} does not return past_key_values, the cache that the sampler needs, so no "
                "response can be sampled from it; use a model of another architecture"
            )
        self.keep(torch.arange(len(prompts), device=device).repeat_interleave(group))
        return out.logits[:, -1], self

    def logits(self, x: Tensor) -> Tensor:
        return x  # `start` and `step` return logits already

    def step(self, token_R: Tensor, position_R: Tensor, cache: ModelDecoder) -> Tensor:
        assert self.mask_RT is not None
        new_columns = self.mask_RT.new_ones(len(token_R), 1)
        self.mask_RT = torch.cat([self.mask_RT, new_columns], dim=1)
        out = self._run(token_R[:, None], position_R[:, None], self.cache)
        self.cache = out.past_key_values
        return out.logits[:, -1]

    def _run(self, tokens: Tensor, position: Tensor, cache: Any) -> Any:
        """Run the model's own forward pass on tokens (R, t) that follow the cached ones."""
        inputs = {"attention_mask": self.mask_RT, "position_ids": position, "past_key_values": cache}
        inputs |= self.last_logits
        return within(self.model, lambda: self.model(input_ids=tokens, use_cache=True, **inputs))

    def keep(self, row_Bg: Tensor) -> None:
        assert self.mask_RT is not None
        row_R = row_Bg.flatten()
        self.mask_RT = self.mask_RT[row_R]
        # layers of linear attention have only `reorder_cache`, and caches of some models only the other method
        has_both = all(hasattr(layer, "batch_select_indices") for layer in self.cache.layers)
        select_rows = self.cache.batch_select_indices if has_both else self.cache.reorder_cache
        select_rows(row_R)

    def step_cost(self, cache: ModelDecoder) -> StepCost:
        return StepCost(step=0, row=1, prompt=0)  # every row has its own copy of the prompt
