"""The log-probability function: policy, reference, old policy and sampler checks all call `token_logps`.

Only response positions go through the output head, so the prompt's logits are never computed. Rows are right-padded:
causal attention alone keeps padding out of every real token's context, and no attention mask is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from rlhf_lab.core import ranks
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.sharded import within
from rlhf_lab.models.shared_prompt import CAN_PACK, can_pack, hidden_states, within_vocabulary
from rlhf_lab.models.truncation import EVERYTHING, Truncation

KEPT_ENTRIES = 2**27  # maximum N·V probabilities kept for the backward pass; above this each chunk is recomputed
CHUNK_ENTRIES = 2**24  # N·V logits computed at a time, which bounds the temporaries of a large vocabulary
# A chunk of n tokens needs n multiplications per byte of a bfloat16 head. In the time in which a GPU reads a byte, it
# computes 150 to 300 of them, so smaller chunks of a large vocabulary would wait for memory.
CHUNK_TOKENS = 256
FEW_TOKENS = 32  # chunk size below which half-precision products would take more slices than they save


@dataclass(frozen=True)
class TokenLogps:
    """Log-probabilities (nats) of the response tokens of a batch of `rows` rows, concatenated, and their rows."""

    logps_N: torch.Tensor
    row_N: torch.Tensor
    rows: int

    def sum_B(self) -> torch.Tensor:
        """Return the log-probability of each entire response, nats."""
        return sum_rows(self.logps_N, self.row_N, self.rows)


def sum_rows(values_N: torch.Tensor, row_N: torch.Tensor, rows: int) -> torch.Tensor:
    """Return the sum of a per-token quantity over each row, (B,)."""
    return values_N.new_zeros(rows).index_add(0, row_N, values_N)


@dataclass(frozen=True)
class ResponseStates:
    """Hidden states before the response tokens of a batch, and the output head.

    Attributes:
        x_Nd: hidden state before each response token; for models without a linear head, logits.
        weight_Vd, bias_V: parameters of the head; None for models without a linear head.
        cap: cap of the logits; see `head_cap`.
    """

    x_Nd: torch.Tensor
    weight_Vd: torch.Tensor | None
    bias_V: torch.Tensor | None
    target_N: torch.Tensor
    row_N: torch.Tensor
    rows: int
    cap: float | None = None

    def logps(self, temperature: float = 1.0, truncation: Truncation = EVERYTHING) -> TokenLogps:
        """Return the log-probability of every response token at `temperature`, float32, differentiable.

        Args:
            truncation: restriction of the tokens that could have been sampled.
        """
        inputs = [self.x_Nd, self.weight_Vd, self.bias_V]
        if not torch.is_grad_enabled():
            # Detached inputs need no gradient, so the function keeps no probabilities for a backward pass.
            inputs = [None if tensor is None else tensor.detach() for tensor in inputs]
        logps_N = _LinearLogProb.apply(*inputs, self.target_N, 1.0 / temperature, truncation, self.cap)
        return TokenLogps(logps_N, self.row_N, self.rows)


def response_states(model: nn.Module, batch: TokenBatch) -> ResponseStates:
    """Run one forward pass of the backbone. Models without a linear head (`has_linear_head`) return logits."""
    return within(model, _response_states, model, batch)


def _response_states(model: nn.Module, batch: TokenBatch) -> ResponseStates:
    row_N, column_N = batch.targets()
    target_N = batch.tokens_BT[row_N, column_N]
    causal: Any = model
    if has_linear_head(model):
        head = causal.get_output_embeddings()
        x_Nd = hidden_states(causal.base_model, batch, row_N, column_N)
        weight_Vd = head.weight
        bias_V = getattr(head, "bias", None)
    else:  # the head scales its logits or has another form: use the logits of the model itself
        x_Nd = causal(input_ids=batch.tokens_BT, use_cache=False).logits[row_N, column_N - 1]
        return ResponseStates(x_Nd, None, None, target_N, row_N, len(batch.length_B))
    device = x_Nd.device.type
    if torch.is_autocast_enabled(device):
        # The backward pass runs outside autocast. Inputs are cast here, so that both passes compute in one dtype.
        dtype = torch.get_autocast_dtype(device)
        x_Nd = x_Nd.to(dtype)
        weight_Vd = weight_Vd.to(dtype)
    return ResponseStates(x_Nd, weight_Vd, bias_V, target_N, row_N, len(batch.length_B), head_cap(model))


def token_logps(
    model: nn.Module, batch: TokenBatch, *, temperature: float = 1.0, truncation: Truncation = EVERYTHING
) -> TokenLogps:
    """Return the log-probability of every response token under `model`, float32, differentiable."""
    return within(model, lambda: response_states(model, batch).logps(temperature, truncation))


def exact_kl(policy: nn.Module, reference: nn.Module, batch: TokenBatch, *, temperature: float = 1.0) -> torch.Tensor:
    """Return KL(policy ‖ reference) of each row in nats, (B,): Σ_t Σ_v π(v|s_t)·(log π(v|s_t) − log π_ref(v|s_t)).

    The sum over the vocabulary is exact at every visited state. Averaged over rows sampled from `policy`, it is an
    unbiased estimate of the sequence KL, with less variance than the log-ratio of the sampled tokens. It uses the
    distributions without top-k and top-p, which would give the models different supports and an infinite KL.
    """
    return within(policy, lambda: within(reference, _exact_kl, policy, reference, batch, temperature))


@torch.no_grad()
def _exact_kl(policy: nn.Module, reference: nn.Module, batch: TokenBatch, temperature: float) -> torch.Tensor:
    p = response_states(policy, batch)
    q = response_states(reference, batch)
    p_inputs = (p.x_Nd, p.weight_Vd, p.bias_V)
    q_inputs = (q.x_Nd, q.weight_Vd, q.bias_V)
    chunk_size = max(1, CHUNK_ENTRIES // _vocabulary(p.x_Nd, p.weight_Vd))
    chunks = [slice(start, start + chunk_size) for start in range(0, len(p.row_N), chunk_size)]
    # The logits are not assigned to a name, so those of one chunk are freed before the next are computed.
    kl_chunks = [
        _token_kl(
            _logits(*p_inputs, chunk, p.cap).mul_(1.0 / temperature),
            _logits(*q_inputs, chunk, q.cap).mul_(1.0 / temperature),
        )
        for chunk in chunks
    ]
    return sum_rows(torch.cat(kl_chunks), p.row_N, len(batch.length_B))


def _token_kl(z_NV: torch.Tensor, z_ref_NV: torch.Tensor) -> torch.Tensor:
    """Return Σ_v p(v)·(log p(v) − log q(v)) at each token, (N,), from the logits of both models."""
    log_p, log_q = z_NV.log_softmax(1), z_ref_NV.log_softmax(1)
    return (log_p.exp() * (log_p - log_q)).sum(1)


def _logits(
    x_Nd: torch.Tensor, weight_Vd: torch.Tensor | None, bias_V: torch.Tensor | None, chunk: slice, cap: float | None
) -> torch.Tensor:
    """Return x Wᵀ + b of the tokens in `chunk`, capped, (n, V), float32, as a new buffer that may be overwritten."""
    if weight_Vd is None:  # x are logits already
        return x_Nd[chunk].to(torch.float32, copy=True)
    z = (x_Nd[chunk] @ weight_Vd.T).float()
    if bias_V is not None:
        z.add_(bias_V)
    return z if cap is None else z.div_(cap).tanh_().mul_(cap)


def _vocabulary(x_Nd: torch.Tensor, weight_Vd: torch.Tensor | None) -> int:
    return x_Nd.shape[1] if weight_Vd is None else weight_Vd.shape[0]


def head_cap(model: nn.Module) -> float | None:
    """Return the cap of the logits z, cap·tanh(z/cap) (Gemma 2, arXiv:2408.00118, section 2); None without a cap."""
    config: Any = model.config
    cap: float | None = getattr(config.get_text_config(), "final_logit_softcapping", None)
    return cap


def capped(logits: torch.Tensor, cap: float | None) -> torch.Tensor:
    return logits if cap is None else (logits / cap).tanh() * cap


@torch.no_grad()
def has_linear_head(model: nn.Module) -> bool:
    """Return True if logits = head(backbone(x)) exactly, up to `head_cap`; checked once per model on a short input.

    The check replaces the head's logits by values up to ±100, because a cap or a scale hardly changes the small logits
    of an untrained model.
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
    """Evaluate `has_linear_head` on the main process, which may be the only one with values, for all processes."""
    is_linear: bool = ranks.on_main(lambda: within(model, has_linear_head, model))
    model._rlhf_lab_linear_head = is_linear  # type: ignore[assignment]
    return is_linear


