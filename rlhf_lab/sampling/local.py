"""The lab's own sampler: groups of replies per prompt, exact log-probabilities, finished rows dropped.

Each reply draws its noise from its own row of one uniform matrix, so a sample does not depend on which other rows share
its batch. Sampling inverts the cumulative distribution, which costs a tenth of `torch.multinomial`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_lab.core import ranks
from rlhf_lab.core.errors import NumericError
from rlhf_lab.models.divided import at_hand, plain
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.sampling.decoder import Decoder
from rlhf_lab.sampling.settings import Local

DROP_BELOW = 0.75  # live share of rows below which finished rows are dropped
ONE_LEVEL = 2048  # largest vocabulary searched in one running sum


@dataclass(frozen=True)
class Samples:
    """G replies to each of B prompts, in prompt order.

    Attributes:
        prompts: B prompts as token ids.
        replies_BG: token ids, with the one that ended the reply.
        logps_BG: log-probability of each reply's tokens under the sampled distribution, nats.
        ended_BG: False where the reply was cut at `max_new_tokens`.
    """

    prompts: list[list[int]]
    replies_BG: list[list[list[int]]]
    logps_BG: list[list[list[float]]]
    ended_BG: list[list[bool]]


class LocalSampler:
    """Samples replies from a Hugging Face causal LM. Weights are read at each call, so it follows training."""

    def __init__(self, settings: Local, stop_ids: Sequence[int]):
        self.settings, self.stop_ids = settings, tuple(stop_ids)

    @torch.no_grad()
    def sample(
        self,
        model: nn.Module,
        prompts: Sequence[list[int]],
        group: int,
        seed: int,
        *,
        temperature: float | None = None,
    ) -> Samples:
        """`group` replies to each prompt. The same arguments give the same replies.

        Args:
            temperature: in place of `rollout.temperature`; 0 is greedy.
        """
        slots = self.settings.max_new_tokens
        temperature = self.settings.temperature if temperature is None else temperature
        if not prompts:
            return Samples([], [], [], [])
        noise_RT = torch.rand(len(prompts) * group, slots, generator=torch.Generator().manual_seed(seed))
        order = ranks.share(sorted(range(len(prompts)), key=lambda i: len(prompts[i])))
        with at_hand([model]), plain(model) as whole:
            rows = self._rows(whole, prompts, order, noise_RT, temperature) if order else {}
        rows = {row: found for part in ranks.exchange(rows) for row, found in part.items()}
        grouped = [[rows[i * group + g] for g in range(group)] for i in range(len(prompts))]
        return Samples(
            prompts=list(prompts),
            replies_BG=[[tokens for tokens, _ in row] for row in grouped],
            logps_BG=[[logps for _, logps in row] for row in grouped],
            ended_BG=[[tokens[-1] in self.stop_ids for tokens, _ in row] for row in grouped],
        )

    def _rows(
        self, model: nn.Module, prompts: Sequence[list[int]], order: list[int], noise_RT: Tensor, temperature: float
    ) -> dict[int, tuple[list[int], list[float]]]:
        """Row → (tokens, log-probabilities) of the replies to the prompts in `order`."""
        slots, group = noise_RT.shape[1], len(noise_RT) // len(prompts)
        decoder = self._decoder(model, max(map(len, prompts)) + slots)
        device = next(model.parameters()).device
        # a few percent faster, but a module's own forward may keep a tensor that training needs later
        guard = torch.inference_mode if isinstance(decoder, Decoder) else torch.no_grad
        rows: dict[int, tuple[list[int], list[float]]] = {}
        per_batch = max(1, self.settings.batch_rows // group)
        for begin in range(0, len(order), per_batch):
            chosen = order[begin : begin + per_batch]
            index_R = torch.tensor([i * group + g for i in chosen for g in range(group)])
            batch = [prompts[i] for i in chosen]
            with guard():
                tokens_RT, logps_RT = _generate(
                    decoder, batch, group, noise_RT[index_R], temperature, self.stop_ids, device
                )
            if not bool(logps_RT.isfinite().all()):
                raise NumericError(
                    "the policy's probabilities are not finite, so nothing can be sampled from it; if it was being "
                    "trained, lower algorithm.lr or algorithm.max_grad_norm, or use runtime.dtype=float32"
                )
            for row, tokens, logps in zip(index_R.tolist(), tokens_RT.tolist(), logps_RT.tolist(), strict=True):
                ends = [place for place, token in enumerate(tokens) if token in self.stop_ids]
                length = ends[0] + 1 if ends else len(tokens)
                rows[row] = (tokens[:length], logps[:length])
        return rows

    def _decoder(self, model: nn.Module, positions: int) -> Any:
        name = self.settings.dtype
        dtype = next(model.parameters()).dtype if name == "model" else getattr(torch, name)
        return Decoder.of(model, dtype, positions) or ModelDecoder(model)


def build(settings: Local, encoder: Encoder) -> LocalSampler:
    return LocalSampler(settings, encoder.stop_ids)


def _generate(
    decoder: Any,
    prompts: Sequence[list[int]],
    group: int,
    noise_RT: Tensor,
    temperature: float,
    stop_ids: Sequence[int],
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Tokens (R, T) and log-probabilities (R, T) of R = prompts·group rows. Behind the token that ends a row
    they mean nothing."""
    rows, slots = noise_RT.shape
    noise_TR = noise_RT.T.to(device)
    hidden_Bd, cache = decoder.start(prompts, group, device)
    position_R = torch.tensor([len(p) for p in prompts], device=device).repeat_interleave(group)
    logits_RV = decoder.logits(hidden_Bd).repeat_interleave(group, dim=0)
    tokens_TR = torch.full((slots, rows), stop_ids[0], device=device)
    stop_S = torch.tensor(stop_ids, device=device)
    logps_TR = torch.zeros(slots, rows, device=device)
    row_R = torch.arange(rows, device=device)
    live_R = torch.ones(rows, dtype=torch.bool, device=device)
    for t in range(slots):
        token_R, logp_R = draw(logits_RV, noise_TR[t, row_R], temperature)
        tokens_TR[t, row_R], logps_TR[t, row_R] = token_R, logp_R
        live_R &= (token_R[:, None] != stop_S).all(1)
        alive = int(live_R.sum())
        if alive == 0 or t == slots - 1:
            break
        if alive <= DROP_BELOW * len(row_R):
            kept_Bg = regroup(live_R.view(-1, group), *decoder.row_cost(cache))
            kept = kept_Bg.flatten()
            if len(kept) <= DROP_BELOW * len(row_R):
                cache.keep(kept_Bg)
                group = kept_Bg.shape[1]
                row_R, position_R, token_R, live_R = row_R[kept], position_R[kept], token_R[kept], live_R[kept]
        logits_RV = decoder.logits(decoder.step(token_R, position_R, cache))
        position_R = position_R + 1
    return tokens_TR.T, logps_TR.T


