"""The documentation and the files beside it agree: links, make targets, the table of recipes, the README's numbers."""

from __future__ import annotations

import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest
import recipe_table
import results_table
from support import check_each

from rlhf_lab.cli import recipe_list
from rlhf_lab.config import inventory
from rlhf_lab.core.packs import Pack

ROOT = Path(__file__).resolve().parents[2]
LEFT_BY_COMMANDS = ("outputs", "build", "dist")
FOLDERS = [path for path in ROOT.iterdir() if path.is_dir() and path.name not in LEFT_BY_COMMANDS]
FOLDERS = [path for path in FOLDERS if path.name[0] != "."]
FILES = [*ROOT.glob("*.md"), *(page for directory in FOLDERS for page in directory.rglob("*.md"))]
PAGES = sorted(page.relative_to(ROOT).as_posix() for page in FILES)
DESIGN = "docs/design/"
"""Pages that tell of the past too, and may name what is no more."""
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", MAKEFILE, re.M))


def slug(heading: str) -> str:
    """A heading's anchor as GitHub writes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_the_table_of_recipes_is_what_the_recipes_say() -> None:
    text = (ROOT / "recipes" / "README.md").read_text(encoding="utf-8")
    assert text == recipe_table.page(text), "run `make recipes`"
    named = re.findall(r"^\| \[`([^`]+)`\]", text, re.M)
    assert named == list(dict.fromkeys(named)), "a recipe has two rows"
    assert set(named) == set(inventory.recipes())


def test_the_index_of_results_is_what_the_pages_say() -> None:
    text = results_table.PAGE.read_text(encoding="utf-8")
    assert text == results_table.page(), "run `make recipes`"
    linked = re.findall(r"\]\(([a-z_0-9/]+\.md)\)", text)
    pages = [page.relative_to(results_table.RESULTS).as_posix() for page in results_table.RESULTS.rglob("*.md")]
    assert sorted(linked) == sorted(set(pages) - {"README.md"})


def test_a_recipe_opens_with_what_a_reader_asks() -> None:
    def check(name: str) -> None:
        text = inventory.recipes()[name].read_text(encoding="utf-8")
        says = recipe_list.header(text)
        assert list(says) == ["question", "source", "command", "cost", "expect"], name
        assert says["command"].startswith(f"python -m rlhf_lab +recipe={name}")

    check_each(inventory.recipes(), check)


def test_the_readme_is_short_enough_to_be_read() -> None:
    assert len(re.sub(r"<!--.*?-->", "", README).split()) <= 1500


def test_the_demo_of_the_readme_has_the_numbers_of_its_page() -> None:
    """The answer's sentence, and the mean of each policy in the rows that the page has too, rounded."""
    shown = README.split("<!-- result -->")[1].split("<!-- /result -->")[0]
    page = (ROOT / "docs" / "results" / "archive" / "dpo_iterative.md").read_text(encoding="utf-8")
    sentence = re.search(r"\*\*(.+?)\*\*", page)
    assert sentence and " ".join(sentence[1].split()) in " ".join(shown.split())
    table = page[page.index("| policy |") :].split("\n\n")[0].splitlines()
    header = [cell.strip() for cell in table[0].split("|")[1:-1]]
    rows = [[cell.strip().replace("−", "-") for cell in line.split("|")[1:-1]] for line in table[2:]]
    columns = {"gold": "gold reward", "proxy": "proxy reward", "KL (nats)": "KL, nats", "tokens": "tokens"}
    for name, title in columns.items():
        line = next(line for line in shown.splitlines() if line.startswith(name))
        means = [float(value) for value in re.findall(r"(-?[\d.]+) ±", line)]
        expected = [float(row[header.index(title)].split()[0]) for row in rows]
        assert means == pytest.approx(expected, abs=0.0501 if name == "tokens" else 0.00501), name


def test_make_targets_exist() -> None:
    def check(page: str) -> None:
        text = (ROOT / page).read_text(encoding="utf-8")
        pairs = re.findall(r"`make ([a-z][a-z-]*)`|^make ([a-z][a-z-]*)", text, re.M)
        unknown = {name for pair in pairs for name in pair if name} - make_targets()
        assert not unknown, f"Makefile has no target {', '.join(sorted(unknown))}"

    pages = [page for page in PAGES if not page.startswith(DESIGN) and page != "CHANGELOG.md"]
    check_each([*pages, ".ci/run", ".pre-commit-config.yaml"], check)


