"""`explain`: list settings, their meaning, and the value each would have in a run.

All content comes from the settings classes (`config/docstrings.py`) and from composing the named choices, so a new
setting is described without further work.
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

from rlhf_lab.config import check, compose, docstrings, inventory, registry, root, schema, typed_overrides, words
from rlhf_lab.config.overrides import literal, value_at
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.ranges import range_texts

USAGE = "explain algorithm=ppo, explain algorithm.beta, explain evaluation, explain +recipe=ppo"


@dataclass(frozen=True)
class Setting:
    """One key of the command line.

    Attributes:
        key: dotted key.
        type: type in words.
        default: default of the class, before files of conf/ and recipes.
        now: value in a run with the named choices.
        tuned: True if `now` is the model's value for this algorithm.
        meaning: entry of the class's docstring.
        unit: unit of the value; empty if it has none.
        range: allowed values in words; empty if the type is the only restriction.
        readers: options, or kinds of run, that have this setting.
        origin: class that defines it, with its module.
        choices: allowed values by name; empty if there are others.
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


def explain_command(arguments: Sequence[str]) -> None:
    """`explain [algorithm=ppo | algorithm.beta | evaluation | +recipe=ppo …]`: list settings and their meaning.

    Each setting is shown with its type, default, value under the named choices (now), unit, range, meaning, source, and
    the component that reads it. Without arguments: the groups and sections.
    """
    console.print(explain(arguments))


def explain(arguments: Sequence[str]) -> Group:
    """Return the answer to the arguments of `explain`, ready to print. Raise ConfigError for an unknown name."""
    flags = words.split(arguments)
    # Words with "=" choose options; all other words name settings or sections to explain.
    overrides = [word for word in flags.overrides if "=" in word or word.startswith("~")]
    targets = [word for word in flags.overrides if word not in overrides]
    problems: list[str] = []
    usable = typed_overrides.usable_overrides(overrides, problems, flags.config_dir)
    problems += [
        f"{override.input_line}: explain accepts one value per setting"
        for override in usable
        if override.is_sweep_override()
    ]
    if problems:
        raise ConfigError(problems)
    if not flags.overrides:
        return Group(_overview())
    settings = catalogue(overrides, flags.config_dir)
    # Without a named setting, explain the sections that the overrides choose, or all sections of a recipe.
    if not targets:
        targets = [
            _section_of(override.key_or_group, str(override.value()))
            for override in usable
            if override.key_or_group != "recipe"
        ]
    if not targets:
        sections = (key.partition(".")[0] for key in settings)
        targets = list(dict.fromkeys(sections))
    chosen = {override.key_or_group.partition(".")[0] for override in usable}
    # Targets may repeat if several overrides belong to one section; each is explained once.
    blocks: list[Any] = []
    for target in dict.fromkeys(targets):
        # If nothing of the group is chosen, its setting is explained for every option instead of only the default one.
        group = target.partition(".")[0]
        not_chosen = group not in chosen and "recipe" not in chosen
        blocks += _explain_target(target, settings, overrides, everywhere=not_chosen)
    return Group(*blocks)


def _section_of(key: str, option: str) -> str:
    """Return the section that an override chooses. Each term of the reward, and each agent, has its own section.

    An option without settings, such as agent=react, is explained by the section of its group.
    """
    parts = registry.parts_of(key)
    if not parts or option not in inventory.options(key):
        return key
    cls = registry.settings_class(key, _kind_by_option(key)[option])
    return f"{key}.{parts}.{option}" if dataclasses.fields(cls) else key


def catalogue(overrides: Sequence[str], config_dir: str | None = None) -> dict[str, Setting]:
    """Return every setting of the chosen options by key. Raise ConfigError for wrong settings."""
    written = compose.compose(overrides, config_dir)
    # Remove the study before the rules are checked, so that its section is described even without a sweep.
    study = written.get("study")
    written["study"] = None
    values = _with_tuned_values(written) | {"study": study}
    settings = {}
    for prefix, cls in _classes(values).items():
        for setting in _settings(prefix, cls, values, written):
            settings[setting.key] = setting
    return settings


def _with_tuned_values(written: dict[str, Any]) -> dict[str, Any]:
    """Return the values with the model's tuned values filled in.

    An incomplete choice, such as `model=hf` without a path, is returned as written, because users want to read about
    its settings.
    """
    try:
        return root.to_values(check.effective(written))
    except ConfigError as error:
        # Only missing settings are tolerated; any other problem is an error of the user.
        if any(" is not set" not in problem for problem in error.problems):
            raise
        return written


def choices(values: Mapping[str, Any], key: str) -> list[str]:
    """Return the allowed values of a setting by name; empty if it accepts numbers or text."""
    for prefix, cls in _classes(values).items():
        for path, hint, _ in _fields(cls, prefix):
            if path == key:
                return docstrings.choices(hint)
    return []


