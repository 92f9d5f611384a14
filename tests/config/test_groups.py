"""Every settings class has what `config/groups.py` says that all of its group have."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from rlhf_lab.config import groups, registry
from rlhf_lab.core import arrays

PROTOCOLS = {"data": groups.DataSource, "rollout": groups.Rollout, "sharding": groups.Sharding}


def members(protocol: Any) -> list[str]:
    return [name for name, value in vars(protocol).items() if isinstance(value, property) or inspect.isfunction(value)]


@pytest.mark.parametrize("group", PROTOCOLS)
def test_every_kind_answers(group):
    names = [name for name in members(PROTOCOLS[group]) if not name.startswith("_")]
    assert names
    for kind in registry.kinds(group):
        cls = registry.settings_class(group, kind)
        missing = [name for name in names if not hasattr(cls, name)]
        assert not missing, f"{group}={kind} lacks {', '.join(missing)}"


def test_array_names_cost_no_import():
    assert arrays.FloatArray is object, "annotations are not evaluated, so nothing needs numpy here"
