"""Digests of the code that a result depends on: all definitions that a stage's implementation reaches.

A stored result is valid for a new run only if the current code equals the code that produced it. Starting from the
functions that build a stage (algorithm, data, rewards, sampler), names are followed through the source text, across
imports, to every function, class and constant in use. Each of these gets a digest. Nothing is imported, so this takes
less than a second and needs no torch.

Ignored are comments, docstrings, formatting, and definitions that nothing refers to. An edit of a report, a tracker or
another algorithm's loss therefore keeps a stage valid. Names are followed as text. A class counts in full, and so does
a module that is passed as a value or imported with a star. Data files of the package, such as rubrics, count in the
definition that finds them by `__file__`. Code that is only named in a string is not detected: `registry.build` is such
a case, so the caller lists the kinds in use. Other libraries are not followed; the manifest of a run records their
versions.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
NEUTRAL = (
    # Composition and checks of settings: the resulting values are in the settings key.
    *("config.compose", "config.root", "config.schema", "config.registry", "config.overrides", "config.smoke"),
    *("config.words", "config.docstrings", "config.matching"),
    *("config.command_line", "config.typed_overrides", "config.job_configs"),
    # Surroundings of a stage: commands, files, processes, errors, names of metrics. They do not affect numbers.
    *("core.errors", "core.files", "core.bounded_files", "core.yaml_files", "core.checksums", "core.signals"),
    *("core.machine", "core.invocation", "core.console", "core.progress", "core.imports", "core.redaction"),
    *("core.metrics", "main", "cli", "notebook", "stages", "sweeps", "memory", "doctor"),
    # Readers of results.
    *("trackers", "results", "studies", "figures", "reports", "monitoring.silence"),
)
"""Modules and packages of rlhf_lab that cannot change what a stage computes."""

STAR = "* of "
"""Prefix of a module's name in `aliases` for `from module import *`. Such a module counts in full."""


@dataclass(frozen=True)
class Reference:
    """A name of a module; None stands for the entire module."""

    module: str
    name: str | None = None


@dataclass
class _ParsedModule:
    """A parsed module.

    Attributes:
        root: directory of its top-level package or file, in which imports are looked up.
        content: digest of the file, to detect edits while a process runs.
        aliases: name → what it was imported from.
        definitions: top-level name → the statements that define or change it.
        effects: top-level statements with other effects, such as calls.
        is_text: False if the file is not valid Python, such as a compiled extension; then its bytes are hashed.
    """

    name: str
    path: Path
    root: Path
    content: str
    aliases: dict[str, Reference] = field(default_factory=dict)
    definitions: dict[str, list[ast.stmt]] = field(default_factory=dict)
    effects: list[ast.stmt] = field(default_factory=list)
    is_text: bool = True

    @cached_property
    def label(self) -> str:
        return self.path.relative_to(self.root).as_posix()


def digests(references: Iterable[Reference], files: Iterable[Path] = ()) -> dict[str, str]:
    """Return the digest of every definition that the references reach.

    Args:
        references: entry points in rlhf_lab or in a plug-in's package.
        files: source files outside any package, such as a user's reward. Each counts in full, with its imports from the
            same directory.

    Returns:
        "rlhf_lab/losses/preference.py:dpo" → digest; sorted.
    """
    sources = [_open_file(path) for path in files]
    # In a notebook, modules that these files import may have been edited since they were read.
    roots = {source.root for source in sources}
    users = [known for known in _READ.values() if known.root in roots and not known.name.startswith("rlhf_lab.")]
    if any(map(_has_changed, users)):
        for known in users:
            forget(known.name)
        sources = [_open_file(path) for path in files]
    return dict(_reached((*references, *(Reference(source.name) for source in sources))))


@cache
def _reached(references: tuple[Reference, ...]) -> dict[str, str]:
    """Return `digests` of modules as read by this process. Cached because all jobs of a study share entry points."""
    pending = [*references]  # a graph search over references
    visited: set[Reference] = set()
    result: dict[str, str] = {}
    while pending:
        reference = pending.pop()
        if reference in visited or _is_neutral(reference.module):
            continue
        visited.add(reference)
        source = _source(reference.module)
        if source is None:
            continue
        for name in _selected(source, reference.name):
            label = f"{source.label}:{name}" if name else source.label
            if label not in result:
                result[label], uses = _definition(source.name, name)
                pending += uses
        pending += _forwarded(source, reference.name)
    return dict(sorted(result.items()))


def package_definitions() -> set[tuple[str, str]]:
    """Return (name, digest) of every definition of rlhf_lab; the name of a file's other statements is empty."""
    definitions = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        source = _open_file(path)
        definitions |= {(name, _definition(source.name, name)[0]) for name in _selected(source, None)}
    return definitions


def edited(labels: Iterable[str]) -> list[str]:
    """Return those files of `digests` whose text has changed since this process read it."""
    files = {label.partition(":")[0] for label in labels}
    return sorted(source.label for source in _READ.values() if source.label in files and _has_changed(source))


