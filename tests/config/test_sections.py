"""Sections register with their owners, and the root config is made of what is registered."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from support import checked

from rlhf_lab.config import check, registry, root, tuned
from rlhf_lab.config.section import Section, section
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.stages.settings import Artifacts


@pytest.fixture
def plain_values():
    """Values of a run without further sections; composed before one is registered, since composing is cached."""
    return root.to_values(checked("sft"))


@pytest.fixture
def extra_section(plain_values):
    """A section of another package, as long as the test runs."""

    @section("probe")
    @dataclass(frozen=True)
    class Probe(Section):
        """A section that refuses one seed."""

        depth: int = 3

        def contradictions(self, config):
            return [f"probe.depth={self.depth} contradicts seed={config.seed}"] if config.seed == 7 else []

        def key_material(self, config):
            return {"probe": self.depth}

    root.run_class.cache_clear()
    yield Probe
    del registry._sections["probe"]
    root.run_class.cache_clear()


def test_a_registered_section_is_part_of_every_config_with_its_rules(plain_values, extra_section):
    config = check.check(plain_values)
    assert root.to_values(config) == {**plain_values, "probe": {"depth": 3}}
    assert config.probe == extra_section() and config.sections()["probe"] is config.probe
    problems: list[str] = []
    check._build({**plain_values, "probe": {"dept": 4}}, problems)
    assert problems == ["probe.dept is not a setting; did you mean depth?"]
    with pytest.raises(ConfigError, match=r"probe\.depth=3 contradicts seed=7"):
        check.check({**plain_values, "seed": 7})


def test_every_section_of_a_config_is_registered_and_described():
    config = checked("sft")
    for name, value in config.sections().items():
        assert isinstance(value, Section), name
    for name, registered in registry.sections().items():
        assert registered.cls.__doc__ and name in root.names()
    assert isinstance(config.artifacts, Artifacts)
    assert registry.parts_of("reward") == "terms" and registry.parts_of("data") == ""


def test_a_setting_that_the_model_names_is_filled_in_where_it_is_not_written():
    values = root.to_values(checked("sft"))
    algorithm = {key: value for key, value in values["algorithm"].items() if key not in ("lr", "batch_size")}
    model = {**values["model"], "tuned": {"sft": {"lr": 0.25}}}
    filled = tuned.with_tuned({**values, "model": model, "algorithm": {**algorithm, "batch_size": 5}}, [])
    assert filled["algorithm"]["lr"] == 0.25 and filled["algorithm"]["batch_size"] == 5
