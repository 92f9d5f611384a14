"""`explain`: what can be set, what each setting means, and the value that it would take.

Everything comes from the settings classes (`config/docstrings.py`) and from composing the choices that are named, so a
setting is described as soon as it exists.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from rlhf_lab.config import check, compose, docstrings, inventory, registry, root, schema, words
from rlhf_lab.config.overrides import literal
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.ranges import range_texts

USAGE = "explain algorithm=ppo, explain algorithm.beta, explain evaluation, explain +recipe=ppo"


@dataclass(frozen=True)
class Setting:
    """One key of the command line.

    Attributes:
        default: the class's own, before files of conf/ and recipes.
        now: the value that a run of these choices would use.
        tuned: whether `now` is the model's value for this algorithm.
        range: allowed values in words; empty where the type is the only limit.
        readers: the options, or kinds of run, that have this setting.
        origin: class that defines it, with its module.
    """

    key: str
    type: str
    default: Any
    now: Any
    tuned: bool
    meaning: str
    unit: str
    range: str
    readers: tuple[str, ...]
    origin: str
    choices: tuple[str, ...]


def explain(arguments: Sequence[str]) -> Group:
    """Answer the words of `explain`, ready to print. Raises ConfigError for what does not exist."""
    flags = words.split(arguments)
    overrides = [word for word in flags.overrides if "=" in word or word.startswith("~")]
    targets = [word for word in flags.overrides if word not in overrides]
    problems: list[str] = []
    usable = compose.usable_overrides(overrides, problems, flags.config_dir)
    problems += [
        f"{override.input_line}: explain takes one value" for override in usable if override.is_sweep_override()
    ]
    if problems:
        raise ConfigError(problems)
    if not flags.overrides:
        return Group(_overview())
    settings = catalogue(overrides, flags.config_dir)
    if not targets:
        targets = [
            _section_of(override.key_or_group, str(override.value()))
            for override in usable
            if override.key_or_group != "recipe"
        ]
        targets = targets or list(dict.fromkeys(key.partition(".")[0] for key in settings))
    chosen = {override.key_or_group.partition(".")[0] for override in usable}
    blocks: list[Any] = []
    for target in dict.fromkeys(targets):
        not_chosen = target.partition(".")[0] not in chosen and "recipe" not in chosen
        blocks += _explain_target(target, settings, overrides, everywhere=not_chosen)
    return Group(*blocks)


def _section_of(key: str, option: str) -> str:
    """The section that an override chooses; each term of the reward, and each agent, has one of its own."""
    parts = registry.parts_of(key)
    return f"{key}.{parts}.{option}" if parts and option in inventory.options(key) else key


def catalogue(overrides: Sequence[str], config_dir: str | None = None) -> dict[str, Setting]:
    """Every setting of what is chosen, by its key. Raises ConfigError for wrong settings."""
    written = compose.compose(overrides, config_dir)
    # Set aside before the rules are checked, so that the study section is described even where no sweep is named.
    study = written.get("study")
    written["study"] = None
    values = _with_tuned_values(written) | {"study": study}
    settings = {}
    for prefix, cls in _classes(values).items():
        for setting in _settings(prefix, cls, values, written):
            settings[setting.key] = setting
    return settings


def _with_tuned_values(written: dict[str, Any]) -> dict[str, Any]:
    """The values with the model's tuned ones filled in.

    An incomplete choice, such as `model=hf` without a path, is returned as written: its settings are what somebody
    wants to read about.
    """
    try:
        return root.to_values(check.effective(written))
    except ConfigError as error:
        if any(" is not set" not in problem for problem in error.problems):
            raise
        return written


def choices(values: Mapping[str, Any], key: str) -> list[str]:
    """The values that a setting may have by name; none for one that takes numbers or text."""
    for prefix, cls in _classes(values).items():
        for path, hint, _ in _fields(cls, prefix):
            if path == key:
                return docstrings.choices(hint)
    return []


def _classes(values: Mapping[str, Any]) -> dict[str, type]:
    """Prefix of keys → the class that describes them, for composed values; "" is the root."""
    classes: dict[str, type] = {}
    for group in registry.groups():
        parts = registry.parts_of(group)
        if not parts:
            classes[group] = registry.settings_class(group, values[group]["kind"])
            continue
        for name, part in values[group][parts].items():
            classes[f"{group}.{parts}.{name}"] = registry.settings_class(group, part["kind"])
    sections = {name: section.cls for name, section in registry.sections().items()}
    return {**classes, **sections, "": root.Config}


def _fields(cls: type, prefix: str) -> Iterator[tuple[str, Any, type]]:
    """(key, type, class) of every field below a prefix, those of sections within it included."""
    hints = schema.field_types(cls)
    for field in dataclasses.fields(cls):
        path = f"{prefix}.{field.name}".lstrip(".")
        hint = hints[field.name]
        if field.name == registry.parts_of(prefix):
            continue  # `_classes` lists the class of each
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            yield from _fields(hint, path)
        else:
            yield path, hint, cls


def _settings(prefix: str, cls: type, values: Mapping[str, Any], written: Mapping[str, Any]) -> Iterator[Setting]:
    """Every setting of a class.

    Args:
        prefix: of its keys.
        values: composed, with the model's tuned values.
        written: composed, without them.
    """
    for key, hint, owner in _fields(cls, prefix):
        name = key.rpartition(".")[2]
        meaning = docstrings.meanings(owner).get(name, "")
        is_written = _at(written, key) is not None
        has_tuned_value = _at(values, f"model.tuned.{_tuned_name(values, prefix)}.{name}") is not None
        defining_class = next(base for base in owner.__mro__ if name in inspect.get_annotations(base))
        yield Setting(
            key=key,
            type=docstrings.type_text(hint),
            default=schema.defaults(owner).get(name),
            now=_at(values, key),
            tuned=has_tuned_value and not is_written,
            meaning=meaning,
            unit=docstrings.unit(name, meaning),
            range=range_texts(owner).get(name, ""),
            readers=_readers(key),
            origin=f"{defining_class.__module__}.{defining_class.__name__}",
            choices=tuple(docstrings.choices(hint)),
        )


def _tuned_name(values: Mapping[str, Any], prefix: str) -> str:
    """The key of a section in `model.tuned`: the algorithm's kind, or `rollout`."""
    return str(values["algorithm"]["kind"]) if prefix == "algorithm" else prefix


