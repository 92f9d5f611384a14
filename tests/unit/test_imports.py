"""Large libraries are imported without the collector of cycles, which is as before afterwards."""

from __future__ import annotations

import gc
import sys

import pytest

from rlhf_lab.core.imports import without_collector


@pytest.fixture(autouse=True)
def collector_as_it_was():
    was_enabled = gc.isenabled()
    yield
    (gc.enable if was_enabled else gc.disable)()


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_paused_and_then_as_before(enabled, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)  # as in a process that has yet to import it
    (gc.enable if enabled else gc.disable)()
    with without_collector():
        assert not gc.isenabled()
        imported = [[number] for number in range(1000)]
        frozen_before = gc.get_freeze_count()
    assert gc.isenabled() == enabled
    assert gc.get_freeze_count() >= frozen_before + len(imported)


def test_what_a_run_has_left_behind_is_not_frozen(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", object())
    with without_collector():
        frozen_before = gc.get_freeze_count()
    assert gc.get_freeze_count() <= frozen_before


def test_a_failed_import_leaves_the_collector_as_before():
    gc.enable()
    with pytest.raises(ImportError), without_collector():
        import no_such_library  # noqa: F401
    assert gc.isenabled()