def regroup(live_BG: Tensor, row_cost: int, prompt_cost: int) -> Tensor:
    """Indices of the live rows as (lines, g): the g rows of a line go on sharing one copy of their prompt.

    Small g drops every finished row and copies prompts more often; the cheapest g by the given costs per step is taken.
    A line that is short of live rows repeats one, which draws the same tokens twice.
    """
    alive, group = live_BG.sum(1).tolist(), live_BG.shape[1]
    sizes = [size for size in range(1, group + 1) if size == group or size & (size - 1) == 0]
    g = min(sizes, key=lambda size: sum(-(-n // size) for n in alive) * (size * row_cost + prompt_cost))
    lines = []
    for prompt, live in enumerate(live_BG.tolist()):
        rows = [prompt * group + sample for sample, is_live in enumerate(live) if is_live]
        rows += rows[-1:] * (-len(rows) % g)
        lines += [rows[begin : begin + g] for begin in range(0, len(rows), g)]
    return torch.tensor(lines, device=live_BG.device)


def draw(logits_RV: Tensor, noise_R: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """One token per row by inverting the cumulative distribution at `noise_R` in [0, 1), and its log-probability.

    A large vocabulary is searched in two levels, √V classes of √V tokens, because a running sum over all of it takes
    longer than the softmax. Class c holds the tokens c, c + classes, c + 2·classes, …; its mass adds up whole rows.

    Temperature 0 takes the most likely token; its log-probability is then at temperature 1.
    """
    if temperature == 0:
        token_R = logits_RV.argmax(1)
        return token_R, logits_RV.log_softmax(1, dtype=torch.float32).gather(1, token_R[:, None])[:, 0]
    p_RV = (logits_RV if temperature == 1 else logits_RV / temperature).softmax(1, dtype=torch.float32)
    vocab, noise_R1 = p_RV.shape[1], noise_R[:, None]
    if vocab <= ONE_LEVEL:
        token_R1 = _search(p_RV.cumsum(1), noise_R1)[0]
        return token_R1[:, 0], p_RV.gather(1, token_R1).log_()[:, 0]
    classes = 16 * math.ceil(vocab**0.5 / 16)
    whole = vocab // classes * classes
    mass = p_RV[:, :whole].unflatten(1, (-1, classes)).sum(1)
    mass[:, : vocab - whole] += p_RV[:, whole:]
    class_R1, left_R1 = _search(mass.cumsum(1), noise_R1)
    member = class_R1 + torch.arange(0, vocab, classes, device=p_RV.device)
    inside = p_RV.gather(1, member.clamp(max=vocab - 1)).masked_fill_(member >= vocab, 0.0)
    token_R1 = class_R1 + classes * _search(inside.cumsum(1), 1 - left_R1 / mass.gather(1, class_R1))[0]
    return token_R1[:, 0], p_RV.gather(1, token_R1).log_()[:, 0]


def _search(cumulative_RN: Tensor, noise_R1: Tensor) -> tuple[Tensor, Tensor]:
    """Index i of the entry that holds the share `noise_R1` of the total, and the mass left above it within entry i.

    The target stays below the total, so an index of weight 0 is never drawn.
    """
    target_R1 = noise_R1.clamp(0.0, 1 - 2**-23) * cumulative_RN[:, -1:]
    index_R1 = torch.searchsorted(cumulative_RN, target_R1, right=True).clamp_(max=cumulative_RN.shape[1] - 1)
    return index_R1, cumulative_RN.gather(1, index_R1) - target_R1


class ModelDecoder:
    """The same steps through the model's own forward and cache, for architectures `Decoder` does not know."""

    def __init__(self, model: nn.Module):
        self.model: Any = model
        self.mask_RT: Tensor | None = None

    def start(self, prompts: Sequence[list[int]], group: int, device: torch.device) -> tuple[Tensor, ModelDecoder]:
        """Run left-padded prompts once per row. The cache is this object."""
        width = max(map(len, prompts))
        tokens = torch.tensor([[*([0] * (width - len(p))), *p] for p in prompts], device=device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
        tokens, self.mask_RT = tokens.repeat_interleave(group, 0), mask.repeat_interleave(group, 0)
        position = (self.mask_RT.cumsum(1) - 1).clamp(min=0)
        out = self.model(input_ids=tokens, attention_mask=self.mask_RT, position_ids=position, use_cache=True)
        self.cache = out.past_key_values
        return out.logits[::group, -1], self

    def logits(self, x: Tensor) -> Tensor:
        return x

    def step(self, token_R: Tensor, position_R: Tensor, cache: ModelDecoder) -> Tensor:
        assert self.mask_RT is not None
        self.mask_RT = torch.cat([self.mask_RT, self.mask_RT.new_ones(len(token_R), 1)], dim=1)
        out = self.model(
            input_ids=token_R[:, None],
            attention_mask=self.mask_RT,
            position_ids=position_R[:, None],
            past_key_values=self.cache,
            use_cache=True,
        )
        self.cache = out.past_key_values
        return out.logits[:, -1]

    def keep(self, row_Bg: Tensor) -> None:
        assert self.mask_RT is not None
        row_R = row_Bg.flatten()
        self.mask_RT = self.mask_RT[row_R]
        self.cache.batch_select_indices(row_R)

    def row_cost(self, cache: ModelDecoder) -> tuple[int, int]:
        return 1, 0
