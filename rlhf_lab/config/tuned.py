"""Settings that are left to the model: what a model names (`model.tuned`), and recommended defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_lab.config import registry, schema
from rlhf_lab.config.overrides import merge


def with_tuned(values: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """Composed values in which the settings that are left to the model (`tuned_by_model`) have a value.

    What is written stays. A setting that is missing or null takes the model's value (`model.tuned`), else what the
    algorithm says for a small model (`at_small_scale`), else the default of its class. The learning rate of an adapter
    is then `model.lora.lr_multiple` times that under AdamW.
    """
    result = dict(values)
    model_class = _class_of("model", values.get("model"))
    if model_class is None:
        return result  # reported where the section is built
    model = merge(schema.defaults(model_class), values["model"])
    for section in ("algorithm", "rollout"):
        written = values.get(section) or {}
        cls = _class_of(section, written)
        if cls is None:
            continue  # reported where the section is built
        # model.tuned is keyed by algorithm; the sampler has the one entry `rollout`, whatever its kind
        name = "rollout" if section == "rollout" else written["kind"]
        tuned = _usable_tuned(model["tuned"], name, cls, problems)
        defaults = {**schema.defaults(cls), **_value_by_size(model_class, cls), **tuned}
        filled = {key: defaults[key] for key in cls.tuned_by_model if written.get(key) is None}
        optimizer = filled.get("optimizer", written.get("optimizer"))
        if model["lora"]["rank"] and optimizer in ("adamw", "adamw_8bit"):
            # a critic on the policy's own trunk is a head alone, which is trained as a whole
            rates = ("lr",) if written.get("critic") == "shared" else ("lr", "critic_lr")
            for rate in filled.keys() & set(rates):
                filled[rate] = float(filled[rate]) * float(model["lora"]["lr_multiple"])
        result[section] = {**written, **filled}
    return result


def values_by_size(model_class: Any) -> dict[str, dict[str, Any]]:
    """The default of `model.tuned`: what every algorithm, and the sampler, recommends for models of this size."""
    classes = {kind: registry.settings_class("algorithm", kind) for kind in registry.kinds("algorithm")}
    classes["rollout"] = registry.settings_class("rollout", "local")
    values = {name: _value_by_size(model_class, cls) for name, cls in classes.items()}
    return {name: settings for name, settings in values.items() if settings}


def _value_by_size(model_class: Any, cls: Any) -> dict[str, Any]:
    """What one settings class recommends for models of this size."""
    if model_class.small_scale:
        return dict(cls.at_small_scale)
    defaults = schema.defaults(cls)
    return {name: defaults[name] for name in cls.tuned_by_model if defaults[name] is not None}


def _class_of(group: str, values: Any) -> Any:
    """The settings class that composed values of a group choose; None where they choose none."""
    if not isinstance(values, Mapping) or values.get("kind") not in registry.kinds(group):
        return None
    return registry.settings_class(group, values["kind"])


def _usable_tuned(tuned: Any, name: str, cls: Any, problems: list[str]) -> dict[str, Any]:
    """The settings that a model gives an algorithm, or `rollout`, without those that are wrong."""
    # where `tuned` is no mapping, the model's own section reports it
    settings = tuned.get(name) if isinstance(tuned, Mapping) else None
    hints = schema.field_types(cls)
    usable = {}
    for key, value in (settings or {}).items():
        path = f"model.tuned.{name}.{key}"
        if key not in cls.tuned_by_model:
            problems.append(f"{path} is not left to the model{schema.did_you_mean(key, cls.tuned_by_model)}")
        elif schema.convert(hints[key], value, path, problems)[0]:
            usable[key] = value
    return usable
