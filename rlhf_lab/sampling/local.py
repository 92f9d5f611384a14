"""The lab's own sampler: groups of replies per prompt, exact log-probabilities.

Each turn of a row draws its noise from a row of its own in a uniform matrix, so a sample does not depend on which other
rows share its batch, nor on how long anyone else speaks.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlhf_lab.core import ranks
from rlhf_lab.core.errors import NumericError
from rlhf_lab.core.packs import load
from rlhf_lab.models.by_block import gatherer, readable
from rlhf_lab.models.divided import at_hand, within
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.models.families import family_of
from rlhf_lab.models.truncation import Truncation
from rlhf_lab.sampling.cache import StepCost
from rlhf_lab.sampling.decoder import Decoder
from rlhf_lab.sampling.decoding import Decoding
from rlhf_lab.sampling.settings import Local
from rlhf_lab.sampling.turns import NextTurn, OneTurn, RowTokens, SeveralTurns, Turns
from rlhf_lab.training.run import seed_for

STOP_MARGIN = 8  # tokens read before a stop text, so that decoding begins at a whole character


@dataclass(frozen=True)
class Samples:
    """G rows for each of B prompts, in prompt order.

    Attributes:
        prompts: B prompts as token ids.
        rows_BG: what each row added to its prompt.
    """

    prompts: list[list[int]]
    rows_BG: list[list[RowTokens]]

    @classmethod
    def gathered(cls, prompts: Sequence[list[int]], group: int, own_rows: Mapping[int, RowTokens]) -> Samples:
        """From the rows of every process. All processes must call it.

        Args:
            own_rows: those of this process by number: prompt number · group + sample number.
        """
        rows = {number: row for process in ranks.exchange(own_rows) for number, row in process.items()}
        return cls(list(prompts), [[rows[i * group + g] for g in range(group)] for i in range(len(prompts))])

    @property
    def replies_BG(self) -> list[list[list[int]]]:
        """Token ids, with the one that ended the reply."""
        return [[row.token_ids for row in rows] for rows in self.rows_BG]

    @property
    def logps_BG(self) -> list[list[list[float]]]:
        """Log-probability of each sampled token under the sampled distribution, nats."""
        return [[row.logps for row in rows] for rows in self.rows_BG]

    @property
    def ended_BG(self) -> list[list[bool]]:
        """False where the last turn was cut."""
        return [[row.ended for row in rows] for rows in self.rows_BG]


def own_prompts(prompts: Sequence[list[int]]) -> list[int]:
    """Numbers of the prompts that this process samples, shortest first.

    Prompts of similar length share a batch, and short and long ones are spread over the processes.
    """
    return ranks.share(sorted(range(len(prompts)), key=lambda i: len(prompts[i])))


class LocalSampler:
    """Samples from a Hugging Face causal LM. Weights are read at each call, so it follows training.

    Attributes:
        exact: its log-probabilities are those of a float32 forward pass, but for rounding.

    Args:
        stop_ids: tokens that end a turn.
        allowed: ids of the only tokens that may be sampled; empty allows all.
        decode: token ids → text, for turns that end with a piece of text (`rollout.stop`).
    """

    def __init__(
        self,
        settings: Local,
        stop_ids: Sequence[int],
        *,
        allowed: Sequence[int] = (),
        decode: Callable[[list[int]], str] | None = None,
    ):
        self.settings, self.stop_ids = settings, tuple(stop_ids)
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
    ) -> Samples:
        """`group` rows for each prompt. The same arguments give the same rows.

        Args:
            seed: of all rows; or one for each prompt, from which its rows are drawn whatever other prompts there are.
            temperature: in place of `rollout.temperature`; 0 is greedy.
            next_turn: what follows a turn of a row (prompt number · group + sample number), called in the process that
                samples the row; None makes every row one reply.
            max_turns: most turns of a row.
        """
        temperature = self.settings.temperature if temperature is None else temperature
        if not prompts:
            return Samples([], [])
        slots = self.settings.max_new_tokens
        noise = Noise(seed, group, slots) if isinstance(seed, Sequence) else Noise([seed], len(prompts) * group, slots)
        order = own_prompts(prompts)
        own_rows: dict[int, RowTokens] = {}
        # a process without prompts of its own also helps to gather a divided model
        with at_hand([model]), readable(model) as readable_model:
            if order:
                own_rows = self._sample_rows(
                    readable_model, prompts, order, group, noise, temperature, next_turn, max_turns
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
    ) -> dict[int, RowTokens]:
        """The rows of the prompts in `order`, by number."""
        most_tokens = self.settings.most_tokens(max_turns)
        decoder = self._build_decoder(model, max(map(len, prompts)) + most_tokens)
        device = next(model.parameters()).device
        # inference mode is a few percent faster, but a module's own forward may keep a tensor that training needs later
        guard = torch.no_grad if isinstance(decoder, ModelDecoder) else torch.inference_mode
        turns = self._turns(order, group, noise, device, next_turn, most_tokens)
        decoding = Decoding(
            decoder,
            [prompts[i] for i in order],
            group,
            turns,
            temperature=temperature,
            truncation=self.truncation,
            slots=most_tokens,
            device=device,
        )
        most_rows = self.settings.batch_rows
        while True:
            out_of_memory = False
            try:
                with guard():
                    decoding.run(most_rows)
            except torch.OutOfMemoryError:
                # an environment has seen the turns of these rows already, and cannot see them again; and the other
                # processes wait for this one where blocks are gathered together
                if next_turn is not None or decoding.asked <= 1 or gatherer(model) is not None:
                    raise
                out_of_memory = True
            if not out_of_memory:
                break
            # outside the handler: the error holds on to the tensors of the batch
            most_rows = decoding.asked // 2
            decoding.restart()
            torch.cuda.empty_cache()
        rows = turns.rows()
        require_finite(rows)
        return rows

    def _turns(
        self,
        prompt_numbers: Sequence[int],
        group: int,
        noise: Noise,
        device: torch.device,
        next_turn: NextTurn | None,
        most_tokens: int,
    ) -> Turns:
        """What collects the tokens of the rows of some prompts."""
        numbers = [i * group + g for i in prompt_numbers for g in range(group)]
        if next_turn is None and not self.settings.stop:
            return OneTurn(numbers, noise(0)[torch.tensor(numbers)], self.stop_ids, device)
        return SeveralTurns(
            numbers,
            noise.numpy,
            self.stop_ids,
            device,
            next_turn=next_turn or (lambda row, tokens: ()),
            ends_text=self._ends_text,
            slots=self.settings.max_new_tokens,
            most_tokens=most_tokens,
        )

    def _ends_text(self, tokens: list[int]) -> bool:
        return completes_stop(tokens, self.settings.stop, self.decode)

    def _build_decoder(self, model: nn.Module, positions: int) -> Any:
        """A bare decoder for sequences of up to `positions` tokens, or the model's own forward if it is not known."""
        name = self.settings.dtype
        dtype = next(model.parameters()).dtype if name == "model" else getattr(torch, name)
        config: Any = model.config
        family = family_of(config.model_type)
        if family is not None:
            return load(family.decoder)(model, dtype, positions)
        return Decoder.of(model, dtype, positions) or ModelDecoder(model)


