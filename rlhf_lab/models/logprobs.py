"""The one log-probability function: policy, reference, old policy and sampler checks all call `token_logps`.

Only reply positions go through the output head: the prompt's logits are never computed. Rows are right-padded, so
causal attention alone keeps padding out of every real token's context, and no attention mask is built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from rlhf_lab.models.divided import within
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.shared_prompt import hidden_states, within_vocabulary

KEPT_ENTRIES = 2**27  # N·V probabilities kept for backward; above this each chunk is computed again
CHUNK_ENTRIES = 2**24


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
        weight_Vd, bias_V: of the head (identity, for models without a plain linear head).
        target_N, row_N: the token, and the row it belongs to.
        rows: B.
    """

    x_Nd: torch.Tensor
    weight_Vd: torch.Tensor
    bias_V: torch.Tensor | None
    target_N: torch.Tensor
    row_N: torch.Tensor
    rows: int

    def logps(self, temperature: float = 1.0) -> TokenLogps:
        """Log-probability of every reply token at `temperature`, float32, differentiable."""
        inputs = [self.x_Nd, self.weight_Vd, self.bias_V]
        if not torch.is_grad_enabled():  # nothing is then kept for a backward pass
            inputs = [None if part is None else part.detach() for part in inputs]
        logps_N = _LinearLogProb.apply(*inputs, self.target_N, 1.0 / temperature)
        return TokenLogps(logps_N, self.row_N, self.rows)


def reply_states(model: nn.Module, batch: TokenBatch) -> ReplyStates:
    """One forward pass of the backbone. Models that do more than a linear head (see `has_linear_head`) give logits."""
    return within(model, _reply_states, model, batch)


def _reply_states(model: nn.Module, batch: TokenBatch) -> ReplyStates:
    row_N, column_N = batch.targets()
    target_N = batch.tokens_BT[row_N, column_N]
    causal: Any = model
    if has_linear_head(model):
        head = causal.get_output_embeddings()
        x_Nd = hidden_states(causal.base_model, batch, row_N, column_N)
        weight_Vd, bias_V = head.weight, getattr(head, "bias", None)
    else:
        x_Nd = causal(input_ids=batch.tokens_BT, use_cache=False).logits[row_N, column_N - 1]
        weight_Vd, bias_V = torch.eye(x_Nd.shape[1], dtype=x_Nd.dtype, device=x_Nd.device), None
    device = x_Nd.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        x_Nd, weight_Vd = x_Nd.to(dtype), weight_Vd.to(dtype)
    return ReplyStates(x_Nd, weight_Vd, bias_V, target_N, row_N, len(batch.length_B))


def token_logps(model: nn.Module, batch: TokenBatch, *, temperature: float = 1.0) -> TokenLogps:
    """Log-probability of every reply token under `model` at `temperature`, float32, differentiable."""
    return within(model, lambda: reply_states(model, batch).logps(temperature))


def exact_kl(policy: nn.Module, reference: nn.Module, batch: TokenBatch, *, temperature: float = 1.0) -> torch.Tensor:
    """KL(policy ‖ reference) of each row in nats, (B,): Σ_t Σ_v π(v|s_t)·(log π(v|s_t) − log π_ref(v|s_t)).

    Exact over the vocabulary at every visited state. Averaged over rows that were sampled from `policy` it is an
    unbiased estimate of the sequence KL with less variance than the log-ratio of the sampled tokens.
    """
    return within(policy, lambda: within(reference, _exact_kl, policy, reference, batch, temperature))


