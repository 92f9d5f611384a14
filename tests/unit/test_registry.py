"""Name = file = key = config file."""

from __future__ import annotations

from dataclasses import dataclass, is_dataclass
from importlib.util import find_spec

import pytest

from rlhf_lab.config import inventory, registry
from rlhf_lab.core.errors import ConfigError

KINDS = [(group, kind) for group in registry.groups() for kind in registry.kinds(group)]


@pytest.mark.parametrize(("group", "kind"), KINDS, ids="/".join)
def test_every_kind_has_settings_and_a_config_file(group, kind):
    cls = registry.settings_class(group, kind)
    assert is_dataclass(cls)
    assert cls.__doc__
    files = [inventory.folder("conf") / group / f"{name}.yaml" for name in inventory.options(group)]
    assert kind in {inventory.read_yaml(file)["kind"] for file in files}


@pytest.mark.parametrize(("group", "kind"), [k for k in KINDS if k[0] != "model"], ids="/".join)
def test_every_kind_has_a_module(group, kind):
    module = registry._implementations[group, kind]
    assert module.startswith("rlhf_lab.") and find_spec(module)


def test_an_unknown_kind_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"algorithm.kind=dpoo is not registered; use one of .*dpo, dpo_iterative"):
        registry.settings_class("algorithm", "dpoo")


def test_a_plug_in_kind_is_built_from_its_own_module(monkeypatch):
    monkeypatch.setattr(registry, "_settings", dict(registry._settings))
    monkeypatch.setattr(registry, "_implementations", dict(registry._implementations))

    @registry.register("reward", "plugged", implementation="json")
    @dataclass(frozen=True)
    class Plugged:
        weight: float = 1.0

    assert "plugged" in registry.kinds("reward")
    assert registry.kind_of("reward", Plugged()) == "plugged"
    monkeypatch.setattr("json.build", lambda settings, *args: (settings.weight, *args), raising=False)
    assert registry.build("reward", Plugged(), "run") == (1.0, "run")
