"""Delete packs that come with the lab from this checkout: `python tests/delete_packs.py NAME …`.

A pack is four kinds of folders: `rlhf_lab/packs/NAME`, `tests/*/NAME`, `docs/NAME`, and the accepted results of its
recipes in `docs/results`. Files that stay may name it in one of these forms, which are taken out:

- a block between `<!-- pack: NAME -->` and `<!-- end of pack -->`, in TOML `# pack: NAME` and `# end of pack`;
- a row of a table that links to a deleted file;
- any other link to a deleted file, of which the text stays.

The navigation of the site loses the pages of `docs/NAME`. The table of recipes and the page of mutants are made anew.
Nothing is committed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKS = ROOT / "rlhf_lab" / "packs"
RESULTS = ROOT / "docs" / "results"
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
BLOCKS = {
    ".md": r"(?ms)^<!-- pack: {name} -->\n.*?^<!-- end of pack -->\n\n?",
    ".toml": r"(?ms)^# pack: {name}\n.*?^# end of pack\n\n?",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="+", metavar="NAME", choices=packs(), help=", ".join(packs()))
    names = parser.parse_args().names
    if problems := dependents(names):
        parser.error("; ".join(problems))
    delete(names)
    for command in (
        ["recipe_table.py"],
        ["results_table.py"],
        ["campaign/mutants.py", "--page", "--out", str(RESULTS / "mutants.md")],
    ):
        script, *arguments = command
        subprocess.run(
            [sys.executable, str(ROOT / "tests" / script), *arguments],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            check=True,
        )


def packs() -> list[str]:
    return sorted(file.parent.name for file in PACKS.glob("*/__init__.py"))


def dependents(names: Iterable[str]) -> list[str]:
    """Return a sentence for each remaining pack that imports a pack to be deleted."""
    problems = []
    for other in sorted(set(packs()) - set(names)):
        text = "".join(file.read_text(encoding="utf-8") for file in (PACKS / other).rglob("*.py"))
        used = [name for name in names if f"rlhf_lab.packs.{name}." in text]
        if used:
            problems.append(f"{other} imports {' and '.join(used)}: delete {other} with it")
    return problems


def delete(names: Iterable[str]) -> None:
    """Delete the folders of packs, and what the pages and pyproject.toml say of them."""
    for name in names:
        folders = [PACKS / name, ROOT / "docs" / name, *(ROOT / "tests").glob(f"*/{name}")]
        for result in accepted_results(name):
            result.unlink()
        for directory in filter(Path.is_dir, folders):
            shutil.rmtree(directory)
    for page in pages():
        text = page.read_text(encoding="utf-8")
        page.write_text(without_links(without_blocks(text, names, page.suffix), page.parent), encoding="utf-8")
    navigation = ROOT / "docs" / "mkdocs.yml"
    navigation.write_text(without_entries(navigation.read_text(encoding="utf-8"), names), encoding="utf-8")
    toml = ROOT / "pyproject.toml"
    toml.write_text(without_blocks(toml.read_text(encoding="utf-8"), names, toml.suffix), encoding="utf-8")


def accepted_results(name: str) -> list[Path]:
    """The pages of results of a pack's recipes, with the figures that they show."""
    stems = {recipe.stem for recipe in (PACKS / name / "recipes").rglob("*.yaml")}
    found = [page for page in sorted(RESULTS.rglob("*.md")) if page.stem in stems]
    shown = {
        page.parent / target
        for page in found
        for _, target in LINK.findall(page.read_text(encoding="utf-8"))
        if re.fullmatch(r"\w+\.svg", target)
    }
    return found + sorted(shown)


def pages() -> list[Path]:
    """Markdown files of the checkout, without those of its environment and outputs."""
    folders = ("docs", "recipes", "launchers")
    return [*ROOT.glob("*.md"), *(page for directory in folders for page in sorted((ROOT / directory).rglob("*.md")))]


def without_blocks(text: str, names: Iterable[str], suffix: str) -> str:
    for name in names:
        text = re.sub(BLOCKS[suffix].format(name=re.escape(name)), "", text)
    return text


def without_entries(text: str, names: Iterable[str]) -> str:
    """Return a navigation without the pages of packs, and without headings under which no page is left."""
    directories = "|".join(map(re.escape, names))
    lines = [line for line in text.splitlines() if not re.match(rf"\s*- (?:[^:]+: )?(?:{directories})/", line)]
    # from the last line on, so that a heading whose only entries are empty headings goes too
    kept: list[str] = []
    for line in reversed(lines):
        heading = re.fullmatch(r"(\s*)- [^:]+:", line)
        if heading and not (kept and kept[-1].startswith(heading[1] + " ")):
            continue
        kept.append(line)
    return "\n".join(reversed(kept)) + "\n"


def without_links(text: str, directory: Path) -> str:
    """Text of a page in a folder, without links to files that are not there and table rows that have one."""

    def is_dead(target: str) -> bool:
        file = target.partition("#")[0]
        return bool(file) and not re.match(r"\w+:", target) and not (directory / file).exists()

    lines = [
        line
        for line in text.splitlines(keepends=True)
        if not (line.startswith("|") and any(is_dead(target) for _, target in LINK.findall(line)))
    ]
    return LINK.sub(lambda link: link[1] if is_dead(link[2]) else link[0], "".join(lines))


if __name__ == "__main__":
    main()
