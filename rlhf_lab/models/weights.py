"""How the weights of a model that is not trained as a whole are stored: `model.weights`.

    float32    as they are
    bfloat16   matrices in two bytes a number; norms, biases and a scalar head stay float32
    nf4        the linear layers of the blocks in four bits (NF4, arXiv:2305.14314: 64 numbers share a scale of a byte,
               4.1 bits a number) where their inputs are a multiple of 64, all other matrices in bfloat16

A model that is stored in less than float32 computes under bfloat16 autocast, where matrices are rounded to bfloat16 in
any case: storing them so changes nothing but the embeddings, and those not where the files are bfloat16 themselves. The
residual stream stays float32. What is trained beside it, an adapter or a scalar head, is float32.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from rlhf_lab.core.errors import OPTIONAL, ConfigError, MissingDependency
from rlhf_lab.models.divided import blocks, compute_in
from rlhf_lab.models.experts import experts
from rlhf_lab.models.settings import Stored

HEAD = "score"
"""Name of a reward model's scalar head."""
STORED = "_rlhf_lab_stored"
"""Key in a model's `__dict__`; see `divided.ROOT`."""
EARLIER = "earlier"
"""Key in the `__dict__` of a layer; see `products`."""
BLOCK = 64
"""Numbers that share a scale in NF4."""


def store(model: nn.Module, weights: Stored, device: str) -> nn.Module:
    """Move a model to a device with its weights stored as `weights` says, in place; below float32 they are frozen.

    Raises ConfigError for `nf4` with layers that are no `nn.Linear` or with experts, and MissingDependency without
    bitsandbytes.
    """
    if weights == "float32":
        return model.to(device)
    model.requires_grad_(False)
    if weights == "nf4":
        _store_blocks_in_four_bits(model, device)
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.register_forward_hook(_as_float32)
    _round_matrices(model)
    mark_as_stored(model, weights)
    return model.to(device)


def mark_as_stored(model: nn.Module, weights: Stored) -> None:
    """Note how a model's weights are stored; below float32 all its passes are under bfloat16 autocast."""
    if weights == "float32":
        return
    compute_in(model, torch.bfloat16)
    model.__dict__[STORED] = weights
    if weights == "nf4":
        # by this attribute peft knows what its adapters lie on
        model.__dict__["is_loaded_in_4bit"] = True


def stored_as(model: nn.Module) -> Stored:
    """How a model's frozen weights are stored."""
    return model.__dict__.get(STORED, "float32")


def weight_of(layer: nn.Module) -> Tensor:
    """The weight of a linear layer as numbers, in the layout of its own: of four bits, in bfloat16."""
    numbers = numbers_of(layer)
    for a, b in products(layer):
        numbers = numbers + _in_layout(layer, b @ a).to(numbers.dtype)
    return numbers


def _in_layout(layer: nn.Module, product: Tensor) -> Tensor:
    """A product of (outputs, inputs) in the layout of a layer's weight: that of GPT-2's is (inputs, outputs)."""
    return product.T if isinstance(layer, Conv1D) else product


def numbers_of(layer: nn.Module) -> Tensor:
    """The weight itself, without what adapters of earlier stages add to one of four bits."""
    weight: Any = layer.weight
    if not is_packed(weight):
        return weight
    numbers: Tensor = _bitsandbytes().functional.dequantize_4bit(weight.data, weight.quant_state)
    return numbers.to(torch.bfloat16)


def stored_tensors(parameter: Tensor) -> list[Tensor]:
    """All that the values of a parameter follow from: of four bits also the scales, bytes with scales of their own."""
    state: Any = getattr(parameter, "quant_state", None)
    if state is None:
        return [parameter.detach()]
    scales = [state.absmax] if state.state2 is None else [state.absmax, state.offset, state.state2.absmax]
    return [parameter.detach(), *scales]


