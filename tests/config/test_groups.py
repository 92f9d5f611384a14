"""Every kind of data has what `config/groups.py` says that all of them have."""

from __future__ import annotations

from inspect import isfunction

from rlhf_lab.config import registry
from rlhf_lab.config.groups import DataSource
from rlhf_lab.core import arrays


def test_every_kind_of_data_answers():
    members = [name for name, value in vars(DataSource).items() if isinstance(value, property) or isfunction(value)]
    names = [name for name in members if not name.startswith("_")]
    assert names
    for kind in registry.kinds("data"):
        missing = [name for name in names if not hasattr(registry.settings_class("data", kind), name)]
        assert not missing, f"data={kind} lacks {', '.join(missing)}"


def test_array_names_cost_no_import():
    assert arrays.FloatArray is object, "annotations are not evaluated, so nothing needs numpy here"
