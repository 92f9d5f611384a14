"""Which code decides a result: digests of the definitions that a stage's implementation reaches.

A stored result may stand for a new run only if the code that made it is the code that would make it. Starting from
the functions that build a stage (its algorithm, data, rewards, sampler), names are followed through the source text,
over imports, to every function, class and constant they use; each gets a digest. Nothing is imported, so this takes
less than a second and needs no torch.

What does not count: comments, docstrings, formatting, and definitions that nothing on the way refers to. So an edit of
a report, a tracker or another algorithm's loss leaves a stage as it is. Names are followed as text: a class is taken
whole, a module that is passed around as a value or imported with a star is taken whole, and code that is only named in
a string is not seen (`registry.build` is such a place, which is why the caller names the kinds that are in play).
Other libraries are not followed; the manifest of a run keeps their versions.
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
    # Composing and checking settings: the resulting values are in the settings key.
    *(
        f"config.{name}"
        for name in ("compose", "root", "schema", "registry", "overrides", "smoke", "words", "docstrings", "matching")
    ),
    # Around a stage: commands, files, processes, errors. They decide whether there is a result, not its numbers.
    *(f"core.{name}" for name in ("errors", "files", "seal", "signals", "machine", "invocation", "console", "imports")),
    "core.redaction",
    # What numbers are called in tables and reports.
    "core.metrics",
    *("main", "cli", "notebook", "stages", "sweeps", "memory", "doctor"),
    # Whatever reads a result.
    *("trackers", "results", "studies", "figures", "reports", "monitoring.silence"),
)
"""Modules and packages of the lab that cannot change what a stage computes."""


STAR = "* of "
"""Before a module's name: what `from module import *` binds, which is taken whole."""


@dataclass(frozen=True)
class Reference:
    """A name of a module; None stands for the whole module."""

    module: str
    name: str | None = None


