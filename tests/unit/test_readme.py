"""What the README promises exists: recipes, commands, make targets, files."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from hydra._internal.utils import get_args_parser

from rlhf_lab import compose

ROOT = Path(__file__).parents[2]
DOCS = ("running", "doctor", "data", "rewards", "selection", "tracking", "memory")
PAGES = ["README.md", "recipes/README.md", *(f"docs/{name}.md" for name in DOCS)]
LINKING = sorted(p.relative_to(ROOT).as_posix() for p in [*ROOT.glob("*.md"), *ROOT.glob("*/**/*.md")])
LINKING = [page for page in LINKING if not page.startswith((".", "outputs"))]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PLACEHOLDER = re.compile(r"…|\.\.\.|\b(NAME|FOLDER|FILE)\b")


def commands(page: str) -> list[str]:
    """Every `python -m rlhf_lab …` line of a page's code, but those with a placeholder."""
    text = (ROOT / page).read_text(encoding="utf-8")
    code = re.findall(r"^```\w*\n(.*?)^```", text, re.S | re.M)
    lines = [line.strip().removeprefix("$ ") for block in code for line in block.splitlines()]
    lines += re.findall(r"`(python -m rlhf_lab[^`]*)`", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))
    found = [line for line in lines if line.startswith("python -m rlhf_lab")]
    return [line for line in found if not PLACEHOLDER.search(line)]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


def slug(heading: str) -> str:
    """A heading's anchor as GitHub writes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.fixture
def own_recipe(tmp_path: Path) -> Path:
    """The folder `mine` with the recipe that the README shows."""
    shown = re.search(r"`mine/(recipe/\w+\.yaml)`:\n\n```yaml\n(.*?)```", README, re.S)
    assert shown, "README.md shows no recipe of one's own"
    path = tmp_path / shown[1]
    path.parent.mkdir(parents=True)
    path.write_text(shown[2], encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("page", ["README.md", "recipes/README.md"])
def test_every_recipe_has_a_row(page: str) -> None:
    rows = [line for line in (ROOT / page).read_text(encoding="utf-8").splitlines() if line.startswith("| [`")]
    named = [re.match(r"\| \[`([^`]+)`\]", row)[1] for row in rows]  # type: ignore[index]
    assert named == list(dict.fromkeys(named)), "a recipe has two rows"
    assert set(named) == set(compose.recipes())
    for name, row in zip(named, rows, strict=True):
        assert f"`python -m rlhf_lab +recipe={name}`" in row
        assert row.count("|") == 7, f"{name}: name, question, source, command, minutes, what to expect"


@pytest.mark.parametrize("page", PAGES)
def test_every_command_composes(page: str, own_recipe: Path) -> None:
    checked = 0
    for line in commands(page):
        arguments = shlex.split(line, comments=True)[3:]
        if not arguments or arguments[0] in ("report", "monitor", "rescore", "compare") or "+recipie=x" in arguments:
            continue
        if arguments[0] == "audit":
            arguments = [*arguments[1:], "+recipe=sft"]
        elif arguments[0] == "plan":
            arguments = [word for word in arguments[1:] if not word.startswith("cards=")]
            if arguments[0] == "table":
                continue
        elif arguments[0] == "doctor":
            overrides = [word for word in arguments[1:] if not word.startswith("to=")]
            arguments = overrides if any("recipe=" in word for word in overrides) else [*overrides, "+recipe=sft"]
        flags = get_args_parser().parse_args(arguments)
        if flags.help:
            continue
        folder = str(own_recipe) if flags.config_dir == "mine" else flags.config_dir
        command = compose.check_command(flags.overrides, folder)
        assert command.recipe, f"{page}: {line} names no recipe"
        checked += 1
    assert checked >= (12 if page == "README.md" else 1)


def test_the_mistakes_shown_are_the_mistakes_reported() -> None:
    line = next(line for line in commands("README.md") if "+recipie=x" in line)
    with pytest.raises(compose.ConfigError) as caught:
        compose.check_command(shlex.split(line)[3:])
    assert f"{len(caught.value.problems)} problems, nothing was run:" in README
    for problem in caught.value.problems:
        assert f"  • {problem}\n" in README


@pytest.mark.parametrize("page", [*PAGES, ".ci/run", ".pre-commit-config.yaml"])
def test_make_targets_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = {name for pair in re.findall(r"`make ([a-z]+)`|^make ([a-z]+)", text, re.M) for name in pair if name}
    assert named <= make_targets()


def test_every_make_target_has_a_help_line() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    helped = set(re.findall(r"^([a-z]+):.*## .+", text, re.M))
    assert helped == make_targets()
    phony = re.search(r"^\.PHONY: (.*)$", text, re.M)
    assert phony and set(phony[1].split()) == helped


@pytest.mark.parametrize("page", LINKING)
def test_links_resolve(page: str) -> None:
    path = ROOT / page
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.S | re.M)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name) if name else path
        assert file.exists(), f"{page} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.M)
            assert anchor in map(slug, headings), f"{page} links to {target}"
