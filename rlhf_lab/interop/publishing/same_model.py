"""Whether published files are the saved model: the same numbers for one row of tokens."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_lab.core.errors import ArtifactError
from rlhf_lab.core.files import file_digest, read_json
from rlhf_lab.interop.publishing.model_files import Dtype
from rlhf_lab.models.build import load_policy, load_reward_model
from rlhf_lab.models.model_files import ADAPTER_WEIGHTS
from rlhf_lab.models.settings import Scratch

ROW_TOKENS = 16
"""Length of the row that both models read."""
TOLERANCE = 1e-5
"""Nats, or units of the head: the same weights in the same program differ by rounding at most."""
MERGE_TOLERANCE = 1e-3
"""The same for an adapter on its base, whose product is added in another order than when the model was saved."""


def require_same(saved: Path, published: Path, dtype: Dtype) -> float:
    """How far the published model is from the saved one on one row: 0 but for what `dtype` rounds off.

    Returns:
        The largest difference of a token's log-probability in nats, or of the score of a reward model.
    Raises:
        ArtifactError: the published model does not load, or its numbers are not those of the saved one with its
            weights in `dtype`.
    """
    original = _load(saved)
    exact = _numbers(original)
    if dtype == "bfloat16":
        _round(original)
    expected = _numbers(original)
    del original  # no two models in memory at a time
    found = _numbers(_load(published))
    _require_close(found, expected, TOLERANCE, published)
    return _distance(found, exact)


def require_same_adapter(saved: Path, published: Path) -> float:
    """The same for an adapter: on the base of the run it gives what the saved model, in which it is merged, gives."""
    adapter = saved / "adapter"
    if file_digest(adapter / ADAPTER_WEIGHTS) != file_digest(published / ADAPTER_WEIGHTS):
        raise ArtifactError(f"{published / ADAPTER_WEIGHTS} is not the adapter of {saved}; publish it again")
    outputs = _outputs(saved)
    expected = _numbers(_load(saved))
    # the base as this run read it, since the published name of the base may not be at hand
    found = _numbers(_load(adapter, outputs=outputs))
    _require_close(found, expected, MERGE_TOLERANCE, adapter)
    return _distance(found, expected)


def _outputs(folder: Path) -> int | None:
    """Numbers per reply of a reward model's head; None for a language model."""
    config: dict[str, Any] = read_json(folder / "config.json") or {}
    is_reward_model = any(name.endswith("ForSequenceClassification") for name in config.get("architectures") or [])
    if not is_reward_model:
        return None
    return len(config["id2label"]) if "id2label" in config else int(config.get("num_labels") or 1)


def _load(folder: Path, *, outputs: int | None = None) -> nn.Module:
    outputs = _outputs(folder) if outputs is None else outputs
    if outputs is None:
        return load_policy(folder, Scratch())
    return load_reward_model(folder, Scratch(), outputs=outputs)


@torch.no_grad()
def _numbers(model: Any) -> Tensor:
    """Log-probability of every token but the first of one row, or what the head says of it; float32.

    The row's tokens are spread over the vocabulary: no data are needed.
    """
    vocabulary = int(model.config.vocab_size)
    row = torch.linspace(0, vocabulary - 1, ROW_TOKENS).long()[None]
    if hasattr(model, "score"):
        hidden = model.base_model(input_ids=row, use_cache=False).last_hidden_state
        return model.score(hidden)[0].float().flatten()
    logits = model(input_ids=row, use_cache=False).logits[0, :-1].float()
    return torch.log_softmax(logits, -1).gather(1, row[0, 1:, None])[:, 0]


@torch.no_grad()
def _round(model: nn.Module) -> None:
    """Round every stored floating-point tensor to bfloat16; arithmetic stays float32."""
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(tensor.to(torch.bfloat16))


def _distance(one: Tensor, other: Tensor) -> float:
    # tokens that neither model allows are −∞ in both
    differences = torch.where(one == other, 0.0, one - other)
    return float(differences.abs().max())


def _require_close(found: Tensor, expected: Tensor, tolerance: float, published: Path) -> None:
    distance = _distance(found, expected) if found.shape == expected.shape else math.inf
    if not distance <= tolerance:
        raise ArtifactError(
            f"{published.name} gives other numbers than the saved model: they differ by {distance:.3g} on one row, "
            f"where {tolerance:g} is rounding. Nothing was published; check that the run was made by this version of "
            "the libraries (manifest.json)"
        )
