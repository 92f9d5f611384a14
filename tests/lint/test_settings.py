"""Every kind has its settings, module and config file; every setting has a meaning and is read by some code."""

from __future__ import annotations

import ast
import dataclasses
import re
import typing
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from support import check_each

from rlhf_lab.config import docstrings, inventory, registry, root, schema
from rlhf_lab.config.study_settings import Prediction
from rlhf_lab.core.ranges import Bound, ranged_fields

KINDS = [(group, kind) for group in registry.groups() for kind in registry.kinds(group)]
STATED_VALUE = re.compile(r"(?:^|[;,.:(] )(-?\d+(?:\.\d+)?) [a-z]+")
"""A value that a text says the meaning of: "cadence in steps; 0 evaluates at the end only"."""
SECTIONS = [*(section.cls for section in registry.sections().values()), Prediction, root.Config]


def with_sections(cls: type) -> Iterator[type]:
    """A settings class and the classes of the sections within it."""
    yield cls
    for hint in schema.field_types(cls).values():
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            yield from with_sections(hint)


def settings_classes() -> list[type]:
    """All settings classes of the package."""
    tops = [*(registry.settings_class(*kind) for kind in KINDS), *SECTIONS]
    return list(dict.fromkeys(cls for top in tops for cls in with_sections(top)))


def names_read(package: Path) -> set[str]:
    """Attributes, parameters and string keys in all modules but those that define settings and check them."""
    names: set[str] = set()
    for path in package.rglob("*.py"):
        if path.name.endswith("settings.py") or path.name in ("config/root.py", "config/check.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                names.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                names.add(node.value)
            elif isinstance(node, ast.arg):
                names.add(node.arg)
    return names


def test_every_kind_has_settings_a_module_and_a_config_file():
    def check(kind: tuple[str, str]) -> None:
        group, name = kind
        cls = registry.settings_class(group, name)
        assert dataclasses.is_dataclass(cls)
        assert docstrings.summary(cls)
        files = inventory.option_files(group).values()
        assert name in {inventory.read_yaml(file)["kind"] for file in files}
        if group != "model":  # models/build.py makes both kinds
            module = registry._implementations[kind]
            assert module.startswith("rlhf_lab.") and find_spec(module)

    check_each(KINDS, check)


def test_every_setting_has_a_meaning():
    def check(cls: type) -> None:
        meanings = docstrings.meanings(cls)
        missing = [field.name for field in dataclasses.fields(cls) if not meanings.get(field.name)]
        assert not missing, f"`Args:` of its docstring lacks {', '.join(missing)}"

    classes = settings_classes()
    assert len(classes) >= 60
    check_each(classes, check)


def bounds(hint: object) -> list[Bound]:
    """All bounds in an annotation, those of the items of a list included."""
    own = [one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Bound)]
    return own + [bound for inner in typing.get_args(hint) for bound in bounds(inner)]


def test_a_value_whose_meaning_is_stated_is_allowed():
    """A text that says "0 is off" belongs to a setting that may be 0."""

    def check(cls: type) -> None:
        meanings = docstrings.meanings(cls)
        for name, hint in ranged_fields(cls).items():
            for text in (meanings[name], *(bound.hint for bound in bounds(hint))):
                for value in STATED_VALUE.findall(text):
                    refused = [bound.text for bound in bounds(hint) if not bound.allows(float(value))]
                    assert not refused, f"{name} must be {refused[0]}, but its text says what {value} does: {text}"

    check_each(settings_classes(), check)


OF_PACKS = ("Scratch.min_frames", "Audit.wait_minutes")
"""Settings of the core that only a pack reads: a model family (`models.families.Family.reads`), labels of people."""


def test_every_setting_is_read(package):
    read = names_read(package)
    unread = [
        f"{cls.__name__}.{field.name}"
        for cls in settings_classes()
        for field in dataclasses.fields(cls)
        if field.name not in read and f"{cls.__name__}.{field.name}" not in OF_PACKS
    ]
    assert not unread, f"documented, validated and read by nothing: {unread}"


def test_every_choice_says_what_it_is():
    def check(file: Path) -> None:
        assert file.read_text(encoding="utf-8").startswith("# "), "its first line is a comment that says what it is"

    check_each(sorted(file for group in registry.groups() for file in inventory.option_files(group).values()), check)
