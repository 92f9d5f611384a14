"""Settings whose default depends on the model: the values a model names (`model.tuned`), and recommended values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_lab.config import registry, schema
from rlhf_lab.config.overrides import merge


def with_tuned(values: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """Return composed values in which every setting of `tuned_by_model` has a value.

    Values that a recipe or the command line sets stay. A missing or null setting gets the model's value
    (`model.tuned`), else the algorithm's value for a small model (`by_size.small_scale`), else the default of its
    class. `adapted` then replaces values that do not suit other settings. Under AdamW the learning rate of an adapter
    is multiplied by `model.lora.lr_multiple`.
    """
    result = dict(values)
    model_class = _class_of("model", values.get("model"))
    if model_class is None:
        return result  # the error is reported where the section is built
    model = merge(schema.defaults(model_class), values["model"])
    sharding = values.get("sharding")
    sharding_kind = str(sharding.get("kind")) if isinstance(sharding, Mapping) else ""
    for section in ("algorithm", "rollout"):
        written = values.get(section) or {}
        cls = _class_of(section, written)
        if cls is None:
            continue  # the error is reported where the section is built
        # model.tuned is keyed by algorithm; the sampler has a single entry `rollout` for all its kinds
        name = "rollout" if section == "rollout" else written["kind"]
        tuned = _usable_tuned(model["tuned"], name, cls, problems)
        # Later sources win: class default, recommendation for the model's size, value named by the model.
        defaults = {**schema.defaults(cls), **_value_by_size(model_class, cls), **tuned}
        unset = [key for key in cls.by_size.tuned_by_model if written.get(key) is None]
        filled = {key: defaults[key] for key in unset}
        if section == "algorithm":
            filled |= cls.adapted({**defaults, **written, **filled}, filled.keys(), sharding_kind)
        optimizer = filled.get("optimizer", written.get("optimizer"))
        if model["lora"]["rank"] and optimizer in ("adamw", "adamw_8bit"):
            # a critic on the policy's trunk is only a head, which is trained in full instead of as an adapter
            rates = ("lr",) if written.get("critic") == "shared" else ("lr", "critic_lr")
            for rate in filled.keys() & set(rates):
                multiple = float(model["lora"]["lr_multiple"])
                filled[rate] = float(filled[rate]) * multiple
        result[section] = {**written, **filled}
    return result


def values_by_size(model_class: Any) -> dict[str, dict[str, Any]]:
    """Return the default of `model.tuned`: recommendations of every algorithm and the sampler for this model size."""
    classes = {kind: registry.settings_class("algorithm", kind) for kind in registry.kinds("algorithm")}
    classes["rollout"] = registry.settings_class("rollout", "local")
    values = {name: _value_by_size(model_class, cls) for name, cls in classes.items()}
    return {name: settings for name, settings in values.items() if settings}


def _value_by_size(model_class: Any, cls: Any) -> dict[str, Any]:
    """Return the recommendations of one settings class for models of this size."""
    if model_class.small_scale:
        return dict(cls.by_size.small_scale)
    defaults = schema.defaults(cls)
    return {name: defaults[name] for name in cls.by_size.tuned_by_model if defaults[name] is not None}


def _class_of(group: str, values: Any) -> Any:
    """Return the settings class that composed values of a group choose, or None."""
    if not isinstance(values, Mapping) or values.get("kind") not in registry.kinds(group):
        return None
    return registry.settings_class(group, values["kind"])


def _usable_tuned(tuned: Any, name: str, cls: Any, problems: list[str]) -> dict[str, Any]:
    """Return the valid settings that a model names for an algorithm or `rollout`; report the others in `problems`."""
    # if `tuned` is not a mapping, the model's own section reports it
    settings = tuned.get(name) if isinstance(tuned, Mapping) else None
    hints = schema.field_types(cls)
    usable = {}
    for key, value in (settings or {}).items():
        path = f"model.tuned.{name}.{key}"
        if key not in cls.by_size.tuned_by_model:
            problems.append(
                f"{path} does not depend on the model{schema.did_you_mean(key, cls.by_size.tuned_by_model)}"
            )
        elif schema.convert(hints[key], value, path, problems)[0]:
            usable[key] = value
    return usable
