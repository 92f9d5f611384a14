"""Pages of settings, from what `explain` reads: one per algorithm, one per other group, one for the sections."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from itertools import takewhile

from docs_site.page import Page, code, plain, table
from docs_site.results import recipes, result_of

from rlhf_lab.cli.explain import Setting, catalogue
from rlhf_lab.config import docstrings, inventory, registry
from rlhf_lab.config.overrides import literal

FAMILIES = {
    "rlhf_lab.algorithms.supervised": "Supervised",
    "rlhf_lab.algorithms.preference": "Preference",
    "rlhf_lab.algorithms.policy_gradient": "Policy gradient",
    "rlhf_lab.algorithms.reward_models": "Reward models",
    "rlhf_lab.algorithms.pair_selection": "Selection of pairs",
    "rlhf_lab.evaluations": "Evaluations",
}
"""Package of an algorithm's settings → its heading in the navigation. Those of packs have the pack's name."""


def algorithm_pages() -> Iterator[Page]:
    """Yield a page for each option of `algorithm`, and the page that lists them."""
    pages = [_algorithm_page(option) for option in inventory.options("algorithm")]
    families = [*FAMILIES.values(), *sorted({page.section for page in pages} - {*FAMILIES.values()})]
    text = (
        "# Algorithms\n\nEvery option of `algorithm`, by family. A page has the purpose, the sources, the recipes with their "
        "accepted results, and all settings.\n"
    )
    for family in families:
        rows = [
            [f"[`{page.title}`](@{page.path})", plain(comment("algorithm", page.title, first=True))]
            for page in pages
            if page.section == family
        ]
        text += f"\n## {family}\n\n" + table(["option", ""], rows)
    yield Page("algorithms/README.md", "All algorithms", text)
    yield from sorted(pages, key=lambda page: (families.index(page.section), page.title))


def group_pages() -> Iterator[Page]:
    """Yield a page for each group besides `algorithm`, and one for the sections that are not groups."""
    for name, group in registry.groups().items():
        if name != "algorithm":
            yield _group_page(name, group.meaning)
    settings = catalogue(["+recipe=ppo"])
    grouped: dict[str, list[Setting]] = {}
    for key, setting in settings.items():
        head = key.partition(".")[0]
        if head not in registry.groups() and head != "algorithm":
            grouped.setdefault(head if "." in key else "single settings", []).append(setting)
    text = "# Sections\n\nSettings that belong to no option of a group.\n"
    for head, members in grouped.items():
        section = registry.sections().get(head)
        summary = f"{plain(docstrings.summary(section.cls))}\n\n" if section else ""
        text += f"\n## {head}\n\n{summary}{setting_table(members)}"
    yield Page("reference/settings/sections.md", "Sections", text)


def _algorithm_page(option: str) -> Page:
    kind = _kind("algorithm", option)
    cls = registry.settings_class("algorithm", kind)
    module = registry.implementation("algorithm", kind)
    file = (inspect.getsourcefile(import_module(module)) or "").rpartition("rlhf_lab/")[2]
    used = [recipe for recipe in recipes().values() if recipe.algorithm == option]
    rows = []
    for recipe in used:
        result = result_of(recipe.name)
        verdict = f"[{plain(result.verdict)}](/{result.file})" if result else ""
        rows.append([f"[`{recipe.name}`](/{recipe.file})", plain(recipe.question), verdict])
    documentation = inspect.cleandoc(cls.__doc__ or "").partition("\n\nArgs:")[0]
    text = f"# {option}\n\n{plain(comment('algorithm', option))}\n\n"
    text += "\n\n".join(plain(" ".join(part.split())) for part in documentation.split("\n\n")) + "\n\n"
    text += _preset("algorithm", option, kind)
    text += f"Implementation: [`{module}`](/rlhf_lab/{file}).\n\n"
    text += "## Recipes\n\n" + table(["recipe", "question", "accepted result"], rows) + "\n" if used else ""
    text += "## Settings\n\n`python -m rlhf_lab explain algorithm=" + option + "` prints them.\n\n"
    text += by_class(_settings("algorithm", option))
    return Page(f"algorithms/{option}.md", option, text, section=_family(cls.__module__))


def _group_page(group: str, meaning: str) -> Page:
    text = f"# {group}\n\n{plain(meaning[:1].upper() + meaning[1:])}\n"
    by_kind: dict[str, list[Setting]] = {}
    for option in inventory.options(group):
        by_kind.setdefault(_kind(group, option), _settings(group, option))
    for option in inventory.options(group):
        kind = _kind(group, option)
        text += f"\n## {group}={option}\n\n{plain(comment(group, option))}\n\n{_preset(group, option, kind)}"
        if option == kind or kind not in inventory.options(group):
            own = [setting for setting in by_kind[kind] if not _is_shared(setting, by_kind)]
            text += setting_table(own) if own else ""
    shared = _unique(setting for settings in by_kind.values() for setting in settings if _is_shared(setting, by_kind))
    if shared:
        text += "\n## Settings of several options\n\n" + by_class(shared)
    return Page(f"reference/settings/{group}.md", group, text)


def _is_shared(setting: Setting, by_kind: Mapping[str, Sequence[Setting]]) -> bool:
    """Return True if several kinds of a group have the class that defines a setting."""
    return sum(any(other.origin == setting.origin for other in settings) for settings in by_kind.values()) > 1


def _unique(settings: Iterable[Setting]) -> list[Setting]:
    """Return one setting per class and name."""
    return list({(setting.origin, setting.key.rpartition(".")[2]): setting for setting in settings}.values())


@cache
def _settings(group: str, option: str) -> list[Setting]:
    """Return the settings of an option, from the least to the most general class that defines them."""
    parts = registry.parts_of(group)
    prefix = f"{group}.{parts}.{option}." if parts else f"{group}."
    return [setting for key, setting in catalogue([f"{group}={option}"]).items() if key.startswith(prefix)]


def by_class(settings: Sequence[Setting]) -> str:
    """Return a table for each class that defines some of the settings; classes of fewer settings come first."""
    grouped: dict[str, list[Setting]] = {}
    for setting in settings:
        grouped.setdefault(setting.origin, []).append(setting)
    text = ""
    for origin, members in sorted(grouped.items(), key=lambda item: len(item[1])):
        text += f"### {origin.rpartition('.')[2]}\n\n`{origin}`\n\n{setting_table(members)}\n"
    return text


def setting_table(settings: Sequence[Setting]) -> str:
    """Return a table of settings: key, default, meaning with type, unit and range."""
    return table(["setting", "default", "meaning"], [_row(setting) for setting in settings])


def _row(setting: Setting) -> list[str]:
    default = code(literal(setting.default))
    if setting.tuned:
        default = f"from the model: {code(literal(setting.now))} for `tiny`"
    facts = [setting.type, setting.range, setting.unit]
    return [code(setting.key), default, f"{plain(setting.meaning)} *{plain('; '.join(filter(None, facts)))}*"]


def comment(group: str, option: str, *, first: bool = False) -> str:
    """Return the comment at the start of an option's file, or its first sentence."""
    file = inventory.option_files(group).get(option)
    lines = takewhile(lambda line: line.startswith("#"), file.read_text(encoding="utf-8").splitlines() if file else [])
    text = " ".join(line.removeprefix("#").strip() for line in lines)
    return f"{text.partition('. ')[0].rstrip('.')}." if first and text else text


def _preset(group: str, option: str, kind: str) -> str:
    """Return what an option sets over the defaults of its kind; empty if it sets nothing."""
    values = {key: value for key, value in inventory.written_values(group, option).items() if key != "kind"}
    if not values and kind == option:
        return ""
    written = ", ".join(f"{key}: {literal(value)}" for key, value in values.items())
    of_kind = f"Settings of `{kind}`" if kind != option else "Sets"
    return f"{of_kind}{', with ' if kind != option and values else ' ' if values else ''}{code(written)}.\n\n"


def _kind(group: str, option: str) -> str:
    return str(inventory.written_values(group, option)["kind"])


def _family(module: str) -> str:
    named = next((title for package, title in FAMILIES.items() if module.startswith(f"{package}.")), "")
    return named or module.removeprefix("rlhf_lab.packs.").partition(".")[0].capitalize()