def products(layer: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """What adapters of earlier stages add to a layer beside its weight: (A, s·B) of each, see `lora.py`."""
    return list(layer.__dict__.get(EARLIER, ()))


def has_products(model: nn.Module) -> bool:
    return any(EARLIER in module.__dict__ for module in model.modules())


def add_product(layer: nn.Module, a: Tensor, b: Tensor) -> None:
    """Add B·A to a frozen layer. A sum that was packed again would lose it: it is smaller than half a level of NF4."""
    weight: Any = layer.weight
    if is_packed(weight):
        add_beside(layer, a, b)
    else:
        product = b.to(weight.device, torch.float32) @ a.to(weight.device, torch.float32)
        weight.data += _in_layout(layer, product).to(weight.dtype)


def add_beside(layer: nn.Module, a: Tensor, b: Tensor) -> None:
    """Let a layer compute x·(W + B·A)ᵀ without touching W, which other models may share."""
    weight: Any = layer.weight
    if _with_products not in layer._forward_hooks.values():
        layer.register_forward_hook(_with_products)
    factors = (a.to(weight.device, torch.float32), b.to(weight.device, torch.float32))
    layer.__dict__[EARLIER] = [*products(layer), factors]


def _with_products(layer: nn.Module, inputs: tuple[Tensor, ...], y: Tensor) -> Tensor:
    x = inputs[0]
    for a, b in products(layer):
        y = y + nn.functional.linear(nn.functional.linear(x, a.to(x.dtype)), b.to(x.dtype))
    return y


def is_packed(parameter: Tensor | None) -> bool:
    """Whether a parameter holds two numbers in each of its bytes."""
    return getattr(parameter, "quant_state", None) is not None


def has_packed_weight(layer: nn.Module) -> bool:
    return is_packed(layer._parameters.get("weight"))


def count(parameter: Tensor) -> int:
    """Numbers in a parameter, also where two are packed into a byte."""
    return 2 * parameter.numel() if is_packed(parameter) else parameter.numel()


def unpacked(layer: Any, weight: Tensor) -> nn.Linear:
    """An ordinary linear layer with this weight and the layer's bias."""
    outputs, inputs = weight.shape
    plain = nn.Linear(inputs, outputs, bias=layer.bias is not None, device="meta")
    plain.weight = nn.Parameter(weight, requires_grad=False)
    plain.bias = layer.bias
    return plain.train(layer.training)


def scalar_head(model: nn.Module, states: Tensor) -> Tensor:
    """What a reward model's head makes of hidden states, (…, d) → (…, outputs), in float32 under any autocast.

    A score in bfloat16 would have three digits, and replies of nearly the same worth the same one.
    """
    with torch.autocast(states.device.type, enabled=False):
        score: Any = model.score
        outputs: Tensor = score(states.to(score.weight.dtype))
        return outputs.float()


def _round_matrices(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if is_packed(parameter):
            continue
        is_rounded = parameter.ndim >= 2 and not name.startswith(f"{HEAD}.")
        parameter.data = parameter.data.to(torch.bfloat16 if is_rounded else torch.float32)


def _as_float32(embedding: nn.Module, inputs: tuple[Tensor, ...], embedded: Tensor) -> Tensor:
    """Embeddings start the residual stream, which is float32.

    Gemma multiplies them by √d, rounded to the weights' dtype: it is done again with all digits.
    """
    scale = getattr(embedding, "embed_scale", None)
    if scale is None:
        return embedded.float()
    weight: Any = embedding.weight
    return nn.functional.embedding(inputs[0], weight).float() * scale.float()


def _as_bfloat16(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """What an ordinary layer gets from autocast: the result has the dtype of the input."""
    return (inputs[0].to(torch.bfloat16), *inputs[1:])


def _store_blocks_in_four_bits(model: nn.Module, device: str) -> None:
    """Put layers of four bits in place of the blocks' linear layers, one after another."""
    if experts(model):
        raise ConfigError(
            f"model.weights=nf4: {type(model).__name__} has experts, whose weights are no linear layers, and "
            "bitsandbytes packs nothing else; use model.weights=bfloat16"
        )
    linear_4bit = _bitsandbytes().nn.Linear4bit
    four_bits = _bitsandbytes().nn.Params4bit
    for block in blocks(model):
        for parent in list(block.modules()):
            for name, layer in list(parent.named_children()):
                if isinstance(layer, Conv1D):
                    raise ConfigError(
                        f"model.weights=nf4: {type(model).__name__} has layers that bitsandbytes does not pack "
                        "(Conv1D); use model.weights=bfloat16"
                    )
                # rows that end within a block are unpacked with the wrong scales on a CPU (bitsandbytes 0.50)
                if not isinstance(layer, nn.Linear) or layer.in_features % BLOCK:
                    continue
                packed = linear_4bit(
                    layer.in_features,
                    layer.out_features,
                    bias=layer.bias is not None,
                    compute_dtype=torch.bfloat16,
                    quant_type="nf4",
                    device="meta",
                )
                packed.bias = layer.bias
                # what is packed does not depend on whether the file was float32 or bfloat16
                weight = layer.weight.detach().to(torch.bfloat16)
                packed.weight = four_bits(weight, requires_grad=False, quant_type="nf4", blocksize=BLOCK).to(device)
                # some CPUs would have the bytes put into another order by the first pass, and adapters read them
                packed.support_avx512bf16_for_cpu = False
                packed.register_forward_pre_hook(_as_bfloat16)
                setattr(parent, name, packed.train(layer.training))


def _bitsandbytes() -> ModuleType:
    try:
        import bitsandbytes
    except ImportError as error:
        raise MissingDependency(*OPTIONAL["bitsandbytes"]) from error
    return bitsandbytes
