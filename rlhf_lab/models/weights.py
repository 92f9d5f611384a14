"""Storage of the weights of a model that is not fully trained: `model.weights`.

    float32    unchanged
    bfloat16   matrices in two bytes per number; norms, biases and a scalar head stay float32
    nf4        linear layers of the blocks in four bits (NF4, arXiv:2305.14314: 64 numbers share a scale of one byte,
               4.1 bits per number) if their input size is a multiple of 64; all other matrices in bfloat16

A model stored in less than float32 computes under bfloat16 autocast, which rounds matrices to bfloat16 anyway. Storing
them in bfloat16 therefore changes only the embeddings, and not even those if the files are bfloat16. The residual
stream stays float32. The trained parameters of such a model, an adapter or a scalar head, are float32.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from rlhf_lab.core.errors import ConfigError, import_optional
from rlhf_lab.models.settings import Stored
from rlhf_lab.models.sharded import blocks, compute_in

HEAD = "score"
"""Name of the scalar head of a reward model."""
STORED = "_rlhf_lab_stored"
"""Key in a model's `__dict__` for how its weights are stored (float32, bfloat16 or nf4); see `sharded.ROOT`."""
EARLIER = "earlier"
"""Key in a layer's `__dict__` for adapter products of earlier stages; see `products`."""
BLOCK = 64
"""Number of weights that share a scale in NF4."""


def store(model: nn.Module, weights: Stored, device: str) -> nn.Module:
    """Move a model to a device and store its weights as `weights`, in place; below float32 they are frozen.

    Raises ConfigError for `nf4` with experts or with layers other than `nn.Linear`, and MissingDependency without
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
    """Record the storage of a model's weights; below float32 all its passes run under bfloat16 autocast."""
    if weights == "float32":
        return
    compute_in(model, torch.bfloat16)
    model.__dict__[STORED] = weights
    if weights == "nf4":
        # peft reads this attribute to choose the class of its adapter layers
        model.__dict__["is_loaded_in_4bit"] = True


def stored_as(model: nn.Module) -> Stored:
    """Return how a model's frozen weights are stored: float32, bfloat16 or nf4."""
    return model.__dict__.get(STORED, "float32")


def weight_of(layer: nn.Module) -> Tensor:
    """Return the weight of a linear layer in its own layout, dequantised to bfloat16 if it has four bits."""
    numbers = numbers_of(layer)
    return sum((_in_layout(layer, b @ a).to(numbers.dtype) for a, b in products(layer)), start=numbers)


def _in_layout(layer: nn.Module, product: Tensor) -> Tensor:
    """Return a product (outputs, inputs) in the layout of a layer's weight, which is (inputs, outputs) in GPT-2."""
    return product.T if isinstance(layer, Conv1D) else product


def numbers_of(layer: nn.Module) -> Tensor:
    """Return the weight without the adapter products that earlier stages added to a 4-bit layer."""
    weight: Any = layer.weight
    if not is_packed(weight):
        return weight
    numbers: Tensor = import_optional("bitsandbytes").functional.dequantize_4bit(weight.data, weight.quant_state)
    return numbers.to(torch.bfloat16)


def stored_tensors(parameter: Tensor) -> list[Tensor]:
    """Return all tensors that determine a parameter's values; for 4-bit weights also both levels of scales."""
    state: Any = getattr(parameter, "quant_state", None)
    if state is None:
        return [parameter.detach()]
    # with double quantisation, the scales have scales and an offset of their own
    scales = [state.absmax] if state.state2 is None else [state.absmax, state.offset, state.state2.absmax]
    return [parameter.detach(), *scales]


