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
"""Beginning of a comment that is meant for a tool instead of a reader."""
ELLIPTIC = re.compile(r"(Of|Whether|What|Which|Where|How|Whose|Those|That) ")
"""Beginning of a docstring that does not name the thing it describes."""

INTRODUCTION = """How large the package is and how it reads. It only reports: nothing fails when a number grows.

A room is a folder with Python files, and an arrow says that one room imports another. Code lines are neither blank nor
comments nor docstrings. Private words are those of `tests/words.json`, which only this project uses; the field's term
stands beside each. A word in an identifier counts once where the name is defined."""
ARROW_KINDS = ("core → pack", "pack → core", "pack → pack")
Figures = dict[str, int | float | str]
Mirror = dict[str, Figures]
"""Title of a table → its rows. The first table, `Figures`, is the summary."""


@dataclass(frozen=True)
class SourceFile:
    """One Python file of the package. `path` is relative to the package's folder."""

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
        """Strings that stand alone as a statement, those of attributes included."""
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


def room_of(path: Path) -> str:
    """Folder of a file, as in "rlhf_lab/config"."""
    return (PACKAGE / path.parent).as_posix()


def part_of(room: str) -> str:
    """Name of the pack that a room belongs to, else "core"."""
    parts = room.split("/")
    return parts[2] if parts[1:2] == ["packs"] and len(parts) > 2 else "core"


def import_arrows(files: Sequence[SourceFile]) -> dict[tuple[str, str], set[str]]:
    """(importing room, imported room) → the importing files. Imports in functions count, names in strings do not."""
    home = {}
    for file in files:
        dotted = ".".join([PACKAGE, *file.path.with_suffix("").parts])
        home[dotted.removesuffix(".__init__")] = room_of(file.path)
    arrows: dict[tuple[str, str], set[str]] = defaultdict(set)
    for file in files:
        for candidates in file.imported_modules():
            module = next((name for name in candidates if name in home), None)
            if module and home[module] != room_of(file.path):
                arrows[room_of(file.path), home[module]].add(file.path.as_posix())
    return arrows


def size_figures(files: Sequence[SourceFile]) -> Figures:
    figures: Figures = {"files": len(files), "lines": sum(len(file.lines) for file in files)}
    parts: dict[str, list[SourceFile]] = {"core": []}
    for file in files:
        parts.setdefault(part_of(room_of(file.path)), []).append(file)
    for part, its_files in parts.items():
        title = part if part == "core" else f"pack {part}"
        figures |= {f"files, {title}": len(its_files), f"lines, {title}": sum(len(file.lines) for file in its_files)}
    return figures


def arrow_kind(source: str, target: str) -> str:
    """The one of `ARROW_KINDS` that an arrow between two rooms is, or "inside" the core or one pack."""
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


def measure(files: Sequence[SourceFile]) -> Mirror:
    rooms = Counter[str]()
    classes: dict[str, list[str]] = defaultdict(list)
    for file in files:
        rooms[room_of(file.path)] += len(file.lines)
        for node in file.nodes:
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(file.path.as_posix())
    identifiers = private_words(split_name(name) for file in files for name in file.defined_names())
    prose = private_words(split_words(text) for file in files for text in (*file.comments, *file.docstrings))
    shared = {name: paths for name, paths in classes.items() if len(paths) > 1}
    arrows = import_arrows(files)
    kinds = Counter(arrow_kind(*pair) for pair in arrows)
    thousands = sum(rooms.values()) / 1000 or 1
    summary = {
        **size_figures(files),
        "rooms (folders with Python files)": len(rooms),
        "lines of the largest room": max(rooms.values()),
        "arrows between rooms": len(arrows),
        **{f"arrows, {kind}": kinds[kind] for kind in ARROW_KINDS},
        "class names that stand for several classes": len(shared),
        "classes with such a name": sum(map(len, shared.values())),
        **reading_figures(files),
        "private words per 1,000 lines, identifiers": identifiers.total() / thousands,
        "private words per 1,000 lines, docstrings and comments": prose.total() / thousands,
        **longest_figures(files),
    }
    outward = {pair: paths for pair, paths in arrows.items() if arrow_kind(*pair) == "core → pack"}
    return {
        "Figures": summary,
        "Lines of each room": dict(sorted(rooms.items())),
        "Imports from core to packs": {" → ".join(pair): ", ".join(sorted(outward[pair])) for pair in sorted(outward)},
        "Class names that stand for several classes": {name: ", ".join(shared[name]) for name in sorted(shared)},
        "Private words": {f"{word} ({FIELD_TERMS[word]})": n for word, n in (identifiers + prose).most_common()},
    }


def read_source(source: str) -> tuple[str, list[SourceFile]]:
    """Label and package files of a checkout's folder, or of a git revision of this checkout."""
    folder = Path(source)
    if folder.is_dir():
        paths = sorted((folder / PACKAGE).rglob("*.py"))
        if not paths:
            sys.exit(f"{source} has no Python files in {PACKAGE}/: name a checkout of the project or a git revision")
        files = [SourceFile(path.relative_to(folder / PACKAGE), path.read_text("utf-8")) for path in paths]
        return folder.resolve().name, files
    try:
        commit = git("rev-parse", "--short", "--verify", f"{source}^{{commit}}").decode().strip()
        archive = git("archive", commit, PACKAGE)
    except (subprocess.CalledProcessError, OSError):
        sys.exit(f"{source} is neither a folder nor a git revision with {PACKAGE}/: name a checkout or a revision")
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        members = [(Path(member.name), tar.extractfile(member)) for member in tar if member.name.endswith(".py")]
        return commit, [SourceFile(path.relative_to(PACKAGE), file.read().decode()) for path, file in members if file]


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
    parser.add_argument("--verbose", action="store_true", help="list rooms, core → pack imports, class names and words")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures and all lists as JSON")
    parser.add_argument("--page", type=Path, metavar="FILE.md", help="write the figures and all lists as a page")
    options = parser.parse_args()

    sources = {"before": options.against, "after": options.source} if options.against else {"": options.source}
    mirrors: dict[str, Mirror] = {}
    for title, source in sources.items():
        label, files = read_source(source)
        mirrors[f"{title} ({label})" if title else label] = mirror = measure(files)
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
