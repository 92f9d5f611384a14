"""Check that published files are the saved model: both have the same outputs for one row of tokens."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_lab.core.errors import ArtifactError
from rlhf_lab.core.files import file_digest, read_object
from rlhf_lab.interop.publishing.model_files import is_reward_model
from rlhf_lab.interop.publishing.provenance import Dtype
from rlhf_lab.models.build import load_policy, load_reward_model
from rlhf_lab.models.model_files import ADAPTER_WEIGHTS
from rlhf_lab.models.settings import Scratch

ROW_TOKENS = 16
"""Number of tokens of the row that both models read."""
TOLERANCE = 1e-5
"""Maximum difference in nats, or in units of a reward: the same weights in the same program differ by rounding only."""
MERGE_TOLERANCE = 1e-3
"""Tolerance for an adapter on its base. Merging adds the adapter's product in another order, so rounding is larger."""


def require_same(saved: Path, published: Path, dtype: Dtype) -> float:
    """Return the distance between the published and the saved model on one row: 0 except for the rounding to `dtype`.

    Returns:
        The maximum difference of a token's log-probability in nats, or of a reward model's score.
    Raises:
        ArtifactError: the published model does not load, or its outputs differ from those of the saved model with
            weights in `dtype`.
    """
    original = _load(saved)
    exact = _numbers(original)
    if dtype == "bfloat16":
        _round(original)
    expected = _numbers(original)
    del original  # only one model is in memory at a time
    found = _numbers(_load(published))
    _require_close(found, expected, TOLERANCE, published)
    return _distance(found, exact)


def require_same_adapter(saved: Path, published: Path) -> float:
    """Return the distance between the adapter on the run's base and the saved model, in which the adapter is merged."""
    adapter = saved / "adapter"
    if file_digest(adapter / ADAPTER_WEIGHTS) != file_digest(published / ADAPTER_WEIGHTS):
        raise ArtifactError(f"{published / ADAPTER_WEIGHTS} is not the adapter of {saved}; publish it again")
    outputs = _outputs(saved)
    expected = _numbers(_load(saved))
    # The base is loaded from the run's location, because its published name may not be available here.
    found = _numbers(_load(adapter, outputs=outputs))
    _require_close(found, expected, MERGE_TOLERANCE, adapter)
    return _distance(found, expected)


def _outputs(directory: Path) -> int | None:
    """Return the number of outputs of a reward model's head; None for a language model."""
    if not is_reward_model(directory):
        return None
    config: dict[str, Any] = read_object(directory / "config.json")
    if "id2label" in config:
        return len(config["id2label"])
    return int(config.get("num_labels") or 1)


def _load(directory: Path, *, outputs: int | None = None) -> nn.Module:
    outputs = _outputs(directory) if outputs is None else outputs
    if outputs is None:
        return load_policy(directory, Scratch())
    return load_reward_model(directory, Scratch(), outputs=outputs)


@torch.no_grad()
def _numbers(model: Any) -> Tensor:
    """Return the log-probability of every token of one row but the first, or the outputs of the head, in float32.

    The row's tokens are spread evenly over the vocabulary, so that no data are needed.
    """
    vocabulary = int(model.config.get_text_config().vocab_size)
    row = torch.linspace(0, vocabulary - 1, ROW_TOKENS).long()[None]
    if hasattr(model, "score"):
        hidden = model.base_model(input_ids=row, use_cache=False).last_hidden_state
        return model.score(hidden)[0].float().flatten()
    logits = model(input_ids=row, use_cache=False).logits[0, :-1].float()
    # Position i predicts token i + 1: the logits lose the last position, the targets the first.
    targets = row[0, 1:, None]
    return torch.log_softmax(logits, -1).gather(1, targets)[:, 0]


@torch.no_grad()
def _round(model: nn.Module) -> None:
    """Round every stored floating-point tensor to bfloat16; computation stays in float32."""
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(tensor.to(torch.bfloat16))


def _distance(one: Tensor, other: Tensor) -> float:
    # Tokens that both models exclude have −∞ in both, and their difference would be NaN.
    differences = torch.where(one == other, 0.0, one - other)
    return float(differences.abs().max())


def _require_close(found: Tensor, expected: Tensor, tolerance: float, published: Path) -> None:
    distance = _distance(found, expected) if found.shape == expected.shape else math.inf
    if not distance <= tolerance:
        raise ArtifactError(
            f"the outputs of {published.name} differ from those of the saved model by {distance:.3g} on one row; "
            f"rounding explains at most {tolerance:g}. Nothing was published; check that the library versions are "
            "those of the run (manifest.json)"
        )
