"""Measure how large the package is and how it reads, before and after a change: `make mirror`.

Files are parsed, the package is not imported, and nothing fails when a number grows.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import shlex
import subprocess
import sys
import tarfile
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "rlhf_lab"
FIELD_TERMS: dict[str, str] = json.loads(Path(__file__).with_name("words.json").read_text(encoding="utf-8"))
"""Private word → the term that the field uses for it."""

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
DIRECTIVE = re.compile(r"#\s*(type:|noqa|pragma|!)")
"""Start of a comment that is meant for a tool, not for a reader."""
ELLIPTIC = re.compile(r"(Of|Whether|What|Which|Where|How|Whose|Those|That) ")
"""Start of a docstring that does not name the thing it describes."""
GENERATED_PAGES = ("docs/design/", "docs/results/")
"""Directories of pages that are not counted as documentation: design notes and generated results."""

INTRODUCTION = """Size and readability of the package. The page only reports: no test fails when a number grows.

A subpackage is a directory with Python files. An import edge says that one subpackage imports another. Code lines are
neither blank nor comments nor docstrings. Private words are the words of `tests/words.json`, which only this project
uses; the term of the field stands beside each. A word in an identifier counts once, where the name is defined.
Documentation is README, CONTRIBUTING and `docs/` without design notes and generated results."""
EDGE_KINDS = ("core → pack", "pack → core", "pack → pack")
Figures = dict[str, int | float | str]
Mirror = dict[str, Figures]
"""Title of a table → its rows. The first table, `Figures`, is the summary."""


@dataclass(frozen=True)
class SourceFile:
    """One Python file of the package. `path` is relative to the package's directory."""

    path: Path
    text: str

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(ast.parse(self.text, filename=str(self.path))))

    @cached_property
    def comments(self) -> list[str]:
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return [token.string for token in tokens if token.type == tokenize.COMMENT]

    @cached_property
    def docstrings(self) -> list[str]:
        """Strings that are statements of their own, including docstrings of attributes."""
        alone = [node.value for node in self.nodes if isinstance(node, ast.Expr)]
        return [node.value for node in alone if isinstance(node, ast.Constant) and isinstance(node.value, str)]

    @cached_property
    def docstring_lines(self) -> set[int]:
        """Line numbers of the docstrings of modules, classes and functions. Those of attributes count as code."""
        numbers: set[int] = set()
        for node in self.nodes:
            if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTION)) and ast.get_docstring(node) is not None:
                first = node.body[0]
                numbers.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
        return numbers

    def count_code_lines(self) -> int:
        numbered = enumerate(map(str.strip, self.lines), start=1)
        return sum(1 for number, line in numbered if line and line[0] != "#" and number not in self.docstring_lines)

    def count_code_nodes(self) -> int:
        return sum(1 for node in self.nodes if getattr(node, "lineno", None) not in self.docstring_lines)

    def defined_names(self) -> Iterator[str]:
        """Names of functions, classes and parameters, and each name that is assigned to."""
        for node in self.nodes:
            if isinstance(node, (*FUNCTION, ast.ClassDef)):
                yield node.name
            elif isinstance(node, ast.arg):
                yield node.arg
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id

    def imported_modules(self) -> Iterator[list[str]]:
        """Candidates for each absolute import, most specific first: "from a import b" is the module a.b or in a."""
        for node in self.nodes:
            if isinstance(node, ast.Import):
                yield from ([alias.name] for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from ([f"{node.module}.{alias.name}", str(node.module)] for alias in node.names)


def subpackage_of(path: Path) -> str:
    """Directory of a file, as in "rlhf_lab/config"."""
    return (PACKAGE / path.parent).as_posix()


def part_of(subpackage: str) -> str:
    """Name of the pack that a subpackage belongs to, else "core"."""
    parts = subpackage.split("/")
    return parts[2] if parts[1:2] == ["packs"] and len(parts) > 2 else "core"


def import_edges(files: Sequence[SourceFile]) -> dict[tuple[str, str], set[str]]:
    """Map (importing subpackage, imported subpackage) to the importing files.

    Imports inside functions count; module names in strings do not.
    """
    home = {}
    for file in files:
        dotted = ".".join([PACKAGE, *file.path.with_suffix("").parts])
        home[dotted.removesuffix(".__init__")] = subpackage_of(file.path)
    edges: dict[tuple[str, str], set[str]] = defaultdict(set)
    for file in files:
        for candidates in file.imported_modules():
            module = next((name for name in candidates if name in home), None)
            if module and home[module] != subpackage_of(file.path):
                edges[subpackage_of(file.path), home[module]].add(file.path.as_posix())
    return edges


def size_figures(files: Sequence[SourceFile]) -> Figures:
    figures: Figures = {"files": len(files), "lines": sum(len(file.lines) for file in files)}
    parts: dict[str, list[SourceFile]] = {"core": []}
    for file in files:
        parts.setdefault(part_of(subpackage_of(file.path)), []).append(file)
    for part, its_files in parts.items():
        title = part if part == "core" else f"pack {part}"
        figures |= {f"files, {title}": len(its_files), f"lines, {title}": sum(len(file.lines) for file in its_files)}
    return figures


def edge_kind(source: str, target: str) -> str:
    """Kind of an import edge: one of `EDGE_KINDS`, or "inside" if both ends are in the core or in the same pack."""
    parts = part_of(source), part_of(target)
    return "inside" if parts[0] == parts[1] else " → ".join("core" if part == "core" else "pack" for part in parts)


def reading_figures(files: Sequence[SourceFile]) -> Figures:
    nodes = sum(file.count_code_nodes() for file in files)
    code_lines = sum(file.count_code_lines() for file in files)
    nonblank = sum(1 for file in files for line in file.lines if line.strip())
    comments = sum(1 for file in files for comment in file.comments if not DIRECTIVE.match(comment))
    docstrings = [text.strip() for file in files for text in file.docstrings]
    functions = [node.name for file in files for node in file.nodes if isinstance(node, FUNCTION)]
    one_word = [name for name in functions if not name.startswith("__") and "_" not in name.strip("_")]
    return {
        "AST nodes": nodes,
        "AST nodes per code line": nodes / max(1, code_lines),
        "comments per 100 non-blank lines": 100 * comments / max(1, nonblank),
        "docstrings that begin with Of, Whether, What, …": sum(1 for text in docstrings if ELLIPTIC.match(text)),
        "one-word function names, %": 100 * len(one_word) / max(1, len(functions)),
    }


def private_words(texts: Iterable[Iterable[str]]) -> Counter[str]:
    return Counter(word for words in texts for word in words if word in FIELD_TERMS)


def split_words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def split_name(name: str) -> set[str]:
    """Distinct words of an identifier: "reply" and "cache" of `ReplyCache` and `reply_cache`."""
    return set(split_words(re.sub(r"([A-Z])", r"_\1", name)))


def longest_figures(files: Sequence[SourceFile]) -> Figures:
    lines = {file.path.as_posix(): len(file.lines) for file in files}
    file = max(lines, key=lambda path: lines[path])
    functions = [(each.path.as_posix(), node) for each in files for node in each.nodes if isinstance(node, FUNCTION)]
    lengths = [((node.end_lineno or 0) - node.lineno + 1, f"{path}: {node.name}") for path, node in functions]
    length, function = max(lengths, default=(0, "none"))
    return {
        "longest file": file,
        "lines, longest file": lines[file],
        "longest function": function,
        "lines, longest function": length,
        **{f"lines, {path}": lines[path] for path in ("config/root.py", "config/check.py") if path in lines},
    }


def text_figures(checkout: Checkout) -> Figures:
    """Private words of tests and documentation."""
    tests = private_words(split_words(text) for file in checkout.tests for text in (*file.comments, *file.docstrings))
    test_lines = sum(len(file.lines) for file in checkout.tests)
    pages = private_words(map(split_words, checkout.pages))
    page_lines = sum(len(text.splitlines()) for text in checkout.pages)
    page_words = sum(len(split_words(text)) for text in checkout.pages)
    return {
        "private words per 1,000 lines, docstrings and comments of tests": 1000 * tests.total() / max(1, test_lines),
        "private words per 1,000 lines, documentation": 1000 * pages.total() / max(1, page_lines),
        "private words per 1,000 words, documentation": 1000 * pages.total() / max(1, page_words),
    }


def measure(checkout: Checkout) -> Mirror:
    files = checkout.package
    subpackages = Counter[str]()
    classes: dict[str, list[str]] = defaultdict(list)
    for file in files:
        subpackages[subpackage_of(file.path)] += len(file.lines)
        for node in file.nodes:
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(file.path.as_posix())
    identifiers = private_words(split_name(name) for file in files for name in file.defined_names())
    prose = private_words(split_words(text) for file in files for text in (*file.comments, *file.docstrings))
    shared = {name: paths for name, paths in classes.items() if len(paths) > 1}
    edges = import_edges(files)
    kinds = Counter(edge_kind(*pair) for pair in edges)
    thousands = sum(subpackages.values()) / 1000 or 1
    summary = {
        **size_figures(files),
        "subpackages (directories with Python files)": len(subpackages),
        "lines of the largest subpackage": max(subpackages.values()),
        "import edges between subpackages": len(edges),
        **{f"import edges, {kind}": kinds[kind] for kind in EDGE_KINDS},
        "class names that stand for several classes": len(shared),
        "classes with such a name": sum(map(len, shared.values())),
        **reading_figures(files),
        "private words per 1,000 lines, identifiers": identifiers.total() / thousands,
        "private words per 1,000 lines, docstrings and comments": prose.total() / thousands,
        **text_figures(checkout),
        **longest_figures(files),
    }
    outward = {pair: paths for pair, paths in edges.items() if edge_kind(*pair) == "core → pack"}
    return {
        "Figures": summary,
        "Lines of each subpackage": dict(sorted(subpackages.items())),
        "Imports from core to packs": {" → ".join(pair): ", ".join(sorted(outward[pair])) for pair in sorted(outward)},
        "Class names that stand for several classes": {name: ", ".join(shared[name]) for name in sorted(shared)},
        "Private words": {f"{word} ({FIELD_TERMS[word]})": n for word, n in (identifiers + prose).most_common()},
    }


@dataclass(frozen=True)
class Checkout:
    """Text of a checkout that is measured.

    Attributes:
        label: name of its directory, or abbreviated hash of its commit.
        package: Python files of the package, with paths relative to it.
        tests: Python files of `tests/`.
        pages: text of each page of documentation.
    """

    label: str
    package: list[SourceFile]
    tests: list[SourceFile]
    pages: list[str]


def read_checkout(source: str) -> Checkout:
    """Read the directory of a checkout, or a git revision of this checkout."""
    directory = Path(source)
    if directory.is_dir():
        label, texts = directory.resolve().name, _read_directory(directory)
    else:
        label, texts = _read_revision(source)
    package = [SourceFile(path.relative_to(PACKAGE), text) for path, text in texts.items() if _is_code(path, PACKAGE)]
    if not package:
        sys.exit(f"{source} has no Python files in {PACKAGE}/: name a checkout of the project or a git revision")
    tests = [SourceFile(path, text) for path, text in texts.items() if _is_code(path, "tests")]
    pages = [text for path, text in texts.items() if _is_documentation(path)]
    return Checkout(label, package, tests, pages)


def _is_code(path: Path, directory: str) -> bool:
    return path.suffix == ".py" and path.parts[0] == directory


def _is_documentation(path: Path) -> bool:
    is_page = path.parts[0] == "docs" or path.name in ("README.md", "CONTRIBUTING.md")
    return is_page and path.suffix == ".md" and not path.as_posix().startswith(GENERATED_PAGES)


def _read_directory(directory: Path) -> dict[Path, str]:
    paths = [path for name in (PACKAGE, "tests") for path in sorted((directory / name).rglob("*.py"))]
    paths += [*sorted(directory.glob("*.md")), *sorted((directory / "docs").rglob("*.md"))]
    return {path.relative_to(directory): path.read_text("utf-8") for path in paths}


def _read_revision(source: str) -> tuple[str, dict[Path, str]]:
    try:
        commit = git("rev-parse", "--short", "--verify", f"{source}^{{commit}}").decode().strip()
        archive = git("archive", commit)
    except (subprocess.CalledProcessError, OSError):
        sys.exit(f"{source} is neither a directory nor a git revision with {PACKAGE}/: name a checkout or a revision")
    texts = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            file = tar.extractfile(member) if member.name.endswith((".py", ".md")) else None
            if file:
                texts[Path(member.name)] = file.read().decode()
    return commit, texts


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=True).stdout


