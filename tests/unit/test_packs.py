"""Packs: every contribution is found through one mechanism, none replaces another, and every reference of the core
leads somewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from support import plant

from rlhf_lab.cli import table
from rlhf_lab.config import inventory, registry
from rlhf_lab.core import packs
from rlhf_lab.core.capabilities import Capability
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.lab import CORE
from rlhf_lab.models import families


def references(pack: packs.Pack) -> list[str]:
    """Every "module:name" that a pack contributes, but those of gold, which import torch (test_gold_oracle.py)."""
    found = []
    for field in (field for field in fields(pack) if field.name != "gold_sources"):
        value = getattr(pack, field.name)
        values = value.values() if isinstance(value, dict) else value
        if isinstance(values, tuple | type({}.values())):
            found += [item for item in values if isinstance(item, str) and ":" in item]
    return found


def test_every_reference_of_the_core_leads_somewhere():
    listed = references(CORE)
    assert len(listed) > 8 and "rlhf_lab.monitoring.alerts:problems" in listed
    for reference in listed:
        assert packs.load(reference) is not None, reference


START = """
import sys
import rlhf_lab.main
from rlhf_lab.core.packs import named
commands = [reference.partition(":")[0] for reference in named("commands").values()]
loaded = [name for name in sys.modules if name.startswith("rlhf_lab.packs.")]
print(*[name for name in loaded if not any(f"{command}.".startswith(f"{name}.") for command in commands)])
"""


def test_a_start_loads_no_module_of_a_pack_but_those_of_its_commands():
    done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


@pytest.fixture
def install(tmp_path, monkeypatch):
    """A function that registers a package as installed, with an entry point that names an object of it."""
    monkeypatch.syspath_prepend(tmp_path)
    names = []

    def install_package(name: str, code: str, entry_point: str = "") -> Path:
        names.append(name)
        directory = tmp_path / name
        directory.mkdir()
        (directory / "__init__.py").write_text(f"from rlhf_lab import Pack\n{code}\n")
        info = tmp_path / f"{name}_lab-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-lab\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[rlhf_lab.plugins]\n{name} = {entry_point or name + ':PACK'}\n")
        return directory

    yield install_package
    for module in [module for module in sys.modules if module.partition(".")[0] in names]:
        del sys.modules[module]


def loaded() -> list[str]:
    return [pack.name for pack in packs.packs.__wrapped__()]


def test_an_entry_point_names_a_pack_or_a_function_that_registers_by_itself(install):
    install("beta", "CALLS = []\ndef register():\n    CALLS.append(1)", "beta:register")
    install("alpha", "PACK = Pack(name='mine', package='email')")
    install("gamma", "def pack():\n    return Pack(name='made', package='gamma')", "gamma:pack")
    assert loaded() == ["core", *packs.in_tree(), "mine", "made"]
    assert sys.modules["beta"].CALLS == [1]
    assert "email.mime.audio" in packs.Pack(name="mine", package="email").modules_called("audio.py")


@pytest.mark.skipif({"judging", "speech"} - {*packs.in_tree()} != set(), reason="a pack that it names was deleted")
@pytest.mark.parametrize(
    ("fields", "meaning"),
    [
        ("commands={'judge': 'a:b'}", "command judge"),
        ("answers={'safety': 'a:b'}", "answer safety"),
        ("groups=(ConfigGroup('judge', 'who'),)", "config group judge"),
        ("gold_sources={'judge': 'a:b'}", "gold source judge"),
    ],
)
def test_a_name_that_two_packs_give_is_refused_with_both(install, fields, meaning):
    install(
        "other", f"from rlhf_lab.core.packs import ConfigGroup\nPACK = Pack(name='other', package='other', {fields})"
    )
    with pytest.raises(ConfigError) as refused:
        loaded()
    assert refused.value.problems == [
        f"{meaning} is defined twice, by pack judging (rlhf_lab.packs.judging) and by pack other (other); "
        "rename one of them, or uninstall one of the packages"
    ]


def test_plug_ins_may_not_share_a_name_either(install):
    fields = "families={'f': 'a:b'}, reward_files={'r.json': 'a:b'}, run_sections=('a:s after gains',)"
    for name in ("one", "two"):
        install(name, f"PACK = Pack(name='{name}', package='{name}', {fields})")
    with pytest.raises(ConfigError) as refused:
        loaded()
    names = [
        problem.partition(" is defined twice, by pack one (one) and by pack two (two)")[0]
        for problem in refused.value.problems
    ]
    assert names == ["model.family f", "reward file r.json", "section of a run's page s"]


@pytest.mark.parametrize(
    ("code", "entry_point", "problem"),
    [
        ("1 / 0", "", "other:PACK, installed by other-lab 1.0 cannot be loaded (ZeroDivisionError: division by zero)"),
        ("", "", "cannot be loaded (AttributeError: module 'other' has no attribute 'PACK')"),
        ("def go():\n    1 / 0", "other:go", "cannot be loaded (ZeroDivisionError"),
        ("PACK = 'a pack'", "", "has the type str; name a rlhf_lab.Pack or a function"),
        ("PACK = Pack(name='o', package='gone.x')", "", "pack o: there is no package gone.x; set `package` to"),
    ],
)
def test_a_plug_in_that_cannot_be_loaded_is_named_with_its_distribution(install, code, entry_point, problem):
    install("other", code, entry_point)
    with pytest.raises(ConfigError) as refused:
        loaded()
    (message,) = refused.value.problems
    assert message.startswith("plug-in other = ") and "installed by other-lab 1.0" in message and problem in message
    assert message.endswith("pip uninstall other-lab")


def test_a_part_of_a_plug_in_that_cannot_be_loaded_is_named(install):
    directory = install("other", "PACK = Pack(name='other', package='other')")
    (directory / "settings.py").write_text("import no_such_library\n")
    with pytest.raises(ConfigError, match=r"other\.settings of plug-in other = .*No module named 'no_such_library'"):
        packs.import_part("other.settings")
    with pytest.raises(ConfigError, match=r"other:nothing of plug-in .*has no attribute 'nothing'.* pip uninstall"):
        packs.load("other:nothing")
    with pytest.raises(AttributeError, match="nothing"):  # a fault of the lab itself keeps its traceback
        packs.load("rlhf_lab.lab:nothing")


@pytest.mark.parametrize("words", [("--help",), ("list",)])
def test_a_broken_plug_in_is_a_message_and_no_traceback(install, words):
    directory = install("other", "1 / 0")
    path = os.pathsep.join([str(directory.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "rlhf_lab", *words],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert "pip uninstall other-lab" in done.stdout + done.stderr


def test_a_command_may_not_take_the_words_that_list_commands(monkeypatch):
    monkeypatch.setattr(table, "named", lambda kind: {"help": "rlhf_lab.packs.code.commands:sandbox_command"})
    with pytest.raises(ConfigError, match=r"command help is defined twice, by rlhf_lab and by rlhf_lab\.packs\.code"):
        table.load_commands()


def test_files_of_one_name_are_refused_with_both_packs(tmp_path, monkeypatch):
    found = []
    for name in ("one", "two"):
        for file in ("conf/reward/mine.yaml", "recipes/study/mine.yaml"):
            (tmp_path / name / file).parent.mkdir(parents=True)
            (tmp_path / name / file).write_text("kind: bt\n")
        (tmp_path / name / "__init__.py").touch()
        found.append(packs.Pack(name=name, package=name))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(inventory, "packs", lambda: found)
    with pytest.raises(
        ConfigError, match=r"^recipe study/mine is defined twice, by .*one/recipes.* and by .*two/recipes"
    ):
        inventory.recipes.__wrapped__()
    with pytest.raises(ConfigError, match=r"^reward=mine is defined twice, by .*one/conf.* and by .*two/conf"):
        inventory.option_files.__wrapped__("reward")


def test_a_file_may_not_take_the_name_of_another_packs_kind(tmp_path, monkeypatch):
    """The kind of a plug-in is an option without a file: another pack's file of that name would replace it."""
    plant(monkeypatch, None)
    registry._implementations["reward", "planted"] = "another.package"
    (tmp_path / "one/conf/reward").mkdir(parents=True)
    (tmp_path / "one/conf/reward/planted.yaml").write_text("kind: bt\n")
    (tmp_path / "one/__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(inventory, "packs", lambda: [packs.Pack(name="one", package="one")])
    with pytest.raises(ConfigError, match=r"^reward=planted is defined twice, by .*planted\.yaml and by support;"):
        inventory.option_files.__wrapped__("reward")
    own = packs.Pack(name="one", package="one", modules=("support",))
    monkeypatch.setattr(inventory, "packs", lambda: [own])
    assert list(inventory.option_files.__wrapped__("reward")) == ["planted"]


@pytest.mark.skipif({"judging", "speech"} - {*packs.in_tree()} != set(), reason="a pack that it names was deleted")
def test_a_family_may_not_take_a_name_or_model_type_of_another(monkeypatch):
    codec = "rlhf_lab.packs.speech.policy.family:CODEC"
    monkeypatch.setattr(families, "named", lambda kind: {"llama": codec})
    with pytest.raises(ConfigError, match=r"model\.family=llama is defined twice, by rlhf_lab and by .*:CODEC"):
        families.families.__wrapped__()
    monkeypatch.setattr(families, "named", lambda kind: {"codec": codec, "other": codec})
    with pytest.raises(ConfigError, match=r"model_type=rlhf_lab_codec is defined twice, by .*:CODEC and by .*:CODEC"):
        families.families.__wrapped__()


def test_a_family_of_models_is_found_by_its_name_and_its_model_type(monkeypatch):
    mine = families.Family("mine_lm", "mine", "mine:new", "mine:decoder", Capability.TEXT, "words")
    monkeypatch.setattr(families, "families", lambda: {"mine": mine})
    assert families.names() == ("llama", "gpt2", "mine")
    assert families.family_of("mine_lm") is mine and families.family_of("llama") is None


WITHOUT_PACKS = """
import sys
from rlhf_lab.core import packs
packs.in_tree = lambda: []
sys.modules["rlhf_lab.packs"] = None  # importing it is an error now
from rlhf_lab import main
from rlhf_lab.config import command_line, inventory, registry
from rlhf_lab.stages import artifacts
assert set(registry.groups()) == {"model", "data", "algorithm", "reward", "rollout", "sharding", "tracker"}
for recipe in ("dpo", "ppo", "grpo_math", "prm", "rubric_rm", "criteria_fitted", "rm_report", "study/buffers"):
    command = command_line.check_command([f"+recipe={recipe}", "size=smoke"])
    assert artifacts.plan(command.configs[0], recipe).key
print(*inventory.recipes())
"""


@pytest.mark.slow
def test_the_core_composes_and_plans_without_its_packs():
    done = subprocess.run([sys.executable, "-c", WITHOUT_PACKS], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "ppo" in done.stdout.split() and "tts_dpo" not in done.stdout.split()
