"""Where a file of the repository is on the site, and links between pages rewritten to that.

Documents, pictures and recipes have places of their own. Any other file that a page links to, such as a module, is
shown as a page of its source, so that the site needs no other server.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from functools import cache

from docs_site.page import ROOT, Page
from rlhf_lab.config import inventory

MOVED = {
    "README.md": "README.md",
    "docs": "pages.md",
    "docs/README.md": "pages.md",
    "docs/design": "design/README.md",
    "docs/results": "results/README.md",
    "recipes": "reference/recipes/README.md",
    "recipes/README.md": "reference/recipes/README.md",
    "launchers": "launchers/README.md",
    "launchers/README.md": "launchers/README.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "AGENTS.md": "project/agents.md",
    ".github/SECURITY.md": "project/security.md",
}
"""File or directory of the repository → its page on the site, where the two have different paths."""

LINK = re.compile(r"\]\(([^)\s]+)\)")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".sh": "bash", ".toml": "toml"}


@cache
def recipe_pages() -> dict[str, str]:
    """Return file of a recipe, from the root of the repository → its page on the site."""
    files = {path.resolve().relative_to(ROOT).as_posix(): name for name, path in inventory.recipes().items()}
    return {file: f"reference/recipes/{name}.md" for file, name in files.items()}


def home(file: str) -> str:
    """Return the path on the site of a file or directory of the repository."""
    if file in MOVED:
        return MOVED[file]
    if file in recipe_pages():
        return recipe_pages()[file]
    if file.startswith("docs/"):
        return file.removeprefix("docs/").replace(".ipynb", ".md")
    return f"source/{file}/README.md" if (ROOT / file).is_dir() else f"source/{file}.md"


def rewritten(page: Page, note: Callable[[str], object]) -> str:
    """Return the text of a page with links that resolve on the site. Links in blocks of code stay as they are.

    Args:
        note: called with every file of the repository that the page links to.
    """

    def resolved(match: re.Match[str]) -> str:
        name, hash_sign, anchor = match[1].partition("#")
        if not name or re.match(r"\w+:", name):
            return match[0]
        if name.startswith("@"):
            path = name.removeprefix("@")
        else:
            start = "" if name.startswith("/") else page.base
            file = posixpath.normpath(posixpath.join(start, name.lstrip("/")))
            note(file)
            path = home(file)
        return f"]({posixpath.relpath(path, posixpath.dirname(page.path) or '.')}{hash_sign}{anchor})"

    pieces = re.split(r"(^```.*?^```)", page.text, flags=re.S | re.M)
    return "".join(piece if piece.startswith("```") else LINK.sub(resolved, piece) for piece in pieces)


def source_page(file: str) -> Page:
    """Return the page that shows a file of the repository, or lists a directory."""
    path = ROOT / file
    if path.is_dir():
        names = sorted(child.name for child in path.iterdir() if child.name[0] not in "._")
        text = f"# {file}\n\n" + "".join(f"- `{name}`\n" for name in names)
    else:
        language = LANGUAGES.get(path.suffix, "text")
        text = f"# {file}\n\n````{language}\n{path.read_text(encoding='utf-8')}\n````\n"
    return Page(home(file), file, text)
