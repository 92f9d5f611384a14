"""The one log-probability function: policy, reference, old policy and sampler checks all call `token_logps`.

Only reply positions go through the output head: the prompt's logits are never computed. Rows are right-padded, so
causal attention alone keeps padding out of every real token's context, and no attention mask is built.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from rlhf_lab.core import ranks
from rlhf_lab.models.divided import within
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.shared_prompt import CAN_PACK, can_pack, hidden_states, within_vocabulary
from rlhf_lab.models.truncation import EVERYTHING, Truncation

KEPT_ENTRIES = 2**27  # N·V probabilities kept for backward; above this each chunk is computed again
CHUNK_ENTRIES = 2**24  # of N·V logits computed at a time, which bounds the temporaries of a large vocabulary
# A chunk of n tokens makes n multiplications per byte of a bfloat16 head. A GPU makes 150 to 300 in the time in which
# it reads a byte, so smaller chunks of a large vocabulary would wait for its memory.
CHUNK_TOKENS = 256
FEW_TOKENS = 32  # of a chunk, for which products of half precision would take more slices than they save


@dataclass(frozen=True)
class TokenLogps:
    """Log-probabilities of the reply tokens of a batch, laid end to end.

    Attributes:
        logps_N: nats.
        row_N: the row each token belongs to.
        rows: B.
    """

    logps_N: torch.Tensor
    row_N: torch.Tensor
    rows: int

    def sum_B(self) -> torch.Tensor:
        """Log-probability of each whole reply, nats."""
        return sum_rows(self.logps_N, self.row_N, self.rows)


def sum_rows(values_N: torch.Tensor, row_N: torch.Tensor, rows: int) -> torch.Tensor:
    """Sum of a per-token quantity over each row, (B,)."""
    return values_N.new_zeros(rows).index_add(0, row_N, values_N)


@dataclass(frozen=True)
class ReplyStates:
    """What predicts the reply tokens of a batch: hidden states and the output head.

    Attributes:
        x_Nd: hidden state before each reply token (logits, for models without a plain linear head).
        weight_Vd, bias_V: of the head (None, for models without a plain linear head).
        target_N, row_N: the token, and the row it belongs to.
        rows: B.
        cap: of the logits; see `head_cap`.
    """

    x_Nd: torch.Tensor
    weight_Vd: torch.Tensor | None
    bias_V: torch.Tensor | None
    target_N: torch.Tensor
    row_N: torch.Tensor
    rows: int
    cap: float | None = None

    def logps(self, temperature: float = 1.0, truncation: Truncation = EVERYTHING) -> TokenLogps:
        """Log-probability of every reply token at `temperature`, float32, differentiable.

        Args:
            truncation: the tokens that could have been sampled.
        """
        inputs = [self.x_Nd, self.weight_Vd, self.bias_V]
        if not torch.is_grad_enabled():
            # A detached input needs no gradient, so the function keeps no probabilities for a backward pass.
            inputs = [None if tensor is None else tensor.detach() for tensor in inputs]
        logps_N = _LinearLogProb.apply(*inputs, self.target_N, 1.0 / temperature, truncation, self.cap)
        return TokenLogps(logps_N, self.row_N, self.rows)


def reply_states(model: nn.Module, batch: TokenBatch) -> ReplyStates:
    """One forward pass of the backbone. Models that do more than `has_linear_head` knows give logits."""
    return within(model, _reply_states, model, batch)


def _reply_states(model: nn.Module, batch: TokenBatch) -> ReplyStates:
    row_N, column_N = batch.targets()
    target_N = batch.tokens_BT[row_N, column_N]
    causal: Any = model
    if has_linear_head(model):
        head = causal.get_output_embeddings()
        x_Nd = hidden_states(causal.base_model, batch, row_N, column_N)
        weight_Vd = head.weight
        bias_V = getattr(head, "bias", None)
    else:  # a head that scales its logits, or does something else: take the model's own
        x_Nd = causal(input_ids=batch.tokens_BT, use_cache=False).logits[row_N, column_N - 1]
        return ReplyStates(x_Nd, None, None, target_N, row_N, len(batch.length_B))
    device = x_Nd.device.type
    if torch.is_autocast_enabled(device):
        # A backward pass runs outside autocast: cast here, and both passes of `_LinearLogProb` compute in its dtype.
        dtype = torch.get_autocast_dtype(device)
        x_Nd = x_Nd.to(dtype)
        weight_Vd = weight_Vd.to(dtype)
    return ReplyStates(x_Nd, weight_Vd, bias_V, target_N, row_N, len(batch.length_B), head_cap(model))


def token_logps(
    model: nn.Module, batch: TokenBatch, *, temperature: float = 1.0, truncation: Truncation = EVERYTHING
) -> TokenLogps:
    """Log-probability of every reply token under `model` at `temperature`, float32, differentiable."""
    return within(model, lambda: reply_states(model, batch).logps(temperature, truncation))


def exact_kl(policy: nn.Module, reference: nn.Module, batch: TokenBatch, *, temperature: float = 1.0) -> torch.Tensor:
    """KL(policy ‖ reference) of each row in nats, (B,): Σ_t Σ_v π(v|s_t)·(log π(v|s_t) − log π_ref(v|s_t)).

    Exact over the vocabulary at every visited state. Averaged over rows that were sampled from `policy` it is an
    unbiased estimate of the sequence KL with less variance than the log-ratio of the sampled tokens. It is of the whole
    distributions: top-k and top-p would give the two models different supports, and an infinite KL.
    """
    return within(policy, lambda: within(reference, _exact_kl, policy, reference, batch, temperature))


@torch.no_grad()
def _exact_kl(policy: nn.Module, reference: nn.Module, batch: TokenBatch, temperature: float) -> torch.Tensor:
    p = reply_states(policy, batch)
    q = reply_states(reference, batch)
    p_inputs = (p.x_Nd, p.weight_Vd, p.bias_V)
    q_inputs = (q.x_Nd, q.weight_Vd, q.bias_V)
    chunk_size = max(1, CHUNK_ENTRIES // _vocabulary(p.x_Nd, p.weight_Vd))
    kl_chunks = []
    for begin in range(0, len(p.row_N), chunk_size):
        chunk = slice(begin, begin + chunk_size)
        # The logits have no name here, so those of one chunk are freed before the next ones are computed.
        kl_chunks.append(
            _token_kl(
                _logits(*p_inputs, chunk, p.cap).mul_(1.0 / temperature),
                _logits(*q_inputs, chunk, q.cap).mul_(1.0 / temperature),
            )
        )
    return sum_rows(torch.cat(kl_chunks), p.row_N, len(batch.length_B))


def _token_kl(z_NV: torch.Tensor, z_ref_NV: torch.Tensor) -> torch.Tensor:
    """Σ_v p(v)·(log p(v) − log q(v)) at each token, (N,), from the logits of both models."""
    log_p, log_q = z_NV.log_softmax(1), z_ref_NV.log_softmax(1)
    return (log_p.exp() * (log_p - log_q)).sum(1)


def _logits(
    x_Nd: torch.Tensor, weight_Vd: torch.Tensor | None, bias_V: torch.Tensor | None, chunk: slice, cap: float | None
) -> torch.Tensor:
    """x Wᵀ + b of the tokens in `chunk`, capped, (n, V), float32: a buffer of its own that callers may overwrite."""
    if weight_Vd is None:  # x are logits already
        return x_Nd[chunk].to(torch.float32, copy=True)
    z = (x_Nd[chunk] @ weight_Vd.T).float()
    if bias_V is not None:
        z.add_(bias_V)
    return z if cap is None else z.div_(cap).tanh_().mul_(cap)


def _vocabulary(x_Nd: torch.Tensor, weight_Vd: torch.Tensor | None) -> int:
    return x_Nd.shape[1] if weight_Vd is None else weight_Vd.shape[0]


def head_cap(model: nn.Module) -> float | None:
    """What logits z are capped at, cap·tanh(z/cap) (Gemma 2, arXiv:2408.00118, section 2); None without a cap."""
    config: Any = model.config
    cap: float | None = getattr(config.get_text_config(), "final_logit_softcapping", None)
    return cap


def capped(logits: torch.Tensor, cap: float | None) -> torch.Tensor:
    return logits if cap is None else (logits / cap).tanh() * cap


@torch.no_grad()
def has_linear_head(model: nn.Module) -> bool:
    """True when logits = head(backbone(x)) exactly, capped as `head_cap` says; checked once per model on a short input.

    Logits of ±100 are put in place of the head's own: a cap or a scale hardly shows on those of an untrained model.
    """
    is_linear = getattr(model, "_rlhf_lab_linear_head", None)
    if is_linear is None:
        causal: Any = model
        training = model.training
        model.eval()
        is_linear = _logits_are_head_of_backbone(causal)
        model.train(training)
        causal._rlhf_lab_linear_head = is_linear
    return is_linear


def note_linear_head(model: nn.Module) -> bool:
    """`has_linear_head` of a model that only the main process may have the values of yet, known to all processes."""
    is_linear: bool = ranks.on_main(lambda: within(model, has_linear_head, model))
    model._rlhf_lab_linear_head = is_linear  # type: ignore[assignment]
    return is_linear


def note_packing(model: nn.Module) -> None:
    """Try `can_pack` before a model is divided: afterwards processes would have to agree on when to try.

    The main process tries, which may be the only one that has the values yet. All processes must call this.
    """
    inside: set[nn.Module] = set()  # of a backbone: decoders and vision towers are never asked by themselves
    for backbone in model.modules():
        if backbone in inside:
            continue
        if isinstance(backbone, PreTrainedModel) and backbone.base_model is backbone:
            inside.update(backbone.modules())
            packs: bool = ranks.on_main(partial(within, model, can_pack, backbone))
            backbone.__dict__[CAN_PACK] = packs


def _logits_are_head_of_backbone(causal: Any) -> bool:
    """Whether the head reads what the backbone gives, and nothing but the cap follows it."""
    head = causal.get_output_embeddings()
    head_inputs: list[torch.Tensor] = []
    planted: list[torch.Tensor] = []

    def plant_logits(_: nn.Module, inputs: tuple[torch.Tensor, ...], logits: torch.Tensor) -> torch.Tensor:
        head_inputs.append(inputs[0])
        wide_range = torch.linspace(-100, 100, logits.numel(), device=logits.device)
        planted.append(wide_range.view_as(logits).to(logits))
        return planted[0]

    ids = within_vocabulary(torch.arange(4, device=head.weight.device), causal)[None]
    hook = head.register_forward_hook(plant_logits)
    try:
        logits = causal(input_ids=ids, use_cache=False).logits
    finally:
        hook.remove()
    hidden = causal.base_model(input_ids=ids, use_cache=False).last_hidden_state
    if not head_inputs or head_inputs[0].shape != hidden.shape:
        return False
    nothing_follows = torch.equal(logits.float(), capped(planted[0], head_cap(causal)).float())
    return nothing_follows and torch.allclose(head_inputs[0], hidden, atol=1e-5, rtol=1e-4)


def _add_product(total_Vd: torch.Tensor, dz_nV: torch.Tensor, x_nd: torch.Tensor) -> None:
    """total += dzᵀ x, in place. Half precision is multiplied as it is, and added up in float32."""
    if dz_nV.dtype == total_Vd.dtype or len(x_nd) < FEW_TOKENS:
        total_Vd.addmm_(dz_nV.to(total_Vd.dtype).T, x_nd.to(total_Vd.dtype))
        return
    # On a GPU a float32 product takes ten times as long. Slices of the vocabulary keep each product no larger than
    # `dz`, whose float32 copy, made before, is what memory is planned for.
    vocabulary = len(total_Vd)
    slice_size = max(1, dz_nV.numel() // x_nd.shape[1])
    for begin in range(0, vocabulary, slice_size):
        tokens = slice(begin, begin + slice_size)
        total_Vd[tokens] += dz_nV[:, tokens].T @ x_nd


class _LinearLogProb(torch.autograd.Function):
    """log softmax(c(x Wᵀ + b)/τ)[target] with one N×V buffer where autograd keeps several; c caps, or is the identity.

    With p = softmax(z) and upstream gradient g per token: ∂/∂z = g·(onehot(target) − p), then one matmul each for x, W.
    The buffer holds z, then e = exp(z − max z), overwritten in place; p = e/Σe is never formed. A cap's slope is
    1 − tanh²: logits are then computed again in the backward pass. Without W, x are the logits.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_Nd: Any,
        weight_Vd: Any,
        bias_V: Any,
        target_N: Any,
        inv_tau: float,
        truncation: Truncation,
        cap: float | None = None,
    ) -> torch.Tensor:
        n, vocabulary = x_Nd.shape[0], _vocabulary(x_Nd, weight_Vd)
        ctx.chunk_size = max(CHUNK_TOKENS, CHUNK_ENTRIES // vocabulary)
        keep = cap is None and n * vocabulary <= KEPT_ENTRIES and any(ctx.needs_input_grad)
        logps = []
        kept_for_backward = []
        for begin in range(0, n, ctx.chunk_size):
            chunk = slice(begin, begin + ctx.chunk_size)
            z = _logits(x_Nd, weight_Vd, bias_V, chunk, cap).mul_(inv_tau)
            if truncation:
                truncation.apply_(z, target_N[chunk])
            z.sub_(z.amax(1, keepdim=True))  # exp cannot overflow, and log softmax does not change
            target_z = z.gather(1, target_N[chunk, None])[:, 0]  # a copy: exp_ below overwrites z
            total = z.exp_().sum(1)
            logps.append(target_z - total.log())
            if keep:
                kept_for_backward += [z, total]
        ctx.save_for_backward(x_Nd, weight_Vd, bias_V, target_N, *kept_for_backward)
        ctx.inv_tau = inv_tau
        ctx.truncation = truncation
        ctx.cap = cap
        return torch.cat(logps) if logps else torch.zeros(0, device=x_Nd.device)

    @staticmethod
    def backward(ctx: Any, grad_N: torch.Tensor) -> Any:
        x_Nd, weight_Vd, bias_V, target_N, *kept = ctx.saved_tensors
        grad_x = torch.empty_like(x_Nd)
        grad_w = grad_b = None
        if ctx.needs_input_grad[1]:
            # Chunks are added up in float32: bfloat16 would lose small terms of a long sum.
            grad_w = torch.zeros_like(weight_Vd, dtype=torch.float32)
        if bias_V is not None and ctx.needs_input_grad[2]:
            grad_b = torch.zeros_like(bias_V)
        for i, begin in enumerate(range(0, x_Nd.shape[0], ctx.chunk_size)):
            chunk = slice(begin, begin + ctx.chunk_size)
            slope = None
            if kept:
                e, total = kept[2 * i], kept[2 * i + 1]
            else:
                e = _logits(x_Nd, weight_Vd, bias_V, chunk, ctx.cap)
                if ctx.cap is not None:
                    slope = 1 - (e / ctx.cap).square_()
                e.mul_(ctx.inv_tau)
                if ctx.truncation:
                    ctx.truncation.apply_(e, target_N[chunk])
                e.sub_(e.amax(1, keepdim=True)).exp_()
                total = e.sum(1)
            g = grad_N[chunk].float() * ctx.inv_tau  # z has been divided by τ, so its gradient is too
            dz = e * (-g / total)[:, None]  # −g·p
            dz.scatter_add_(1, target_N[chunk, None], g[:, None])  # + g·onehot(target)
            if slope is not None:
                dz.mul_(slope)
            if weight_Vd is None:
                grad_x[chunk] = dz
                continue
            if grad_b is not None:
                grad_b += dz.sum(0).to(grad_b.dtype)
            dz = dz.to(weight_Vd.dtype)
            grad_x[chunk] = dz @ weight_Vd
            if grad_w is not None:
                _add_product(grad_w, dz, x_Nd[chunk])
        if grad_w is not None:
            grad_w = grad_w.to(weight_Vd.dtype)
        return grad_x, grad_w, grad_b, None, None, None, None
