"""The page of the Python API: signature and docstring of each name that `rlhf_lab` exports."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from enum import Enum

import rlhf_lab
from docs_site.page import Page, paragraphs


def page() -> Page:
    """Return the page of all exported names."""
    text = (
        "# Python API\n\nNames that `from rlhf_lab import …` provides. `run` and `load_reward` are for scripts and "
        "notebooks; the others are for [plug-ins](/CONTRIBUTING.md).\n"
    )
    for name, module in rlhf_lab.EXPORTS.items():
        text += f"\n## {name}\n\n{_description(name, module)}"
    return Page("reference/python_api.md", "Python API", text)


def _description(name: str, module: str) -> str:
    exported = getattr(rlhf_lab, name)
    is_enum = inspect.isclass(exported) and issubclass(exported, Enum)
    signature = "" if is_enum else _signature(exported)
    keyword = "class " if inspect.isclass(exported) else ""
    text = f"```python\n{keyword}{name}{signature}  # {module}\n```\n\n{paragraphs(inspect.getdoc(exported) or '')}"
    for method, function in _methods(exported):
        text += f"\n### {name}.{method}\n\n```python\n{method}{_signature(function)}\n```\n\n"
        text += paragraphs(inspect.getdoc(function) or "")
    return text


def _signature(function: Callable[..., object]) -> str:
    """Return a signature without the quotation marks of annotations that are not evaluated."""
    return re.sub(r"(?:(?<=: )|(?<=> ))'([^']*)'", r"\1", str(inspect.signature(function)))


def _methods(exported: object) -> list[tuple[str, Callable[..., object]]]:
    """Return the public methods that a class defines itself and documents."""
    if not inspect.isclass(exported):
        return []
    defined = [(name, value) for name, value in vars(exported).items() if inspect.isfunction(value)]
    return [(name, value) for name, value in defined if name[0] != "_" and value.__doc__]
