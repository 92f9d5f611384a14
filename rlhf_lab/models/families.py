"""Model families that packs add: architectures that transformers does not have. This module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module

from rlhf_lab.core.capabilities import Capability
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.packs import defined_twice, load, named

BUILT_IN = ("llama", "gpt2")
"""Families that `models/build.py` builds itself."""


@dataclass(frozen=True)
class Family:
    """Properties of a model family; references are imported when they are used.

    Attributes:
        model_type: `model_type` in its config.json.
        module: module that registers the model type with transformers when it is imported.
        new_policy: function (run, settings) → (new policy, its encoder).
        decoder: function (model, dtype, positions) → decoder with the interface of `sampling.decoder.Decoder`.
        responses: capability of the data that the family can produce; it does not work with other data.
        says: description of these responses for messages.
        reads: settings of `model` that only this family uses.
        without_trl, without_vllm: reason why TRL cannot train it, and why vLLM cannot sample from it.
    """

    model_type: str
    module: str
    new_policy: str
    decoder: str
    responses: Capability
    says: str
    reads: tuple[str, ...] = ()
    without_trl: str = "TRL does not support it"
    without_vllm: str = "vLLM does not support it"


@cache
def families() -> dict[str, Family]:
    """Return the families of all packs by `model.family`.

    Raises ConfigError if a name or model type belongs to two families.
    """
    references = named("families")
    found: dict[str, Family] = {name: load(reference) for name, reference in references.items()}
    definers = {f"model.family={name}": "rlhf_lab" for name in BUILT_IN}
    for name, family in found.items():
        for used in (f"model.family={name}", f"model_type={family.model_type}"):
            if used in definers:
                raise ConfigError(defined_twice(used, definers[used], references[name]))
            definers[used] = references[name]
    return found


def names() -> tuple[str, ...]:
    """Return all values of `model.family`."""
    return (*BUILT_IN, *families())


def family_of(model_type: str) -> Family | None:
    """Return the family with this model type; None for models of transformers."""
    # model types are unique, which `families` checks
    return next((family for family in families().values() if family.model_type == model_type), None)


@cache
def register() -> None:
    """Let transformers load the models of every family."""
    for family in families().values():
        import_module(family.module)