@dataclass
class _Source:
    """A parsed module.

    Attributes:
        root: folder in which its top-level package or file lies; imports are looked up there.
        aliases: name → what it was imported from.
        definitions: top-level name → the statements that define or change it.
        effects: top-level statements that do something else, such as a call.
        content: digest of the file, to see whether it is edited while a process runs.
        is_text: false for what cannot be parsed as Python, such as a compiled extension; its bytes are hashed.
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
        """How a person names the file: relative to the folder its package lies in."""
        return self.path.relative_to(self.root).as_posix()


def digests(references: Iterable[Reference], files: Iterable[Path] = ()) -> dict[str, str]:
    """Digest of every definition that the references reach.

    Args:
        references: where to start, in the lab or in a plug-in's package.
        files: source files outside any package, such as a user's reward; each counts whole, with what it imports from
            its own folder.

    Returns:
        "rlhf_lab/losses/preference.py:dpo" → digest; sorted.
    """
    sources = [_open_file(path) for path in files]
    return dict(_reached((*references, *(Reference(source.name) for source in sources))))


@cache
def _reached(references: tuple[Reference, ...]) -> dict[str, str]:
    """`digests` of modules as this process has read them: the many jobs of a study start from the same few places."""
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


def edited(labels: Iterable[str]) -> list[str]:
    """Files among those of `digests` whose text has changed since this process read it."""
    files = {label.partition(":")[0] for label in labels}
    return sorted(
        source.label
        for source in _READ.values()
        if source.label in files and (not source.path.is_file() or _content(source.path) != source.content)
    )


def differences(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """What differs between two results of `digests`, a file each: 'losses/preference.py (dpo, ipo)'."""
    names: dict[str, list[str]] = {}
    for label in sorted(before.keys() | after.keys()):
        if before.get(label) != after.get(label):
            file, _, name = label.partition(":")
            names.setdefault(file.removeprefix("rlhf_lab/"), []).append(name or "top level")
    return [f"{file} ({_shortened(changed)})" for file, changed in names.items()]


def _shortened(names: list[str]) -> str:
    text = ", ".join(names[:4])
    return f"{text} and {len(names) - 4} more" if len(names) > 4 else text


def _is_neutral(module: str) -> bool:
    top, _, inner = module.partition(".")
    return top == "rlhf_lab" and (inner in NEUTRAL or inner.partition(".")[0] in NEUTRAL)


def _selected(source: _Source, name: str | None) -> Iterator[str]:
    """Names of the definitions that a reference to `name` takes from a module; "" are its effects."""
    if source.effects or not source.is_text:
        yield ""
    if name is None:
        yield from source.definitions
    elif name in source.definitions:
        yield name


def _forwarded(source: _Source, name: str | None) -> list[Reference]:
    """Where to look next for a name that the module imports, or that is one of its submodules."""
    if name is None:
        return list(source.aliases.values())
    if name in source.definitions:
        return []
    if name in source.aliases:
        return [source.aliases[name]]
    submodule = f"{source.name}.{name}"
    return [Reference(submodule)] if _source(submodule) else [Reference(source.name)]


def _uses(source: _Source, nodes: Sequence[ast.AST]) -> Iterator[Reference]:
    """What code refers to: names of its module, imported names, attributes of imported modules.

    Args:
        nodes: names, attributes and imports of the code, each before what is inside it.
    """
    aliases = {**source.aliases, **_imports(source, nodes)}
    modules = {alias for alias, target in aliases.items() if target.name is None}
    qualified: set[ast.AST] = set()
    # Which names a star import binds is unknown without running it, so its module is always taken, whole.
    yield from (target for alias, target in aliases.items() if alias.startswith(STAR))
    for node in nodes:
        # In `module.name` the attribute node comes first, so its `module` is in `qualified` when its turn comes.
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            qualified.add(node.value)
            yield Reference(aliases[node.value.id].module, node.attr)
        elif isinstance(node, ast.Name) and node not in qualified:
            if node.id in aliases:
                yield aliases[node.id]
            elif node.id in source.definitions:
                yield Reference(source.name, node.id)


def _imports(source: _Source, nodes: Iterable[ast.AST]) -> dict[str, Reference]:
    """Name → what it stands for, of the imports among some nodes that lead to code which is followed."""
    result: dict[str, Reference] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for item in node.names:
                if _source(item.name, source):
                    # `import a.b` binds `a`; taking b whole is safe and such imports are rare
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


def _absolute(source: _Source, node: ast.ImportFrom) -> str:
    """The module that `from … import` names, relative ones resolved."""
    if not node.level:
        return node.module or ""
    package = source.name if source.path.name == "__init__.py" else source.name.rpartition(".")[0]
    for _ in range(node.level - 1):
        package = package.rpartition(".")[0]
    return ".".join(filter(None, [package, node.module]))


_READ: dict[str, _Source] = {}
"""Module → its source as this process first read it."""


def _source(module: str, importer: _Source | None = None) -> _Source | None:
    """A module of the lab, of a plug-in, or of the folder that `importer` lies in; None for other libraries."""
    if module in _READ:
        return _READ[module]
    located = _locate(module, importer)
    if located is None:
        return None
    file, root = located
    return _read(module, file, root)


@cache
def _package_root(top: str) -> Path | None:
    """The folder that a top-level package or module outside the lab lies in."""
    spec = find_spec(top)
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return None
    path = Path(spec.origin)
    return path.parent.parent if path.name == "__init__.py" else path.parent


def _locate(module: str, importer: _Source | None) -> tuple[Path, Path] | None:
    """(file, root) of a module's source."""
    top = module.partition(".")[0]
    if top == "rlhf_lab":
        root: Path | None = PACKAGE.parent
    elif importer is None:
        root = _package_root(top)
    elif importer.name.partition(".")[0] == top:
        root = importer.root
    else:
        # A file beside the user's own is the user's too; one beside an installed package or the lab is a library.
        in_library = "site-packages" in importer.root.parts or importer.root == PACKAGE.parent
        root = None if in_library else importer.root
    if root is None:
        return None
    path = root.joinpath(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return file, root
    return None


def _open_file(path: Path) -> _Source:
    """A file by itself, or a module of the package whose `__init__.py` lies beside it."""
    path = path.resolve()
    root = path.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    if module in _READ and _READ[module].content != _content(path):
        # Functions of the user are loaded afresh at each use, so a long-lived process (a notebook) may see edits.
        forget(module)
    return _READ.get(module) or _read(module, path, root)


def forget(module: str | None = None) -> None:
    """Read a module afresh when it is asked for next, or all modules."""
    if module is None:
        _READ.clear()
        _package_root.cache_clear()
    else:
        del _READ[module]
    _definition.cache_clear()
    _reached.cache_clear()


def _content(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def _read(module: str, path: Path, root: Path) -> _Source:
    """Parse a module and keep it for this process."""
    source = _READ[module] = _Source(module, path, root, _content(path))
    try:
        statements = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError):
        source.is_text = False
        return source
    for statement in statements:
        _add_statement(source, statement)
    return source


def _add_statement(source: _Source, statement: ast.stmt) -> None:
    """Enter a top-level statement under the names it defines, or among the effects."""
    if not _is_definition(statement):  # imports inside a function bind names there alone
        source.aliases.update(_imports(source, ast.walk(statement)))
    if isinstance(statement, (ast.Import, ast.ImportFrom)) or _is_docstring(statement) or _is_for_types(statement):
        return
    names = _bound_names(statement)
    for name in names:
        source.definitions.setdefault(name, []).append(statement)
    if not names:
        source.effects.append(statement)


def _is_definition(statement: ast.stmt) -> bool:
    return isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_for_types(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and ast.unparse(statement.test).endswith("TYPE_CHECKING")


def _bound_names(statement: ast.stmt) -> list[str]:
    """Names that a top-level statement defines or changes: `TABLE["a"] = f` changes TABLE."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [statement.name]
    if isinstance(statement, ast.Assign):
        targets: list[ast.expr] = statement.targets
    elif isinstance(statement, (ast.AnnAssign, ast.AugAssign)):
        targets = [statement.target]
    else:  # if, try, for, with: whatever is assigned or defined in it
        nodes = list(ast.walk(statement))
        assigned = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
        defined = [
            node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        ]
        return [*assigned, *defined]
    names = []
    for target in targets:
        while isinstance(target, (ast.Attribute, ast.Subscript)):
            target = target.value
        names += [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]
    return names


@cache
def _definition(module: str, name: str) -> tuple[str, tuple[Reference, ...]]:
    """(digest, references) of the statements that define a name of a module already read; "" are the effects."""
    source = _READ[module]
    if not source.is_text:
        return source.content[:16], ()
    statements = source.definitions[name] if name else source.effects
    words: list[str] = []
    nodes: list[ast.AST] = []
    for statement in statements:
        _serialise(statement, words, nodes)
    uses = tuple(dict.fromkeys(_uses(source, nodes)))
    return sha256("\n".join(words).encode()).hexdigest()[:16], uses


_IGNORED_FIELDS = {"ctx", "type_comment", "kind", "type_ignores"}
"""Fields of syntax nodes that do not change what the code does."""

_REFERRING = (ast.Name, ast.Attribute, ast.Import, ast.ImportFrom)


def _serialise(value: object, words: list[str], nodes: list[ast.AST]) -> None:
    """The structure of a syntax tree as words, without docstrings; its names, attributes and imports go to `nodes`.

    Empty fields are left out: Python versions differ in which fields a node has, and a digest must not.
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