def differences(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return the changes between two results of `digests`, one per file: 'losses/preference.py (dpo, ipo)'."""
    names: dict[str, list[str]] = {}
    for label in sorted(before.keys() | after.keys()):
        if before.get(label) != after.get(label):
            file, _, name = label.partition(":")
            names.setdefault(file.removeprefix("rlhf_lab/"), []).append(name or "top level")
    lines = []
    for file, changed in names.items():
        more = f" and {len(changed) - 4} more" if len(changed) > 4 else ""
        lines.append(f"{file} ({', '.join(changed[:4])}{more})")
    return lines


def _is_neutral(module: str) -> bool:
    top, _, inner = module.partition(".")
    return top == "rlhf_lab" and (inner in NEUTRAL or inner.partition(".")[0] in NEUTRAL)


def _selected(source: _ParsedModule, name: str | None) -> Iterator[str]:
    """Yield the definitions of a module that a reference to `name` selects; "" is code that runs at every import."""
    if source.effects or not source.is_text:
        yield ""
    if name is None:
        yield from source.definitions
    elif name in source.definitions:
        yield name


def _forwarded(source: _ParsedModule, name: str | None) -> list[Reference]:
    """Return the references to follow for a name that the module imports, or that is one of its submodules."""
    if name is None:
        return list(source.aliases.values())
    if name in source.definitions:
        return []
    if name in source.aliases:
        return [source.aliases[name]]
    submodule = f"{source.name}.{name}"
    return [Reference(submodule)] if _source(submodule) else [Reference(source.name)]


def _uses(source: _ParsedModule, nodes: Sequence[ast.AST]) -> Iterator[Reference]:
    """Yield what nodes, each before its children, refer to: names of their module, imported ones, and attributes."""
    aliases = {**source.aliases, **_imports(source, nodes)}
    modules = {alias for alias, target in aliases.items() if target.name is None}
    qualified: set[ast.AST] = set()
    # The names that a star import binds are unknown without running it, so its module always counts in full.
    yield from (target for alias, target in aliases.items() if alias.startswith(STAR))
    for node in nodes:
        # In `module.name` the attribute node comes first, so its `module` is already in `qualified` when it is visited.
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            qualified.add(node.value)
            yield Reference(aliases[node.value.id].module, node.attr)
        elif isinstance(node, ast.Name) and node not in qualified:
            if node.id in aliases:
                yield aliases[node.id]
            elif node.id in source.definitions:
                yield Reference(source.name, node.id)


def _imports(source: _ParsedModule, nodes: Iterable[ast.AST]) -> dict[str, Reference]:
    """Return imported name → target, for the imports among `nodes` whose target is code that is followed."""
    result: dict[str, Reference] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for item in node.names:
                if _source(item.name, source):  # `import a.b` binds `a`; counting b in full is safe
                    result[item.asname or item.name.partition(".")[0]] = Reference(item.name)
        elif isinstance(node, ast.ImportFrom):
            module = _absolute(source, node)
            if _source(module, source) is None:
                continue
            for item in node.names:
                submodule = f"{module}.{item.name}"
                if item.name == "*":
                    result[STAR + module] = Reference(module)
                elif _source(submodule, source):
                    result[item.asname or item.name] = Reference(submodule)
                else:
                    result[item.asname or item.name] = Reference(module, item.name)
    return result


def _absolute(source: _ParsedModule, node: ast.ImportFrom) -> str:
    """Return the module that `from … import` names, with relative imports resolved."""
    if not node.level:
        return node.module or ""
    package = source.name if source.path.name == "__init__.py" else source.name.rpartition(".")[0]
    for _ in range(node.level - 1):
        package = package.rpartition(".")[0]
    return ".".join(filter(None, [package, node.module]))


_READ: dict[str, _ParsedModule] = {}
"""Module → its source as first read by this process."""


def _source(module: str, importer: _ParsedModule | None = None) -> _ParsedModule | None:
    """Return a module of rlhf_lab, of a plug-in, or of the importer's directory; None for other libraries."""
    known = _READ.get(module)
    if known is not None and (importer is None or importer.root == known.root):
        return known
    located = _locate(module, importer)
    if located is None:
        return known
    file, root = located
    if known is not None and known.path == file:
        return known
    if known is not None:  # next to other user code, which this process has read for another stage
        forget(module)
    return _read(module, file, root)


@cache
def _package_root(top: str) -> Path | None:
    """Return the directory of a top-level package or module outside rlhf_lab."""
    spec = find_spec(top)
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return None
    path = Path(spec.origin)
    return path.parent.parent if path.name == "__init__.py" else path.parent


def _locate(module: str, importer: _ParsedModule | None) -> tuple[Path, Path] | None:
    top = module.partition(".")[0]
    if top == "rlhf_lab":
        root: Path | None = PACKAGE.parent
    elif importer is None:
        root = _package_root(top)
    elif importer.name.partition(".")[0] == top:
        root = importer.root
    else:
        # A file next to the user's own is the user's too; next to an installed package or rlhf_lab it is a library.
        in_library = "site-packages" in importer.root.parts or importer.root == PACKAGE.parent
        root = None if in_library else importer.root
    if root is None:
        return None
    path = root.joinpath(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return file, root
    return None


def _open_file(path: Path) -> _ParsedModule:
    """Read a single file, or a module of the package whose `__init__.py` is in the same directory."""
    path = path.resolve()
    root = path.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    known = _READ.get(module)
    if known is not None and (known.path != path or known.content != _content(path)):
        # User functions are reloaded at each use, so a long-running process (a notebook) may encounter edits, and files
        # of the same name in other directories.
        forget(module)
    return _READ.get(module) or _read(module, path, root)


def forget(module: str | None = None) -> None:
    """Read a module, or all modules, again at the next use."""
    if module is None:
        _READ.clear()
        _package_root.cache_clear()
    else:
        del _READ[module]
    _definition.cache_clear()
    _reached.cache_clear()


def _has_changed(source: _ParsedModule) -> bool:
    return not source.path.is_file() or _content(source.path) != source.content


def _content(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def _read(module: str, path: Path, root: Path) -> _ParsedModule:
    source = _READ[module] = _ParsedModule(module, path, root, _content(path))
    try:
        statements = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError):
        source.is_text = False
        return source
    for statement in statements:
        _add_statement(source, statement)
    return source


def _add_statement(source: _ParsedModule, statement: ast.stmt) -> None:
    """Record a top-level statement under the names it defines, or in `effects` if it defines none."""
    if not isinstance(statement, DEFINITIONS):  # imports inside a function only bind names there
        source.aliases.update(_imports(source, ast.walk(statement)))
    is_for_types = isinstance(statement, ast.If) and ast.unparse(statement.test).endswith("TYPE_CHECKING")
    if isinstance(statement, (ast.Import, ast.ImportFrom)) or _is_docstring(statement) or is_for_types:
        return
    names = _bound_names(statement)
    for name in names:
        source.definitions.setdefault(name, []).append(statement)
    if not names:
        source.effects.append(statement)


DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _bound_names(statement: ast.stmt) -> list[str]:
    """Return the names that a top-level statement defines or changes: `TABLE["a"] = f` changes TABLE."""
    if isinstance(statement, DEFINITIONS):
        return [statement.name]
    if isinstance(statement, ast.Assign):
        targets: list[ast.expr] = statement.targets
    elif isinstance(statement, (ast.AnnAssign, ast.AugAssign)):
        targets = [statement.target]
    else:  # if, try, for, with: all names that are assigned or defined inside
        nodes = list(ast.walk(statement))
        assigned = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
        return assigned + [node.name for node in nodes if isinstance(node, DEFINITIONS)]
    names = []
    for target in targets:
        # `a.b[c] = d` changes `a`, so the target is reduced to its base name.
        while isinstance(target, (ast.Attribute, ast.Subscript)):
            target = target.value
        names += [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]
    return names


@cache
def _definition(module: str, name: str) -> tuple[str, tuple[Reference, ...]]:
    """Return (digest, references) of a definition in a module already read; "" stands for the module's `effects`."""
    source = _READ[module]
    if not source.is_text:
        return source.content[:16], ()
    statements = source.definitions[name] if name else source.effects
    words: list[str] = []
    nodes: list[ast.AST] = []
    for statement in statements:
        _serialise(statement, words, nodes)
    uses = tuple(dict.fromkeys(_uses(source, nodes)))
    if source.root == PACKAGE.parent and any(isinstance(node, ast.Name) and node.id == "__file__" for node in nodes):
        files = sorted(file for pattern in DATA for file in source.path.parent.rglob(pattern))
        words += [text for file in files for text in (file.name, _content(file))]
    return sha256("\n".join(words).encode()).hexdigest()[:16], uses


DATA = ("*.yml", "*.jsonl")
"""Files beside a module, which finds them by its `__file__`, with content that results depend on, such as rubrics."""

_IGNORED_FIELDS = {"ctx", "type_comment", "kind", "type_ignores"}
"""Fields of syntax nodes that do not affect behaviour."""

_REFERRING = (ast.Name, ast.Attribute, ast.Import, ast.ImportFrom)


def _serialise(value: object, words: list[str], nodes: list[ast.AST]) -> None:
    """Serialise the structure of a syntax tree without docstrings to `words`; collect referring nodes in `nodes`.

    Empty fields are omitted because Python versions differ in the fields of a node, and the digest must not.
    """
    if isinstance(value, ast.AST):
        if isinstance(value, _REFERRING):
            nodes.append(value)
        words.append(type(value).__name__)
        for name in value._fields:
            item = getattr(value, name, None)
            if item is None or item == [] or name in _IGNORED_FIELDS:
                continue
            if name == "body" and isinstance(item, list):
                item = [statement for statement in item if not _is_docstring(statement)]
            words.append(name)
            _serialise(item, words, nodes)
        words.append(")")
    elif isinstance(value, list):
        for item in value:
            _serialise(item, words, nodes)
    else:
        words.append(repr(value))
