"""Pages of settings, from what `explain` reads: one per algorithm, one per other group, one for the sections."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from itertools import takewhile

from docs_site.page import ROOT, Page, code, paragraphs, plain, table
from docs_site.results import Recipe, outcome, recipe_link, recipes
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
"""Package of an algorithm's settings → its heading in the navigation. Those of a pack have the name of the pack."""

GUIDES = ROOT / "docs" / "algorithms"
"""Committed pages of algorithms, by option. The site shows them at the start of the option's page."""
REFERENCES = ROOT / "tests" / "reference"
"""Implementation on one page of each algorithm that has a guide."""

ONE_BY_ONE = "single settings"
"""Heading of the settings that are in no section, such as `seed`."""


def algorithm_pages() -> Iterator[Page]:
    """Yield the page that lists the options of `algorithm`, then a page for each."""
    pages = [_algorithm_page(option) for option in inventory.options("algorithm")]
    of_packs = sorted({page.section for page in pages} - {*FAMILIES.values()})
    families = [*FAMILIES.values(), *of_packs]
    text = (
        "# Algorithms\n\nEvery option of `algorithm`, by family. Each page has the purpose, the sources, the recipes "
        "with their accepted results, and all settings. Some also have the formula and an implementation of one page: "
        + ", ".join(f"[`{guide.stem}`](@algorithms/{guide.stem}.md)" for guide in sorted(GUIDES.glob("*.md")))
        + ".\n"
    )
    for family in families:
        members = [page for page in pages if page.section == family]
        rows = [
            [f"[`{page.title}`](@{page.path})", plain(_comment("algorithm", page.title).partition(". ")[0].rstrip("."))]
            for page in members
        ]
        text += f"\n## {family}\n\n" + table(["option", "purpose"], rows)
    yield Page("algorithms/README.md", "All algorithms", text)
    yield from sorted(pages, key=lambda page: (families.index(page.section), page.title))


def group_pages() -> Iterator[Page]:
    """Yield a page for each group besides `algorithm`, and one for the sections that are not groups."""
    for name, group in registry.groups().items():
        if name != "algorithm":
            yield _group_page(name, group.meaning)
    by_section: dict[str, list[Setting]] = {}
    for key, setting in catalogue(["+recipe=ppo"]).items():
        section = key.partition(".")[0] if "." in key else ONE_BY_ONE
        if section not in registry.groups():
            by_section.setdefault(section, []).append(setting)
    text = "# Sections\n\nSettings that belong to no option of a group.\n"
    for section, settings in by_section.items():
        registered = registry.sections().get(section)
        summary = f"{plain(docstrings.summary(registered.cls))}\n\n" if registered else ""
        text += f"\n## {section}\n\n{summary}{setting_table(settings)}"
    yield Page("reference/settings/sections.md", "Sections", text)


def _algorithm_page(option: str) -> Page:
    kind = _kind("algorithm", option)
    cls = registry.settings_class("algorithm", kind)
    module = registry.implementation("algorithm", kind)
    file = (inspect.getsourcefile(import_module(module)) or "").replace("\\", "/").rpartition("/rlhf_lab/")[2]
    used = [recipe for recipe in recipes().values() if option in recipe.algorithms]
    has_guide = (GUIDES / f"{option}.md").is_file()
    text = _guide(option) if has_guide else f"# {option}\n\n{plain(_comment('algorithm', option))}\n\n"
    text += f"{_documentation(cls)}\n{_preset('algorithm', option)}"
    text += f"Implementation: [`{module}`](/rlhf_lab/{file}).\n\n"
    text += f"## Recipes\n\n{_recipe_table(used)}\n" if used else ""
    text += f"## Settings\n\n`python -m rlhf_lab explain algorithm={option}` prints them.\n\n"
    for origin, settings in _by_class(settings_of("algorithm", option)).items():
        about = "" if origin is cls else f"{_documentation(origin)}\n"
        text += f"### {origin.__name__}\n\n{about}{setting_table(settings)}\n"
    base = GUIDES.relative_to(ROOT).as_posix() if has_guide else ""
    return Page(f"algorithms/{option}.md", option, text, section=_family(cls.__module__), base=base)


def _guide(option: str) -> str:
    """Return the committed page of an algorithm with its reference implementation in full, then a heading.

    The committed page ends with a link to that file, which a repository host shows on its own page.
    """
    guide = (GUIDES / f"{option}.md").read_text(encoding="utf-8")
    reference = (REFERENCES / f"{option}.py").read_text(encoding="utf-8")
    return f"{guide}\n```python\n{reference}```\n\n## In the package\n\n"