def shown(value: int | float | str | None) -> str:
    if isinstance(value, int | float):
        return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
    return value or "–"


def table(title: str, columns: Mapping[str, Figures]) -> str:
    """Markdown table with one column per measured tree. A row that only one tree has shows "–" in the other."""
    *older, latest = columns.values()
    labels = dict.fromkeys([*latest, *(label for column in older for label in column)])
    rows = [[title, *columns]]
    rows += ([label, *(shown(column.get(label)) for column in columns.values())] for label in labels)
    widths = [max(min(len(cell), 60) for cell in cells) for cells in zip(*rows, strict=True)]  # lists may be longer
    pattern = "| " + " | ".join(f"{{:<{width}}}" for width in widths) + " |"
    lines = [pattern.format(*row) for row in rows]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("source", nargs="?", default=str(ROOT), help="checkout or git revision; default: this checkout")
    parser.add_argument("--against", metavar="SOURCE", help="checkout or git revision to compare with, shown first")
    parser.add_argument(
        "--verbose", action="store_true", help="list subpackages, core → pack imports, class names and words"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures and all lists as JSON")
    parser.add_argument("--page", type=Path, metavar="FILE.md", help="write the figures and all lists as a page")
    options = parser.parse_args()

    sources = {"before": options.against, "after": options.source} if options.against else {"": options.source}
    mirrors: dict[str, Mirror] = {}
    for title, source in sources.items():
        checkout = read_checkout(source)
        name = f"{title} ({checkout.label})" if title else checkout.label
        mirrors[name] = mirror = measure(checkout)
    columns = {title: {label: each[title] for label, each in mirrors.items()} for title in mirror}
    tables = [table(title, columns[title]) for title in columns if any(columns[title].values())]
    print("\n\n".join(tables if options.verbose else tables[:1]))
    if options.json:
        options.json.write_text(json.dumps(mirrors, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if options.page:
        head = f"# Mirror\n\n{INTRODUCTION}\n\n- `python tests/mirror.py {shlex.join(sys.argv[1:])}`"
        options.page.write_text("\n\n".join([head, *tables]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
