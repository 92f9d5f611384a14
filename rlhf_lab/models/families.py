"""Model families that packs add: architectures that transformers does not have. This module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module

from rlhf_lab.core.capabilities import Capability
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.packs import load, named, owner

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
    # names and model types in use, each with the reason for the error message
    taken = dict.fromkeys(BUILT_IN, "the core already has a family of that name")
    for name, family in found.items():
        by_type = f"model_type={family.model_type}"
        for used in (name, by_type):
            if used in taken:
                pack = owner(references[name].partition(":")[0])
                raise ConfigError(f"model.family={name} ({pack}), {used}: {taken[used]}; rename it")
        taken[by_type] = f"model.family={name} already has this model type"
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