def _classes(values: Mapping[str, Any]) -> dict[str, type]:
    """Return a map from key prefix, such as `algorithm`, to settings class; "" is the entire config."""
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
    """Yield (key, type, class) of every field below a prefix, including fields of nested sections."""
    hints = schema.field_types(cls)
    for field in dataclasses.fields(cls):
        path = f"{prefix}.{field.name}".lstrip(".")
        hint = hints[field.name]
        if field.name == registry.parts_of(prefix):
            continue  # `_classes` lists the class of each chosen option
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            yield from _fields(hint, path)
        else:
            yield path, hint, cls


def _settings(prefix: str, cls: type, values: Mapping[str, Any], written: Mapping[str, Any]) -> Iterator[Setting]:
    """Yield every setting of a class.

    Args:
        prefix: prefix of its keys.
        values: composed values including the model's tuned values.
        written: composed values without the model's tuned values.
    """
    adapted = _adapted_names(cls, values, written) if prefix == "algorithm" else set()
    for key, hint, owner in _fields(cls, prefix):
        name = key.rpartition(".")[2]
        meaning = docstrings.meanings(owner).get(name, "")
        is_written = value_at(written, key) is not None
        tuned_key = f"model.tuned.{_tuned_name(values, prefix)}.{name}"
        has_tuned_value = value_at(values, tuned_key) is not None
        # The most derived class that annotates the field, because a subclass may redefine it.
        defining_class = next(base for base in owner.__mro__ if name in inspect.get_annotations(base))
        yield Setting(
            key=key,
            type=docstrings.type_text(hint),
            default=schema.defaults(owner).get(name),
            now=value_at(values, key),
            tuned=has_tuned_value and not is_written and name not in adapted,
            meaning=meaning,
            unit=docstrings.unit(name, meaning),
            range=range_texts(owner).get(name, ""),
            readers=_readers(key),
            origin=f"{defining_class.__module__}.{defining_class.__name__}",
            choices=tuple(docstrings.choices(hint)),
        )


def _adapted_names(cls: Any, values: Mapping[str, Any], written: Mapping[str, Any]) -> set[str]:
    """Return the algorithm's settings that follow from other settings instead of from `model.tuned`."""
    algorithm = written["algorithm"]
    unset = [name for name in cls.by_size.tuned_by_model if algorithm.get(name) is None]
    sharding_kind = values["sharding"]["kind"]
    return set(cls.adapted(values["algorithm"], unset, sharding_kind))


def _tuned_name(values: Mapping[str, Any], prefix: str) -> str:
    """Return the key of a section in `model.tuned`: the algorithm's kind, or `rollout`."""
    return str(values["algorithm"]["kind"]) if prefix == "algorithm" else prefix


def _readers(key: str) -> tuple[str, ...]:
    """Return the options of the key's group that have the setting, or the algorithms that use its section."""
    group, _, name = key.partition(".")
    parts = registry.parts_of(group)
    if parts and key.startswith(f"{group}.{parts}."):
        name = key.split(".", 3)[3]
    elif group in registry.sections():
        classes: dict[str, Any] = {
            kind: registry.settings_class("algorithm", kind) for kind in registry.kinds("algorithm")
        }
        users = [
            option for option, kind in _kind_by_option("algorithm").items() if group in classes[kind].inputs.sections
        ]
        if users:
            return tuple(f"algorithm={option}" for option in users)
    if group in registry.groups():
        return tuple(f"{group}={option}" for option in _options_with(group, name))
    return ("a study",) if group == "study" else ("every run",)


@cache
def _kind_by_option(group: str) -> dict[str, str]:
    """Return option of a group → its kind. Several options may be presets of the same kind."""
    return {option: inventory.written_values(group, option)["kind"] for option in inventory.options(group)}


@cache
def _options_with(group: str, name: str) -> list[str]:
    """Return the options of a group whose settings have a field, e.g. `beta` or `selection.by`."""
    options = []
    for option, kind in _kind_by_option(group).items():
        cls = registry.settings_class(group, kind)
        if any(path == name for path, _, _ in _fields(cls, "")):
            options.append(option)
    return options


def _explain_target(
    target: str, settings: Mapping[str, Setting], overrides: Sequence[str], *, everywhere: bool
) -> list[Any]:
    """Return a full description of one setting, or a table of a section.

    Args:
        everywhere: True to show a setting for every option of its group, because none is chosen.
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
    """Return a group's setting for each option. Options with the same meaning and values share one entry."""
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
    """Return what to write instead of a name that does not exist."""
    group, _, name = target.partition(".")
    if group in registry.groups() and name and (options := _options_with(group, name)):
        return f"{target} is not a setting of the chosen options; it belongs to {group}={', '.join(options)}"
    if target in inventory.recipes():
        return f"{target} is a recipe; write explain +recipe={target}"
    names = {*settings, *registry.sections(), *registry.groups()}
    for kind_group in registry.groups():
        if target in inventory.options(kind_group):
            return f"{target} is an option of {kind_group}; write explain {kind_group}={target}"
        if registry.parts_of(kind_group):
            continue  # keys of such a group contain the name of the chosen option
        for kind in registry.kinds(kind_group):
            cls = registry.settings_class(kind_group, kind)
            names |= {path for path, _, _ in _fields(cls, kind_group)}
    full_keys = sorted(name for name in names if name.endswith(f".{target}"))
    if full_keys:
        return f"{target} is not a setting; did you mean {' or '.join(full_keys)}?"
    close = schema.closest(target, names)
    if close:
        return f"{target} is not a setting; did you mean {close}?"
    return f"{target} is not a setting; write {USAGE}"