def _recipe_table(used: Sequence[Recipe]) -> str:
    rows = [[recipe_link(recipe), plain(recipe.question), outcome(recipe)] for recipe in used]
    return table(["recipe", "question", "accepted result"], rows)


def _group_page(group: str, meaning: str) -> Page:
    text = f"# {group}\n\n{plain(meaning[:1].upper() + meaning[1:])}\n"
    options = inventory.options(group)
    # Several options may be presets of one kind: its settings are listed at the first of them.
    first_of_kind = {_kind(group, option): option for option in reversed(options)}
    classes = {option: _by_class(settings_of(group, option)) for option in first_of_kind.values()}
    users = Counter(cls for settings in classes.values() for cls in settings)
    for option in options:
        text += f"\n## {group}={option}\n\n{plain(_comment(group, option))}\n\n{_preset(group, option)}"
        own = [settings for cls, settings in classes.get(option, {}).items() if users[cls] == 1]
        text += setting_table([setting for settings in own for setting in settings]) if own else ""
    shared = {cls: settings for by_class in classes.values() for cls, settings in by_class.items() if users[cls] > 1}
    text += "\n## Settings of several options\n" if shared else ""
    for cls, settings in shared.items():
        having = ", ".join(code(option) for option in sorted(classes) if cls in classes[option])
        text += f"\n### {cls.__name__}\n\n{_documentation(cls)}\nOf {having}.\n\n{setting_table(settings)}"
    return Page(f"reference/settings/{group}.md", group, text)


def settings_of(group: str, option: str) -> list[Setting]:
    """Return the settings of an option, without those of the group's own section."""
    parts = registry.parts_of(group)
    # Options that can be chosen together are composed together, which takes a twentieth of the time.
    together = ",".join(inventory.options(group))
    chosen = f"{group}=[{together}]" if parts else f"{group}={option}"
    prefix = f"{group}.{parts}.{option}." if parts else f"{group}."
    return [setting for key, setting in _catalogue(chosen).items() if key.startswith(prefix)]


@cache
def _catalogue(override: str) -> dict[str, Setting]:
    return catalogue([override])


def _by_class(settings: Sequence[Setting]) -> dict[type, list[Setting]]:
    """Return the class that defines settings → these settings. Classes that define fewer come first."""
    by_class: dict[type, list[Setting]] = {}
    for setting in settings:
        module, _, name = setting.origin.rpartition(".")
        by_class.setdefault(getattr(import_module(module), name), []).append(setting)
    return dict(sorted(by_class.items(), key=lambda item: len(item[1])))


def setting_table(settings: Sequence[Setting]) -> str:
    """Return a table of settings: key, default, meaning with type, range and unit."""
    return table(["setting", "default", "meaning"], [_row(setting) for setting in settings])


def _row(setting: Setting) -> list[str]:
    default = code(literal(setting.default))
    if setting.tuned:
        default = f"from the model: {code(literal(setting.now))} for `tiny`"
    properties = "; ".join(filter(None, [setting.type, setting.range, setting.unit]))
    return [code(setting.key), default, f"{plain(setting.meaning)} *{plain(properties)}*"]


def _documentation(cls: type) -> str:
    """Return the docstring of a class as Markdown, without the meanings of its fields."""
    return paragraphs(inspect.cleandoc(cls.__dict__.get("__doc__") or "").partition("\n\nArgs:")[0])


def _comment(group: str, option: str) -> str:
    """Return the comment at the start of an option's file, or the documentation of a plug-in's option."""
    file = inventory.option_files(group).get(option)
    if file is None:
        return docstrings.summary(registry.settings_class(group, option))
    lines = takewhile(lambda line: line.startswith("#"), file.read_text(encoding="utf-8").splitlines())
    return " ".join(line.removeprefix("#").strip() for line in lines)


def _preset(group: str, option: str) -> str:
    """Return a sentence on what an option sets over the defaults of its kind; empty if it sets nothing."""
    values = dict(inventory.written_values(group, option))
    kind = values.pop("kind")
    written = ", ".join(f"`{key}: {literal(value)}`" for key, value in values.items())
    if kind == option:
        return f"Sets {written}.\n\n" if written else ""
    return f"Kind `{kind}`{f' with {written}' if written else ''}.\n\n"


def _kind(group: str, option: str) -> str:
    return str(inventory.written_values(group, option)["kind"])


def _family(module: str) -> str:
    named = next((title for package, title in FAMILIES.items() if module.startswith(f"{package}.")), "")
    return named or module.removeprefix("rlhf_lab.packs.").partition(".")[0].capitalize()
