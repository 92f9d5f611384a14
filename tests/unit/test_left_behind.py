"""The check that every test module leaves the process as it was, on the kinds of state that a test could leave."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from left_behind import changes, shared_state
from transformers import PreTrainedModel

from rlhf_lab.core import ranks


def replaced(patch: pytest.MonkeyPatch) -> dict[str, Callable[[], object]]:
    """Name in `shared_state` → what makes that change."""
    return {
        "environment variable RANK": lambda: patch.setenv("RANK", "3"),
        "current directory": lambda: patch.chdir("/"),
        "default dtype": lambda: torch.set_default_dtype(torch.float64),
        "gradients": lambda: torch.set_grad_enabled(False),
        "torch.linspace": lambda: patch.setattr(torch, "linspace", None),
        "torch.nn.init.uniform_": lambda: patch.setattr(torch.nn.init, "uniform_", None),
        "transformers.modeling_utils.PreTrainedModel.tie_weights": lambda: patch.setattr(
            PreTrainedModel, "tie_weights", None
        ),
        "rlhf_lab.core.ranks.device": lambda: patch.setattr(ranks, "device", None),
    }


def test_each_kind_of_state_is_told_by_its_name():
    before = shared_state()
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, change in replaced(patch).items():
                change()
                (stated,) = [text for text in changes(before, shared_state()) if text.startswith(f"{name}: ")]
                assert " → " in stated
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(True)
    assert changes(before, shared_state()) == []


def test_a_library_that_is_imported_is_no_change():
    before = shared_state()
    without_torch = {name: value for name, value in before.items() if not name.startswith("torch")}
    assert changes(without_torch, before) == []
