"""Kinds of a group: what is not registered is refused, and a plug-in is built from its own module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

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


def test_attributes_that_are_not_read_any_more_are_refused():
    """Ignored without a word, they would make every source one of preference pairs."""

    @dataclass(frozen=True)
    class Old:
        preferences: ClassVar[bool] = False

    with pytest.raises(ConfigError, match=r"data=old: Old\.preferences is not read any more; write provides"):
        registry.register("data", "old")(Old)

    @dataclass(frozen=True)
    class New:
        steps: int = 3  # a setting of that name is fine

    registry.register("data", "new")(New)
    del registry._settings["data", "new"], registry._implementations["data", "new"]
