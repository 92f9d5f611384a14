"""Families of models that packs add: models of the lab's own, which transformers does not know. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module

from rlhf_lab.core.capabilities import Capability
from rlhf_lab.core.packs import load, named

BUILT_IN = ("llama", "gpt2")
"""Families that `models/build.py` makes itself."""


@dataclass(frozen=True)
class Family:
    """What the lab has to know of a family; references are imported when they are used.

    Attributes:
        model_type: of its config.json.
        module: what registers the model type with transformers when it is imported.
        new_policy: function (run, settings) → a new policy and its encoder.
        decoder: function (model, dtype, positions) → what decodes it, with the interface of `sampling.decoder.Decoder`.
        responses: capability of the data whose responses it says; it fits no other data.
        says: these responses in words.
        reads: settings of `model` that this family alone reads.
        without_trl, without_vllm: why these cannot train it, or sample from it.
    """

    model_type: str
    module: str
    new_policy: str
    decoder: str
    responses: Capability
    says: str
    reads: tuple[str, ...] = ()
    without_trl: str = "TRL does not know it"
    without_vllm: str = "vLLM does not know it"


@cache
def families() -> dict[str, Family]:
    """`model.family` → what a pack says of it."""
    return {name: load(reference) for name, reference in named("families").items()}


def names() -> tuple[str, ...]:
    """Every `model.family`."""
    return (*BUILT_IN, *families())


def family_of(model_type: str) -> Family | None:
    """The family of a model by its config.json; None for models that transformers knows."""
    return next((family for family in families().values() if family.model_type == model_type), None)


@cache
def register() -> None:
    """Let transformers load the models of every family."""
    for family in families().values():
        import_module(family.module)