def products(layer: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Return the products (A, s·B) that adapters of earlier stages add to a layer's output, see `lora.py`."""
    return list(layer.__dict__.get(EARLIER, ()))


def add_product(layer: nn.Module, a: Tensor, b: Tensor) -> None:
    """Add B·A to a frozen layer. For 4-bit weights the product is kept separately.

    Packing the sum again would lose it, because the product is smaller than half a quantisation step of NF4.
    """
    weight: Any = layer.weight
    if is_packed(weight):
        add_parallel(layer, a, b)
    else:
        product = b.to(weight.device, torch.float32) @ a.to(weight.device, torch.float32)
        weight.data += _in_layout(layer, product).to(weight.dtype)


def add_parallel(layer: nn.Module, a: Tensor, b: Tensor) -> None:
    """Let a layer compute x·(W + B·A)ᵀ without changing W, which other models may share."""
    device: Any = layer.weight.device
    if _with_products not in layer._forward_hooks.values():
        layer.register_forward_hook(_with_products)
    layer.__dict__[EARLIER] = [*products(layer), (a.to(device, torch.float32), b.to(device, torch.float32))]


def _with_products(layer: nn.Module, inputs: tuple[Tensor, ...], y: Tensor) -> Tensor:
    x = inputs[0]
    for a, b in products(layer):
        low_rank = nn.functional.linear(x, a.to(x.dtype))
        y = y + nn.functional.linear(low_rank, b.to(x.dtype))
    return y


def is_packed(parameter: Tensor | None) -> bool:
    """Return True if a parameter stores two numbers in each byte."""
    return getattr(parameter, "quant_state", None) is not None


def has_packed_weight(layer: nn.Module) -> bool:
    return is_packed(layer._parameters.get("weight"))


def count(parameter: Tensor) -> int:
    """Return the number of values in a parameter, including those packed two to a byte."""
    return 2 * parameter.numel() if is_packed(parameter) else parameter.numel()


def unpacked(layer: Any, weight: Tensor) -> nn.Linear:
    """Return an ordinary linear layer with this weight and the layer's bias."""
    outputs, inputs = weight.shape
    unwrapped = nn.Linear(inputs, outputs, bias=layer.bias is not None, device="meta")
    unwrapped.weight = nn.Parameter(weight, requires_grad=False)
    unwrapped.bias = layer.bias
    return unwrapped.train(layer.training)


def scalar_head(model: nn.Module, states: Tensor) -> Tensor:
    """Apply a reward model's head to hidden states, (…, d) → (…, outputs), in float32 under any autocast.

    A score in bfloat16 would have three digits, so responses of similar quality would get the same score.
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
    """Return embeddings in float32, because they start the residual stream.

    Gemma multiplies them by √d, rounded to the dtype of the weights. The product is recomputed in float32.
    """
    scale = getattr(embedding, "embed_scale", None)
    if scale is None:
        return embedded.float()
    weight: Any = embedding.weight
    return nn.functional.embedding(inputs[0], weight).float() * scale.float()


def _as_bfloat16(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Cast the input as autocast does for ordinary layers: a 4-bit layer returns the dtype of its input."""
    return (inputs[0].to(torch.bfloat16), *inputs[1:])


def _store_blocks_in_four_bits(model: nn.Module, device: str) -> None:
    """Replace the linear layers of the blocks by 4-bit layers, one at a time."""
    if experts(model):
        raise ConfigError(
            f"model.weights=nf4: {type(model).__name__} has experts, whose weights are not linear layers, and "
            "bitsandbytes packs only linear layers; set model.weights=bfloat16"
        )
    four_bit = import_optional("bitsandbytes").nn
    for block in blocks(model):
        for parent in list(block.modules()):
            for name, layer in list(parent.named_children()):
                if isinstance(layer, Conv1D):
                    raise ConfigError(
                        f"model.weights=nf4: {type(model).__name__} has layers that bitsandbytes does not pack "
                        "(Conv1D); set model.weights=bfloat16"
                    )
                # on a CPU, bitsandbytes 0.50 unpacks rows that end within a block with the wrong scales
                if not isinstance(layer, nn.Linear) or layer.in_features % BLOCK:
                    continue
                packed = four_bit.Linear4bit(
                    layer.in_features,
                    layer.out_features,
                    bias=layer.bias is not None,
                    compute_dtype=torch.bfloat16,
                    quant_type="nf4",
                    device="meta",
                )
                packed.bias = layer.bias
                # cast first, so that the packed weight is the same for float32 and bfloat16 files
                weight = layer.weight.detach().to(torch.bfloat16)
                stored = four_bit.Params4bit(weight, requires_grad=False, quant_type="nf4", blocksize=BLOCK)
                packed.weight = stored.to(device)
                # on some CPUs the first pass would reorder the bytes, which adapters also read
                packed.support_avx512bf16_for_cpu = False
                packed.register_forward_pre_hook(_as_bfloat16)
                setattr(parent, name, packed.train(layer.training))


def experts(model: nn.Module) -> list[nn.Module]:
    """Return the modules that hold the weights of experts: 3-D tensors (expert, outputs, inputs), not linear layers.

    Adapters therefore apply to the attention only. The router's auxiliary loss is not used: transformers adds it to its
    own loss, which rlhf_lab does not compute.
    """

    def holds_experts(module: nn.Module) -> bool:
        return hasattr(module, "num_experts") and any(w.ndim == 3 for w in module.parameters(recurse=False))

    return [module for module in model.modules() if holds_experts(module)]


def compute_under_autocast(model: nn.Module) -> nn.Module:
    """Let experts compute in the dtype of autocast, which knows linear layers but not the grouped product of experts.

    Changes the model in place.
    """
    for module in experts(model):
        module.forward = partial(_experts_forward, module)
    return model


def _experts_forward(module: nn.Module, hidden: torch.Tensor, *routing: torch.Tensor) -> Any:
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device)
    weights = dict(module.named_parameters(recurse=False))
    if not torch.is_autocast_enabled(device) or all(weight.dtype == dtype for weight in weights.values()):
        # nothing to round: without autocast, or with weights that already have its dtype
        return type(module).forward(module, hidden, *routing)
    rounded = {name: weight.to(dtype) for name, weight in weights.items()}
    return torch.func.functional_call(module, rounded, (hidden, *routing))
