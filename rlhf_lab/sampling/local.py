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

# measured, see docs/design/003-speed.md
DROP_BELOW = 0.75  # finished rows are dropped when the share of live rows is at most this
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
        # noise for all rows in every process: a reply is the same, whichever process and batch sample it
        noise_RT = torch.rand(len(prompts) * group, slots, generator=torch.Generator().manual_seed(seed))
        # prompts of similar length share a batch, and short and long ones are spread over the processes
        by_length = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        order = ranks.share(by_length)
        with at_hand([model]), plain(model) as whole_model:
            replies = self._sample_rows(whole_model, prompts, order, noise_RT, temperature) if order else {}
        rows = {row: reply for process in ranks.exchange(replies) for row, reply in process.items()}
        grouped = [[rows[i * group + g] for g in range(group)] for i in range(len(prompts))]
        return Samples(
            prompts=list(prompts),
            replies_BG=[[tokens for tokens, _ in row] for row in grouped],
            logps_BG=[[logps for _, logps in row] for row in grouped],
            ended_BG=[[tokens[-1] in self.stop_ids for tokens, _ in row] for row in grouped],
        )

    def _sample_rows(
        self, model: nn.Module, prompts: Sequence[list[int]], order: list[int], noise_RT: Tensor, temperature: float
    ) -> dict[int, tuple[list[int], list[float]]]:
        """Row → (tokens, log-probabilities) of the replies to the prompts in `order`."""
        slots = noise_RT.shape[1]
        group = len(noise_RT) // len(prompts)
        decoder = self._build_decoder(model, max(map(len, prompts)) + slots)
        device = next(model.parameters()).device
        # inference mode is a few percent faster, but a module's own forward may keep a tensor that training needs later
        guard = torch.inference_mode if isinstance(decoder, Decoder) else torch.no_grad
        rows: dict[int, tuple[list[int], list[float]]] = {}
        prompts_per_batch = max(1, self.settings.batch_rows // group)
        for begin in range(0, len(order), prompts_per_batch):
            batch_order = order[begin : begin + prompts_per_batch]
            index_R = torch.tensor([i * group + g for i in batch_order for g in range(group)])
            batch = [prompts[i] for i in batch_order]
            with guard():
                tokens_RT, logps_RT = _generate_batch(
                    decoder, batch, group, noise_RT[index_R], temperature, self.stop_ids, device
                )
            if not bool(logps_RT.isfinite().all()):
                raise NumericError(
                    "the policy's probabilities are not finite, so nothing can be sampled from it; if it was being "
                    "trained, lower algorithm.lr or algorithm.max_grad_norm, or use runtime.dtype=float32"
                )
            for row, tokens, logps in zip(index_R.tolist(), tokens_RT.tolist(), logps_RT.tolist(), strict=True):
                ends = (place for place, token in enumerate(tokens) if token in self.stop_ids)
                length = next(ends, len(tokens) - 1) + 1
                rows[row] = (tokens[:length], logps[:length])
        return rows

    def _build_decoder(self, model: nn.Module, positions: int) -> Any:
        """A bare decoder for sequences of up to `positions` tokens, or the model's own forward if it is not known."""
        name = self.settings.dtype
        dtype = next(model.parameters()).dtype if name == "model" else getattr(torch, name)
        return Decoder.of(model, dtype, positions) or ModelDecoder(model)


def build(settings: Local, encoder: Encoder) -> LocalSampler:
    return LocalSampler(settings, encoder.stop_ids)


def _generate_batch(
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
        tokens_TR[t, row_R] = token_R
        logps_TR[t, row_R] = logp_R
        live_R &= (token_R[:, None] != stop_S).all(1)
        live_count = int(live_R.sum())
        if live_count == 0 or t == slots - 1:
            break
        if live_count <= DROP_BELOW * len(row_R):
            lines_Bg = regroup(live_R.view(-1, group), *decoder.row_cost(cache))
            remaining = lines_Bg.flatten()
            # lines may carry finished or repeated rows, so that regrouping need not make the batch smaller
            if len(remaining) <= DROP_BELOW * len(row_R):
                cache.keep(lines_Bg)
                group = lines_Bg.shape[1]
                row_R = row_R[remaining]
                position_R = position_R[remaining]
                token_R = token_R[remaining]
                live_R = live_R[remaining]
        logits_RV = decoder.logits(decoder.step(token_R, position_R, cache))
        position_R = position_R + 1
    return tokens_TR.T, logps_TR.T


def regroup(live_BG: Tensor, row_cost: int, prompt_cost: int) -> Tensor:
    """Indices of the live rows as (lines, g): the g rows of a line go on sharing one copy of their prompt.

    Small g drops every finished row and copies prompts more often; the cheapest g by the given costs per step is taken.
    A line that is short of live rows repeats one, which draws the same tokens twice.
    """
    live_counts = live_BG.sum(1).tolist()
    group = live_BG.shape[1]

    def step_cost(size: int) -> int:
        lines = sum(-(-count // size) for count in live_counts)  # of each prompt, rounded up
        return lines * (size * row_cost + prompt_cost)

    # candidates: powers of two, and the group as it is
    sizes = [size for size in range(1, group + 1) if size == group or size & (size - 1) == 0]
    g = min(sizes, key=step_cost)
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
    vocab = p_RV.shape[1]
    noise_R1 = noise_R[:, None]
    if vocab <= ONE_LEVEL:
        token_R1 = _find_share(p_RV.cumsum(1), noise_R1)[0]
        return token_R1[:, 0], p_RV.gather(1, token_R1).log_()[:, 0]
    classes = 16 * math.ceil(vocab**0.5 / 16)  # √V, rounded up to a multiple of 16
    in_full_rows = vocab // classes * classes  # tokens; the last row of the (…, classes) table may be incomplete
    mass_RC = p_RV[:, :in_full_rows].unflatten(1, (-1, classes)).sum(1)
    mass_RC[:, : vocab - in_full_rows] += p_RV[:, in_full_rows:]
    class_R1, mass_above_R1 = _find_share(mass_RC.cumsum(1), noise_R1)
    members = class_R1 + torch.arange(0, vocab, classes, device=p_RV.device)
    member_p = p_RV.gather(1, members.clamp(max=vocab - 1)).masked_fill_(members >= vocab, 0.0)
    # where the target lies within the class is as good as fresh noise: the token needs no second random number
    share_within_R1 = 1 - mass_above_R1 / mass_RC.gather(1, class_R1)
    token_R1 = class_R1 + classes * _find_share(member_p.cumsum(1), share_within_R1)[0]
    return token_R1[:, 0], p_RV.gather(1, token_R1).log_()[:, 0]


def _find_share(cumulative_RN: Tensor, noise_R1: Tensor) -> tuple[Tensor, Tensor]:
    """Index i of the entry that holds the share `noise_R1` of the total, and the mass left above it within entry i.

    The target stays below the total, so an index of weight 0 is never drawn.
    """
    # clamped, because rounding can bring the share of the second level to 1 or out of [0, 1)
    target_R1 = noise_R1.clamp(0.0, 1 - 2**-23) * cumulative_RN[:, -1:]
    index_R1 = torch.searchsorted(cumulative_RN, target_R1, right=True).clamp_(max=cumulative_RN.shape[1] - 1)
    return index_R1, cumulative_RN.gather(1, index_R1) - target_R1


class ModelDecoder:
    """The same interface through the model's own forward and cache, for architectures `Decoder` does not know."""

    def __init__(self, model: nn.Module):
        self.model: Any = model
        self.mask_RT: Tensor | None = None

    def start(self, prompts: Sequence[list[int]], group: int, device: torch.device) -> tuple[Tensor, ModelDecoder]:
        """Run left-padded prompts once per row. The cache is this object."""
        width = max(map(len, prompts))
        # padded on the left: the last column then holds every prompt's last token, whose logits are wanted
        tokens_BT = torch.tensor([[*([0] * (width - len(p))), *p] for p in prompts], device=device)
        mask_BT = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
        tokens_RT = tokens_BT.repeat_interleave(group, 0)
        self.mask_RT = mask_BT.repeat_interleave(group, 0)
        position = (self.mask_RT.cumsum(1) - 1).clamp(min=0)
        out = self.model(input_ids=tokens_RT, attention_mask=self.mask_RT, position_ids=position, use_cache=True)
        self.cache = out.past_key_values
        return out.logits[::group, -1], self

    def logits(self, x: Tensor) -> Tensor:
        return x  # `start` and `step` return logits already

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
        return 1, 0  # every row has a copy of its prompt anyway