class Noise:
    """Uniform numbers for every row and place of a turn, keyed by (seed, turn): each has a matrix of its own.

    All rows are drawn in every process, so that a row is the same whichever process and batch sample it.

    Args:
        seeds: in the order of the rows.
        rows: of each seed.
    """

    def __init__(self, seeds: Sequence[int], rows: int, slots: int):
        self.seeds, self.shape = seeds, (rows, slots)
        self._turns: dict[int, Tensor] = {}

    def __call__(self, turn: int) -> Tensor:
        """(seeds · rows, slots) in [0, 1)."""
        if turn not in self._turns:
            # the first turn has the seed itself: one reply is drawn alike with and without an environment behind it
            turn_seeds = [seed_for(seed, "turn", turn) if turn else seed for seed in self.seeds]
            blocks = [torch.rand(self.shape, generator=torch.Generator().manual_seed(seed)) for seed in turn_seeds]
            self._turns[turn] = torch.cat(blocks)
        return self._turns[turn]

    def numpy(self, turn: int) -> NDArray[np.float32]:
        """The same numbers, for single look-ups on the host."""
        return self(turn).numpy()


def build(settings: Local, encoder: Encoder) -> LocalSampler:
    return LocalSampler(settings, encoder.stop_ids, allowed=allowed_ids(settings, encoder), decode=encoder.decode)


