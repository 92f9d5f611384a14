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

from rlhf_lab.models.encoding import Encoder
from rlhf_lab.rollout.decoder import Decoder, GroupCache
from rlhf_lab.rollout.settings import Local

DROP_BELOW = 0.75  # live share of rows below which finished rows are dropped


@dataclass(frozen=True)
class Samples:
    """G replies to each of B prompts, in prompt order.

    Attributes:
        prompts: B prompts as token ids.
        replies_BG: token ids, EOS included where the reply ended.
        logps_BG: log-probability of each reply's tokens under the sampled distribution, nats.
        ended_BG: False where the reply was cut at `max_new_tokens`.
    """

    prompts: list[list[int]]
    replies_BG: list[list[list[int]]]
    logps_BG: list[list[list[float]]]
    ended_BG: list[list[bool]]


class LocalSampler:
    """Samples replies from a Hugging Face causal LM. Weights are read at each call, so it follows training."""

    def __init__(self, settings: Local, eos_id: int):
        self.settings, self.eos_id = settings, eos_id

    @torch.no_grad()
    def sample(self, model: nn.Module, prompts: Sequence[list[int]], group: int, seed: int) -> Samples:
        """`group` replies to each prompt. The same arguments give the same replies."""
        slots, temperature = self.settings.max_new_tokens or 1, self.settings.temperature
        if not prompts:
            return Samples([], [], [], [])
        noise_RT = torch.rand(len(prompts) * group, slots, generator=torch.Generator().manual_seed(seed))
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        decoder = self._decoder(model, max(map(len, prompts)) + slots)
        rows: dict[int, tuple[list[int], list[float]]] = {}
        per_batch = max(1, self.settings.batch_rows // group)
        for begin in range(0, len(order), per_batch):
            chosen = order[begin : begin + per_batch]
            index_R = torch.tensor([i * group + g for i in chosen for g in range(group)])
            batch = [prompts[i] for i in chosen]
            tokens_RT, logps_RT = _generate(
                decoder, batch, group, noise_RT[index_R], temperature, self.eos_id, model.device
            )
            for row, tokens, logps in zip(index_R.tolist(), tokens_RT.tolist(), logps_RT.tolist(), strict=True):
                length = tokens.index(self.eos_id) + 1 if self.eos_id in tokens else len(tokens)
                rows[row] = (tokens[:length], logps[:length])
        grouped = [[rows[i * group + g] for g in range(group)] for i in range(len(prompts))]
        return Samples(
            prompts=list(prompts),
            replies_BG=[[tokens for tokens, _ in row] for row in grouped],
            logps_BG=[[logps for _, logps in row] for row in grouped],
            ended_BG=[[tokens[-1] == self.eos_id for tokens, _ in row] for row in grouped],
        )

    def _decoder(self, model: nn.Module, positions: int) -> Any:
        name = self.settings.dtype
        dtype = next(model.parameters()).dtype if name == "model" else getattr(torch, name)
        return Decoder.of(model, dtype, positions) or ModelDecoder(model)


def build(settings: Local, encoder: Encoder) -> LocalSampler:
    return LocalSampler(settings, encoder.eos_id)


def _generate(
    decoder: Any,
    prompts: Sequence[list[int]],
    group: int,
    noise_RT: Tensor,
    temperature: float,
    eos_id: int,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Tokens (R, T) and log-probabilities (R, T) of R = prompts·group rows; EOS fills a row after its end."""
    rows, slots = noise_RT.shape
    noise_RT = noise_RT.to(device)
    hidden_Bd, cache, length_B = _start(decoder, prompts, group, slots, device)
    position_R = length_B.repeat_interleave(group)
    logits_RV = decoder.logits(hidden_Bd).repeat_interleave(group, dim=0)
    tokens_RT = torch.full((rows, slots), eos_id, device=device)
    logps_RT = torch.zeros(rows, slots, device=device)
    row_R = torch.arange(rows, device=device)
    live_R = torch.ones(rows, dtype=torch.bool, device=device)
    for t in range(slots):
        token_R, logp_R = draw(logits_RV, noise_RT[row_R, t], temperature)
        token_R = token_R.masked_fill(~live_R, eos_id)
        tokens_RT[row_R, t] = token_R
        logps_RT[row_R, t] = logp_R.masked_fill(~live_R, 0.0)
        live_R = live_R & (token_R != eos_id)
        alive = int(live_R.sum())
        if alive == 0 or t == slots - 1:
            break
        if alive <= DROP_BELOW * len(row_R):
            kept = live_R.nonzero()[:, 0]
            cache.keep(kept)
            row_R, position_R, token_R, live_R = row_R[kept], position_R[kept], token_R[kept], live_R[kept]
        logits_RV = decoder.logits(decoder.step(token_R, position_R, cache))
        position_R = position_R + 1
    return tokens_RT, logps_RT


def _start(
    decoder: Any, prompts: Sequence[list[int]], group: int, slots: int, device: torch.device
) -> tuple[Tensor, Any, Tensor]:
    """Prefill. Returns hidden states (B, d), a cache for B·group rows, and prompt lengths (B,)."""
    width = max(map(len, prompts))
    tokens_BT = torch.tensor([[*p, *([0] * (width - len(p)))] for p in prompts], device=device)
    length_B = torch.tensor([len(p) for p in prompts], device=device)
    if isinstance(decoder, ModelDecoder):
        return (*decoder.start(prompts, group, device), length_B)
    hidden_Bd, prompt_cache = decoder.prefill(tokens_BT, length_B)
    padding_BT = torch.arange(width, device=device) >= length_B[:, None]
    mask_BT = torch.zeros(padding_BT.shape, device=device).masked_fill_(padding_BT, -torch.inf)
    mask = mask_BT if bool(padding_BT.any()) else None
    flat, dim = len(prompts) * group * decoder.kv_heads, decoder.head_dim
    generated = [
        (torch.empty(flat, dim, slots, device=device), torch.empty(flat, slots, dim, device=device))
        for _ in prompt_cache
    ]
    return hidden_Bd, GroupCache(prompt_cache, mask, generated, group, decoder.kv_heads), length_B


def draw(logits_RV: Tensor, noise_R: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """One token per row by inverting the cumulative distribution at `noise_R` in [0, 1), and its log-probability.

    Two levels of blocks of about √V tokens: a running sum over the whole vocabulary would cost ten times the matmul.

    Temperature 0 takes the most likely token; its log-probability is then at temperature 1.
    """
    if temperature == 0:
        token_R = logits_RV.argmax(1)
        return token_R, logits_RV.log_softmax(1).gather(1, token_R[:, None])[:, 0]
    z = logits_RV if temperature == 1 else logits_RV / temperature
    weight = (z - z.amax(1, keepdim=True)).exp_()
    rows = torch.arange(len(weight), device=weight.device)
    block_size = 16 * math.ceil(weight.shape[1] ** 0.5 / 16)
    blocks = torch.nn.functional.pad(weight, (0, -weight.shape[1] % block_size)).unflatten(1, (-1, block_size))
    mass = blocks.sum(2)
    block, offset = _search(mass, noise_R)
    inside = blocks[rows, block]
    token = block * block_size + _search(inside, offset)[0]
    return token, weight[rows, token].log() - mass.sum(1).log()


def _search(weight_RN: Tensor, noise_R: Tensor) -> tuple[Tensor, Tensor]:
    """Index i drawn in proportion to the weights, and where in [0, 1) the noise falls within weight i.

    The target stays below the total, so an index of weight 0 is never drawn.
    """
    cumulative = weight_RN.cumsum(1)
    target = noise_R.clamp(max=1 - 2**-23) * cumulative[:, -1]
    index = torch.searchsorted(cumulative, target[:, None], right=True)
    before = torch.where(index > 0, cumulative.gather(1, (index - 1).clamp(min=0)), 0.0)
    offset = (target[:, None] - before) / weight_RN.gather(1, index)
    return index[:, 0], offset[:, 0].clamp(0.0, 1.0)


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
        return x.float()

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

    def keep(self, row_R: Tensor) -> None:
        assert self.mask_RT is not None
        self.mask_RT = self.mask_RT[row_R]
        self.cache.batch_select_indices(row_R)
