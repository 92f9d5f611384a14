"""Packs: every contribution is found through one mechanism, and every reference of the core leads somewhere."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from types import SimpleNamespace

import pytest
from support import checked

from rlhf_lab.core import packs
from rlhf_lab.lab import CORE
from rlhf_lab.monitoring import preflight as monitoring_preflight


def references(pack: packs.Pack) -> list[str]:
    """Every "module:name" that a pack contributes."""
    found = []
    for field in fields(pack):
        value = getattr(pack, field.name)
        values = value.values() if isinstance(value, dict) else value
        if isinstance(values, tuple | type({}.values())):
            found += [item for item in values if isinstance(item, str) and ":" in item]
    return found


def test_every_reference_of_the_core_leads_somewhere():
    listed = references(CORE)
    assert len(listed) > 8 and "rlhf_lab.monitoring.preflight:problems" in listed
    for reference in listed:
        assert packs.load(reference) is not None, reference


def test_an_entry_point_names_a_pack_or_a_function_that_registers_by_itself(monkeypatch):
    registered = []
    pack = packs.Pack(name="mine", package="email")
    entries = [
        SimpleNamespace(name="b", load=lambda: lambda: registered.append("called")),
        SimpleNamespace(name="a", load=lambda: pack),
    ]
    monkeypatch.setattr(packs, "entry_points", lambda group: entries if group == "rlhf_lab.plugins" else [])
    monkeypatch.setattr(packs, "in_tree", lambda: [])
    assert packs.packs.__wrapped__() == (CORE, pack) and registered == ["called"]
    assert "email.mime.audio" in pack.modules_called("audio.py")


def test_the_core_leaves_the_modules_of_its_packs_to_them(tmp_path, monkeypatch):
    for folder in ("house", "house/rooms", "house/packs/annex"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "settings.py").touch()
    (tmp_path / "house" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert packs.Pack(name="house", package="house").modules_called("*settings.py") == [
        "house.rooms.settings",
        "house.settings",
    ]


def test_a_pack_without_its_package_is_an_error_that_names_it():
    with pytest.raises(ModuleNotFoundError, match=r"pack gone: there is no package no_such_package"):
        packs.Pack(name="gone", package="no_such_package").modules_called("*.py")


def test_machine_problems_of_a_stage_come_from_its_owners():
    config = checked("ppo", "alerts.command=[no-such-program]", "alerts.webhook_env=NOT_SET_HERE")
    lines = monitoring_preflight.problems(config)
    assert lines[0].startswith("alerts.command: there is no program no-such-program")
    assert lines[1].startswith("alerts.webhook_env=NOT_SET_HERE: NOT_SET_HERE is not set")
    assert monitoring_preflight.problems(checked("sft", "alerts.command=[no-such-program]")) == []


WITHOUT_PACKS = """
import sys
from rlhf_lab.core import packs
packs.in_tree = lambda: []
sys.modules["rlhf_lab.packs"] = None  # importing it is an error now
from rlhf_lab import main
from rlhf_lab.config import compose, inventory, registry
from rlhf_lab.stages import artifacts
assert set(registry.groups()) == {"model", "data", "algorithm", "reward", "rollout", "sharding", "tracker"}
for recipe in ("dpo", "ppo", "grpo_math", "prm", "rubric_rm", "criteria_fitted", "rm_report", "study/buffers"):
    command = compose.check_command([f"+recipe={recipe}", "size=smoke"])
    assert artifacts.plan(command.configs[0], recipe).key
print(*inventory.recipes())
"""


def test_the_core_composes_and_plans_without_its_packs():
    done = subprocess.run([sys.executable, "-c", WITHOUT_PACKS], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "ppo" in done.stdout.split() and "tts_dpo" not in done.stdout.split()
