"""Kinds of a group: what is not registered is refused, and a plug-in is built from its own module."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from rlhf_lab.config import registry, root
from rlhf_lab.core import packs
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.packs import ConfigGroup, Pack


@pytest.fixture
def copied(monkeypatch):
    registry.kinds("reward")
    registry.groups()
    for name in ("_settings", "_implementations", "_sections"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))


@pytest.mark.skipif("speech" not in packs.in_tree(), reason="a pack that it names was deleted")
@pytest.mark.usefixtures("copied")
def test_a_kind_or_section_that_another_class_has_is_refused_with_both():
    @dataclass(frozen=True)
    class Mine:
        weight: float = 1.0

    own = rf" and by {__name__}\..*Mine;"
    core = r"rlhf_lab\.rewards\.learned\.settings\.\w+"
    with pytest.raises(ConfigError, match=f"^reward=bt is defined twice, by {core}{own}"):
        registry.register("reward", "bt")(Mine)
    speech = r"rlhf_lab\.packs\.speech\.world\.settings\.\w+"
    with pytest.raises(ConfigError, match=f"^data=speech is defined twice, by {speech}{own}"):
        registry.register("data", "speech")(Mine)
    with pytest.raises(ConfigError, match=r"^section alerts is defined twice, by rlhf_lab\.monitoring\."):
        registry.add_section("alerts", Mine)
    assert registry.settings_class("reward", "bt").__module__ == "rlhf_lab.rewards.learned.settings"


@pytest.mark.usefixtures("copied")
def test_a_class_that_is_defined_again_replaces_itself():
    def define(module: str, name: str = "Mine") -> type:
        cls = type(name, (), {"__module__": module})
        registry.register("reward", "mine")(cls)
        return cls

    define("some_module")
    assert registry.settings_class("reward", "mine") is not define("some_module")  # as when a module is reloaded
    with pytest.raises(ConfigError, match=r"reward=mine is .* by some_module\.Mine and by some_module\.Other"):
        define("some_module", "Other")
    del registry._settings["reward", "mine"]
    define("__main__")
    assert registry.settings_class("reward", "mine") is not define("__main__", "Other")  # a cell of a notebook, edited


@pytest.mark.usefixtures("copied")
def test_a_section_may_not_have_the_name_of_another_packs_group_or_of_a_key(monkeypatch):
    registry.add_section("agent_of_mine", ConfigGroup)
    core, *others = registry.packs()
    mine = Pack(
        name="mine", package="mine", groups=(ConfigGroup("agent_of_mine", "who"), ConfigGroup("alerts", "when"))
    )
    monkeypatch.setattr(registry, "packs", lambda: (core, *others, mine))
    with pytest.raises(ConfigError) as refused:
        registry.refuse_sections_named_like_groups()
    of_mine, alerts = refused.value.problems
    twice = "is defined twice, by rlhf_lab"
    assert of_mine.startswith(f"section and config group agent_of_mine {twice}.core.packs and by pack mine (mine);")
    assert alerts.startswith(f"section and config group alerts {twice}.monitoring.")
    registry.add_section("seed", ConfigGroup)
    with pytest.raises(ConfigError, match="seed: the config has a key of this name; rename"):
        root.run_class.__wrapped__()