def _at(values: Mapping[str, Any], key: str) -> Any:
    """The value at a dotted key; None where there is none."""
    node: Any = values
    for name in key.split("."):
        node = node.get(name) if isinstance(node, Mapping) else None
    return node


def _readers(key: str) -> tuple[str, ...]:
    """The options of its group that have a setting, or the algorithms that use its section."""
    group, _, name = key.partition(".")
    parts = registry.parts_of(group)
    if parts and key.startswith(f"{group}.{parts}."):
        name = key.split(".", 3)[3]
    elif group in registry.sections():
        classes: dict[str, Any] = {
            kind: registry.settings_class("algorithm", kind) for kind in registry.kinds("algorithm")
        }
        users = [option for option, kind in _kind_by_option("algorithm").items() if group in classes[kind].uses]
        if users:
            return tuple(f"algorithm={option}" for option in users)
    if group in registry.groups():
        return tuple(f"{group}={option}" for option in _options_with(group, name))
    return ("a study",) if group == "study" else ("every run",)


@cache
def _kind_by_option(group: str) -> dict[str, str]:
    """Option of a group → its kind. Several options may be presets of one kind."""
    return {option: inventory.written_values(group, option)["kind"] for option in inventory.options(group)}


@cache
def _options_with(group: str, name: str) -> list[str]:
    """Options of a group whose settings have a field, e.g. `beta` or `selection.by`."""
    classes = {option: registry.settings_class(group, kind) for option, kind in _kind_by_option(group).items()}
    return [option for option, cls in classes.items() if any(path == name for path, _, _ in _fields(cls, ""))]


def _explain_target(
    target: str, settings: Mapping[str, Setting], overrides: Sequence[str], *, everywhere: bool
) -> list[Any]:
    """One setting in full, or a table of a section.

    Args:
        everywhere: whether a setting is shown for every choice of its group, because none is named.
    """
    if everywhere and "." in target:
        by_option = _setting_by_option(target, overrides)
        if by_option:
            return [_setting_table(setting) for setting in by_option]
    if target in settings:
        return [_setting_table(settings[target])]
    section = [setting for key, setting in settings.items() if key.startswith(f"{target}.")]
    if section:
        options = [_options_table(target)] if target in registry.groups() and everywhere else []
        return [*options, _section_table(target, section)]
    if target in registry.groups():
        return [_options_table(target)]
    raise ConfigError(_unknown_target(target, settings))


def _setting_by_option(key: str, overrides: Sequence[str]) -> list[Setting]:
    """A setting of a group as each option has it. Options that agree in meaning and value share one entry."""
    group, _, name = key.partition(".")
    if group not in registry.groups() or registry.parts_of(group):
        return []
    distinct: dict[tuple[str, ...], Setting] = {}
    for option in _options_with(group, name):
        setting = catalogue([*overrides, f"{group}={option}"])[key]
        content = (setting.meaning, setting.type, literal(setting.default), literal(setting.now))
        readers = distinct[content].readers if content in distinct else ()
        distinct[content] = dataclasses.replace(setting, readers=(*readers, f"{group}={option}"))
    return list(distinct.values())