def note_packing(model: nn.Module) -> None:
    """Try `can_pack` before a model is sharded; afterwards all processes would have to try it at the same time.

    The main process tries it, because it may be the only one with values. All processes must call this.
    """
    inside: set[nn.Module] = set()  # modules within a backbone, such as decoders: they are never used as backbones
    for backbone in model.modules():
        if backbone in inside:
            continue
        if isinstance(backbone, PreTrainedModel) and backbone.base_model is backbone:
            inside.update(backbone.modules())
            packs: bool = ranks.on_main(partial(within, model, can_pack, backbone))
            backbone.__dict__[CAN_PACK] = packs


def _logits_are_head_of_backbone(causal: Any) -> bool:
    """Return True if the head reads the backbone's output and nothing except the cap follows the head."""
    if causal.base_model is causal:  # no backbone is found under the name that its class states, as in Llama 4
        return False
    head = causal.get_output_embeddings()
    head_inputs: list[torch.Tensor] = []
    planted: list[torch.Tensor] = []

    def plant_logits(_: nn.Module, inputs: tuple[torch.Tensor, ...], logits: torch.Tensor) -> torch.Tensor:
        head_inputs.append(inputs[0])
        # a wide range shows scaling or capping after the head, which logits near 0 would hide
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
    expected = capped(planted[0], head_cap(causal))
    nothing_follows = torch.equal(logits.float(), expected.float())
    return nothing_follows and torch.allclose(head_inputs[0], hidden, atol=1e-5, rtol=1e-4)


