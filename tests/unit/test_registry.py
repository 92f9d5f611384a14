"""Kinds of a group: what is not registered is refused, and a plug-in is built from its own module."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from rlhf_lab.config import registry
from rlhf_lab.core.errors import ConfigError


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