@torch.no_grad()
def _exact_kl(policy: nn.Module, reference: nn.Module, batch: TokenBatch, temperature: float) -> torch.Tensor:
    states = reply_states(policy, batch), reply_states(reference, batch)
    p, q = ((x.x_Nd, x.weight_Vd, x.bias_V) for x in states)
    row_N = states[0].row_N
    chunk = max(1, CHUNK_ENTRIES // p[1].shape[0])
    kl_N = torch.cat(
        [
            _kl_rows(_logits(*p, part, 1.0 / temperature), _logits(*q, part, 1.0 / temperature))
            for part in (slice(begin, begin + chunk) for begin in range(0, len(row_N), chunk))
        ]
    )
    return sum_rows(kl_N, row_N, len(batch.length_B))


def _kl_rows(z_NV: torch.Tensor, z_ref_NV: torch.Tensor) -> torch.Tensor:
    log_p, log_q = z_NV.log_softmax(1), z_ref_NV.log_softmax(1)
    return (log_p.exp() * (log_p - log_q)).sum(1)


def _logits(
    x_Nd: torch.Tensor, weight_Vd: torch.Tensor, bias_V: torch.Tensor | None, part: slice, inv_tau: float
) -> torch.Tensor:
    z = (x_Nd[part] @ weight_Vd.T).float()
    return (z if bias_V is None else z.add_(bias_V)).mul_(inv_tau)


@torch.no_grad()
def has_linear_head(model: nn.Module) -> bool:
    """True when logits = head(backbone(x)) exactly, checked once per model on a short input.

    Logits of ±100 are put in place of the head's own: a cap or a scale hardly shows on those of an untrained model.
    """
    known = getattr(model, "_rlhf_lab_linear_head", None)
    if known is None:
        causal: Any = model
        training = model.training
        model.eval()
        known = _head_is_all(causal)
        model.train(training)
        causal._rlhf_lab_linear_head = known
    return known


def _head_is_all(causal: Any) -> bool:
    """Whether the head reads what the backbone gives, and nothing follows it."""
    head, planted, read = causal.get_output_embeddings(), [], []

    def plant(_: nn.Module, inputs: tuple[torch.Tensor, ...], logits: torch.Tensor) -> torch.Tensor:
        read.append(inputs[0])
        planted.append(torch.linspace(-100, 100, logits.numel(), device=logits.device).view_as(logits).to(logits))
        return planted[0]

    ids = within_vocabulary(torch.arange(4, device=head.weight.device), causal)[None]
    hook = head.register_forward_hook(plant)
    try:
        logits = causal(input_ids=ids, use_cache=False).logits
    finally:
        hook.remove()
    hidden = causal.base_model(input_ids=ids, use_cache=False).last_hidden_state
    if not read or read[0].shape != hidden.shape:
        return False
    return torch.equal(logits.float(), planted[0].float()) and torch.allclose(read[0], hidden, atol=1e-5, rtol=1e-4)


class _LinearLogProb(torch.autograd.Function):
    """log softmax((x Wᵀ + b)/τ)[target] with one N×V buffer where autograd keeps several.

    With p = softmax(z) and upstream gradient g per token: ∂/∂z = g·(onehot(target) − p), then one matmul each for x, W.
    """

    @staticmethod
    def forward(ctx: Any, x_Nd: Any, weight_Vd: Any, bias_V: Any, target_N: Any, inv_tau: float) -> torch.Tensor:
        n, vocab = x_Nd.shape[0], weight_Vd.shape[0]
        ctx.chunk = max(1, CHUNK_ENTRIES // vocab)
        keep = n * vocab <= KEPT_ENTRIES and any(ctx.needs_input_grad)
        logps, kept = [], []
        for begin in range(0, n, ctx.chunk):
            part = slice(begin, begin + ctx.chunk)
            z = _logits(x_Nd, weight_Vd, bias_V, part, inv_tau)
            z.sub_(z.amax(1, keepdim=True))
            target_z = z.gather(1, target_N[part, None])[:, 0]
            total = z.exp_().sum(1)
            logps.append(target_z - total.log())
            if keep:
                kept += [z, total]
        ctx.save_for_backward(x_Nd, weight_Vd, bias_V, target_N, *kept)
        ctx.inv_tau = inv_tau
        return torch.cat(logps) if logps else torch.zeros(0, device=x_Nd.device)

    @staticmethod
    def backward(ctx: Any, grad_N: torch.Tensor) -> Any:
        x_Nd, weight_Vd, bias_V, target_N, *kept = ctx.saved_tensors
        grad_x, grad_w, grad_b = torch.empty_like(x_Nd), None, None
        if ctx.needs_input_grad[1]:
            grad_w = torch.zeros_like(weight_Vd, dtype=torch.float32)
        if bias_V is not None and ctx.needs_input_grad[2]:
            grad_b = torch.zeros_like(bias_V)
        for i, begin in enumerate(range(0, x_Nd.shape[0], ctx.chunk)):
            part = slice(begin, begin + ctx.chunk)
            if kept:
                e, total = kept[2 * i], kept[2 * i + 1]
            else:
                e = _logits(x_Nd, weight_Vd, bias_V, part, ctx.inv_tau)
                e.sub_(e.amax(1, keepdim=True)).exp_()
                total = e.sum(1)
            g = grad_N[part].float() * ctx.inv_tau
            dz = e * (-g / total)[:, None]
            dz.scatter_add_(1, target_N[part, None], g[:, None])
            if grad_b is not None:
                grad_b += dz.sum(0).to(grad_b.dtype)
            dz = dz.to(weight_Vd.dtype)
            grad_x[part] = dz @ weight_Vd
            if grad_w is not None:
                grad_w.addmm_(dz.float().T, x_Nd[part].float())
        return grad_x, None if grad_w is None else grad_w.to(weight_Vd.dtype), grad_b, None, None