def _unknown_target(target: str, settings: Mapping[str, Setting]) -> str:
    """What to write instead of a word that names nothing."""
    group, _, name = target.partition(".")
    if group in registry.groups() and name and (options := _options_with(group, name)):
        return f"{target} is not a setting of what is chosen; it belongs to {group}={', '.join(options)}"
    if target in inventory.recipes():
        return f"{target} is a recipe; write explain +recipe={target}"
    names = {*settings, *registry.sections(), *registry.groups()}
    for kind_group in registry.groups():
        if target in inventory.options(kind_group):
            return f"{target} is an option of {kind_group}; write explain {kind_group}={target}"
        for kind in registry.kinds(kind_group):
            fields = _fields(registry.settings_class(kind_group, kind), kind_group)
            names |= {path for path, _, _ in fields if not registry.parts_of(kind_group)}
    full_keys = sorted(name for name in names if name.endswith(f".{target}"))
    if full_keys:
        return f"{target} is not a setting; did you mean {' or '.join(full_keys)}?"
    close = schema.closest(target, names)
    if close:
        return f"{target} is not a setting; did you mean {close}?"
    return f"{target} is not a setting; write {USAGE}"


def _value_text(value: Any) -> str:
    return "–" if value is None else literal(value) or "(empty)"


def _facts(setting: Setting) -> dict[str, str]:
    """What is known of a setting besides its value and meaning."""
    facts = {"type": setting.type, "unit": setting.unit, "range": setting.range}
    facts |= {"source": ", ".join(docstrings.sources(setting.meaning)), "read by": _readers_text(setting.readers)}
    return {name: text for name, text in facts.items() if text}


def _readers_text(readers: Sequence[str]) -> str:
    """`algorithm=dpo, ppo` for choices of one group."""
    group, equals, _ = readers[0].partition("=")
    if not equals:  # "every run" or "a study"
        return readers[0]
    options = [reader.removeprefix(f"{group}=") for reader in readers]
    return f"{group}={', '.join(options)}"


def _now_text(setting: Setting) -> str:
    return f"{_value_text(setting.now)}{' (model.tuned)' if setting.tuned else ''}"


def _setting_table(setting: Setting) -> Table:
    """One setting, a line per fact."""
    table = Table(title=f"[bold]{setting.key}[/]", title_justify="left", box=None, show_header=False)
    table.add_column(style="dim", min_width=8)
    table.add_column(overflow="fold")
    rows = {"meaning": setting.meaning, "default": _value_text(setting.default), "now": _now_text(setting)}
    for name, text in {**rows, **_facts(setting), "defined": setting.origin}.items():
        table.add_row(name, escape(text))
    return table


def _section_table(title: str, settings: Sequence[Setting]) -> Table:
    """The settings of a section, a row each. Readers are shown only where a setting is explained alone."""
    table = Table(title=f"[bold]{title}[/]", title_justify="left", box=None, padding=(0, 2, 1, 0))
    table.add_column("setting, default → now", overflow="fold", max_width=34)
    table.add_column("meaning", overflow="fold", ratio=1)
    for setting in settings:
        default = _value_text(setting.default)
        now = _now_text(setting)
        values = now if default == now else f"{default} → {now}"
        facts = "; ".join(f"{name}: {text}" for name, text in _facts(setting).items() if name != "read by")
        meaning = f"{escape(setting.meaning)}\n[dim]{escape(facts)}[/]"
        table.add_row(f"[bold]{setting.key}[/]\n{escape(values)}", meaning)
    return table


def _options_table(group: str) -> Table:
    """The options of a group, each with the first sentence of its file in conf/, or of a plug-in's settings class."""
    table = Table(title=f"[bold]options of {group}[/]", title_justify="left", box=None, show_header=False)
    for name in inventory.options(group):
        path = inventory.option_files(group).get(name)
        if path is not None:
            sentence = _opening_comment(path.read_text(encoding="utf-8"))
        else:
            sentence = (inspect.getdoc(registry.settings_class(group, name)) or "").partition("\n")[0]
        table.add_row(f"{group}={name}", escape(sentence))
    return table


def _opening_comment(text: str) -> str:
    """The first sentence of the comment that a file starts with."""
    lines = takewhile(lambda line: line.startswith("#"), text.splitlines())
    comment = " ".join(line.removeprefix("#").strip() for line in lines)
    return re.split(r"(?<=\w{3}[.]) (?=[A-Z])", comment)[0]  # not after an abbreviation such as "Dr."


def _overview() -> Table:
    """Groups, sections and single settings: what can be explained."""
    table = Table(title=f"python -m rlhf_lab {USAGE}", title_justify="left", box=None, show_header=False)
    texts = {name: group.meaning for name, group in registry.groups().items()}
    texts |= {name: docstrings.summary(item.cls) for name, item in registry.sections().items() if name not in texts}
    texts |= docstrings.meanings(root.Config)
    for name, text in texts.items():
        table.add_row(f"[bold]{name}[/]", escape(text))
    return table