def _value_text(value: Any) -> str:
    """Return a value as text; a dash for None."""
    if value is None:
        return "–"
    return literal(value) or "(empty)"  # the empty string has no visible form


def _metadata(setting: Setting) -> dict[str, str]:
    """Return the properties of a setting other than its value and meaning; empty ones are omitted."""
    metadata = {
        "type": setting.type,
        "unit": setting.unit,
        "range": setting.range,
        "source": ", ".join(docstrings.sources(setting.meaning)),
        "read by": _readers_text(setting.readers),
    }
    return {name: text for name, text in metadata.items() if text}


def _readers_text(readers: Sequence[str]) -> str:
    """Return the components that read a setting, as text: `algorithm=dpo, ppo` for options of one group."""
    group, equals, _ = readers[0].partition("=")
    if not equals:  # "every run" or "a study"
        return readers[0]
    options = [reader.removeprefix(f"{group}=") for reader in readers]
    return f"{group}={', '.join(options)}"


def _now_text(setting: Setting) -> str:
    """Return the current value as text, with its source if that is the model."""
    source = " (model.tuned)" if setting.tuned else ""
    return f"{_value_text(setting.now)}{source}"


def _setting_table(setting: Setting) -> Table:
    """Return a table of one setting with one property per row."""
    table = Table(title=f"[bold]{setting.key}[/]", title_justify="left", box=None, show_header=False)
    table.add_column(style="dim", min_width=8)
    table.add_column(overflow="fold")
    rows = {
        "meaning": setting.meaning,
        "default": _value_text(setting.default),
        "now": _now_text(setting),
        **_metadata(setting),
        "defined": setting.origin,
    }
    for name, text in rows.items():
        table.add_row(name, escape(text))
    return table


def _section_table(title: str, settings: Sequence[Setting]) -> Table:
    """Return a table of a section with one setting per row.

    The components that read a setting are shown only for a single setting.
    """
    table = Table(title=f"[bold]{title}[/]", title_justify="left", box=None, padding=(0, 2, 1, 0))
    table.add_column("setting, default → now", overflow="fold", max_width=34)
    table.add_column("meaning", overflow="fold", ratio=1)
    for setting in settings:
        default = _value_text(setting.default)
        now = _now_text(setting)
        values = now if default == now else f"{default} → {now}"
        properties = [f"{name}: {text}" for name, text in _metadata(setting).items() if name != "read by"]
        metadata = "; ".join(properties)
        meaning = f"{escape(setting.meaning)}\n[dim]{escape(metadata)}[/]"
        table.add_row(f"[bold]{setting.key}[/]\n{escape(values)}", meaning)
    return table


def _options_table(group: str) -> Table:
    """Return a table of a group's options, with the first sentence of each file in conf/ or plug-in settings class."""
    table = Table(title=f"[bold]options of {group}[/]", title_justify="left", box=None, show_header=False)
    for name in inventory.options(group):
        path = inventory.option_files(group).get(name)
        if path is not None:
            sentence = _opening_comment(path.read_text(encoding="utf-8"))
        else:
            # A plug-in's option has no file in conf/.
            documentation = inspect.getdoc(registry.settings_class(group, name)) or ""
            sentence = documentation.partition("\n")[0]
        table.add_row(f"{group}={name}", escape(sentence))
    return table


def _opening_comment(text: str) -> str:
    """Return the first sentence of the comment at the start of a file."""
    lines = takewhile(lambda line: line.startswith("#"), text.splitlines())
    comment = " ".join(line.removeprefix("#").strip() for line in lines)
    # Split only after words of three letters or more, so that abbreviations such as "Dr." do not end the sentence.
    return re.split(r"(?<=\w{3}[.]) (?=[A-Z])", comment)[0]


def _overview() -> Table:
    """Return a table of everything that can be explained: groups, sections and single settings."""
    table = Table(title=f"python -m rlhf_lab {USAGE}", title_justify="left", box=None, show_header=False)
    texts = {name: group.meaning for name, group in registry.groups().items()}
    # A group may have a section class of its own; the group's meaning describes it better.
    for name, section in registry.sections().items():
        if name not in texts:
            texts[name] = docstrings.summary(section.cls)
    texts |= docstrings.meanings(root.Config)
    for name, text in texts.items():
        table.add_row(f"[bold]{name}[/]", escape(text))
    return table