def _add_product(total_Vd: torch.Tensor, dz_nV: torch.Tensor, x_nd: torch.Tensor) -> None:
    """Compute total += dzᵀ x in place. Half-precision inputs are multiplied as they are and summed in float32."""
    if dz_nV.dtype == total_Vd.dtype or len(x_nd) < FEW_TOKENS:
        total_Vd.addmm_(dz_nV.to(total_Vd.dtype).T, x_nd.to(total_Vd.dtype))
        return
    # On a GPU a float32 product takes ten times as long. Each slice of the vocabulary keeps its product no larger than
    # `dz`, and memory is planned for a float32 copy of `dz`.
    vocabulary = len(total_Vd)
    slice_size = max(1, dz_nV.numel() // x_nd.shape[1])
    for start in range(0, vocabulary, slice_size):
        tokens = slice(start, start + slice_size)
        total_Vd[tokens] += dz_nV[:, tokens].T @ x_nd


class _LinearLogProb(torch.autograd.Function):
    """log softmax(c(x Wᵀ + b)/τ)[target] with one N×V buffer instead of several; c is the cap or the identity.

    With p = softmax(z) and upstream gradient g per token: ∂/∂z = g·(onehot(target) − p), then one matmul each for x, W.
    The buffer holds z and is then overwritten with e = exp(z − max z); p = e/Σe is never stored. The slope of a cap is
    1 − tanh², so logits are recomputed in the backward pass. Without W, x are the logits.
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
        n = x_Nd.shape[0]
        vocabulary = _vocabulary(x_Nd, weight_Vd)
        ctx.chunk_size = max(CHUNK_TOKENS, CHUNK_ENTRIES // vocabulary)
        keep = cap is None and n * vocabulary <= KEPT_ENTRIES and any(ctx.needs_input_grad)
        logps = []
        kept_for_backward = []
        for start in range(0, n, ctx.chunk_size):
            chunk = slice(start, start + ctx.chunk_size)
            z = _logits(x_Nd, weight_Vd, bias_V, chunk, cap).mul_(inv_tau)
            if truncation:
                truncation.apply_(z, target_N[chunk])
            z.sub_(z.amax(1, keepdim=True))  # prevents overflow in exp; log softmax is unchanged
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
            # Chunks are summed in float32, because bfloat16 would lose small terms of a long sum.
            grad_w = torch.zeros_like(weight_Vd, dtype=torch.float32)
        if bias_V is not None and ctx.needs_input_grad[2]:
            grad_b = torch.zeros_like(bias_V)
        for i, start in enumerate(range(0, x_Nd.shape[0], ctx.chunk_size)):
            chunk = slice(start, start + ctx.chunk_size)
            slope = None
            if kept:
                e = kept[2 * i]
                total = kept[2 * i + 1]
            else:
                e = _logits(x_Nd, weight_Vd, bias_V, chunk, ctx.cap)
                if ctx.cap is not None:
                    slope = 1 - (e / ctx.cap).square_()
                e.mul_(ctx.inv_tau)
                if ctx.truncation:
                    ctx.truncation.apply_(e, target_N[chunk])
                e.sub_(e.amax(1, keepdim=True)).exp_()
                total = e.sum(1)
            g = grad_N[chunk].float() * ctx.inv_tau  # the logits were divided by τ, so their gradient is too
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