def allowed_ids(settings: Local, encoder: Encoder) -> list[int]:
    """Ids of the only tokens that may be sampled; empty where all may."""
    allowed = encoder.token_ids_of(settings.allowed_tokens, "rollout.allowed_tokens")
    return [*allowed, *encoder.stop_ids] if allowed else []  # without those no turn could end


def completes_stop(tokens: list[int], stop: Sequence[str], decode: Callable[[list[int]], str] | None) -> bool:
    """Whether a turn's last token completes one of the stop texts."""
    if not stop or decode is None:
        return False
    # a token has at least one byte, so a stop text lies within as many last tokens as it has bytes
    longest = max(len(text.encode()) for text in stop)
    tail = decode(tokens[-longest - STOP_MARGIN :])
    return any(text in tail for text in stop)


def require_finite(rows: Mapping[int, RowTokens]) -> None:
    """Raise NumericError unless every sampled token has a finite log-probability."""
    if not all(math.isfinite(logp) for row in rows.values() for logp in row.logps):
        raise NumericError(
            "the policy's probabilities are not finite, so nothing can be sampled from it; if it was being "
            "trained, lower algorithm.lr or algorithm.max_grad_norm, or use runtime.dtype=float32"
        )


class ModelDecoder:
    """The same interface through the model's own forward and cache, for architectures `Decoder` does not know."""

    refills = False

    def __init__(self, model: nn.Module):
        self.model: Any = model
        self.cache: Any = None
        self.mask_RT: Tensor | None = None
        # of a large vocabulary the logits of whole prompts would be the largest tensor there is
        takes_last = "logits_to_keep" in inspect.signature(self.model.forward).parameters
        self.last_logits = {"logits_to_keep": 1} if takes_last else {}

    def start(self, prompts: Sequence[list[int]], group: int, device: torch.device) -> tuple[Tensor, ModelDecoder]:
        """Run left-padded prompts, and repeat their cache for the rows of their groups. The cache is this object."""
        self.cache = None  # that of the batch before
        width = max(map(len, prompts))
        # padded on the left: the last column then holds every prompt's last token, whose logits are wanted
        tokens_BT = torch.tensor([[*([0] * (width - len(p))), *p] for p in prompts], device=device)
        mask_BT = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
        self.mask_RT = mask_BT
        position = (mask_BT.cumsum(1) - 1).clamp(min=0)
        out = self._run(tokens_BT, position, None)
        self.cache = out.past_key_values
        if group > 1:
            self.cache.batch_repeat_interleave(group)
        self.mask_RT = mask_BT.repeat_interleave(group, 0)
        return out.logits[:, -1], self

    def logits(self, x: Tensor) -> Tensor:
        return x  # `start` and `step` return logits already

    def step(self, token_R: Tensor, position_R: Tensor, cache: ModelDecoder) -> Tensor:
        assert self.mask_RT is not None
        self.mask_RT = torch.cat([self.mask_RT, self.mask_RT.new_ones(len(token_R), 1)], dim=1)
        out = self._run(token_R[:, None], position_R[:, None], self.cache)
        self.cache = out.past_key_values
        return out.logits[:, -1]

    def _run(self, tokens: Tensor, position: Tensor, cache: Any) -> Any:
        """The model's own forward pass on tokens (R, t) behind what is in the cache."""
        inputs = {"attention_mask": self.mask_RT, "position_ids": position, "past_key_values": cache}
        inputs |= self.last_logits
        return within(self.model, lambda: self.model(input_ids=tokens, use_cache=True, **inputs))

    def keep(self, row_Bg: Tensor) -> None:
        assert self.mask_RT is not None
        row_R = row_Bg.flatten()
        self.mask_RT = self.mask_RT[row_R]
        self.cache.batch_select_indices(row_R)

    def step_cost(self, cache: ModelDecoder) -> StepCost:
        return StepCost(step=0, row=1, prompt=0)  # every row has a copy of its prompt anyway