def test_every_make_target_has_a_help_line() -> None:
    helped = set(re.findall(r"^([a-z-]+):.*## .+", MAKEFILE, re.M))
    assert helped == make_targets()
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.M)
    assert phony and set(phony[1].split()) == helped


def test_the_two_test_commands_and_check_are_the_whole_suite() -> None:
    commands = dict(re.findall(r"^(test|test-all):.*\n\t@\$\(TESTS\) (.*)$", MAKEFILE, re.M))
    assert commands == {"test": "-m 'not slow' tests", "test-all": "-m '$(SLOW)' tests"}
    assert re.search(r"^SLOW \?= slow$", MAKEFILE, re.M)
    assert all(f"make {name}" in README for name in commands)
    left_out = re.findall(r"--ignore=(\S+)", MAKEFILE)
    assert left_out == ["tests/lint"]
    check = re.search(r"^check:.*\n((?:\t.*\n)+)", MAKEFILE, re.M)
    assert check and re.search(r"\$\(PYTEST\) .*tests/lint$", check[1], re.M)


def test_ci_runs_the_commands_of_the_readme_in_its_order_in_one_clone() -> None:
    """The tests have to pass beside what the demo left in `outputs/`, which a clone that ran no demo does not have."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    targets = [name for line in re.findall(r"^make (.*) \|\|", script, re.M) for name in re.findall(r"[a-z-]+", line)]
    targets = [name for name in targets if not name.startswith("-") and name in make_targets()]
    assert targets == ["demo", "test", "check", "test-all"]
    assert README.index("make demo") < README.index("make test")
    assert script.index("git clone") < script.index(" demo ")


def links(page: Path) -> set[Path]:
    """Files that a page links to."""
    targets = re.findall(r"\]\(([^)\s#]+)", page.read_text(encoding="utf-8"))
    return {(page.parent / target).resolve() for target in targets if "://" not in target}


def test_the_index_of_design_notes_has_every_note_in_order() -> None:
    directory = ROOT / DESIGN
    listed = re.findall(r"^\| \[(\d{3}) [^]]+\]\((\S+)\)", (directory / "README.md").read_text(encoding="utf-8"), re.M)
    notes = sorted(note.name for note in directory.glob("*.md") if note.name != "README.md")
    assert [name for _, name in listed] == notes, "list each note of docs/design/ in its README.md, in order"
    assert [number for number, _ in listed] == [name[:3] for name in notes]


def test_the_index_of_the_documentation_has_every_page() -> None:
    pages = {ROOT / page for page in PAGES if page.startswith("docs/")}
    indexed = {page for page in pages if "results" not in page.parts and "design" not in page.parts}
    index = ROOT / "docs" / "README.md"
    # The notebooks are pages too; links() resolves them like any other file.
    indexed |= set((ROOT / "docs").rglob("*.ipynb"))
    missing = sorted(page.relative_to(ROOT).as_posix() for page in indexed - links(index) - {index})
    assert not missing, f"docs/README.md does not list {missing}"


def test_the_table_of_pack_fields_has_every_field() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("| field of `Pack`, or file |")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    listed = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    # The name and the package identify a pack; they add nothing.
    expected = {field.name for field in fields(Pack)} - {"name", "package"}
    assert listed == expected, f"CONTRIBUTING.md lists other fields than Pack has: {sorted(listed ^ expected)}"


def test_imports_of_examples_exist() -> None:
    def check(page: str) -> None:
        examples = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.S | re.M)
        for module, names in re.findall(r"^from (rlhf_lab[\w.]*) import ([\w, ]+)$", "\n".join(examples), re.M):
            missing = [name for name in names.split(", ") if not hasattr(import_module(module), name)]
            assert not missing, f"{module} has no {', '.join(missing)}"

    check_each([page for page in PAGES if not page.startswith(DESIGN)], check)


def test_links_resolve() -> None:
    def check(page: str) -> None:
        path = ROOT / page
        text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.S | re.M)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if target.startswith(("http://", "https://", "mailto:")):
                continue
            name, _, anchor = target.partition("#")
            file = (path.parent / name) if name else path
            assert file.exists(), f"links to {target}"
            if anchor:
                headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.M)
                assert anchor in map(slug, headings), f"links to {target}"

    check_each(PAGES, check)
