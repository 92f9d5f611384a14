"""Functions that other packages offer as rewards, by the name of their entry point. Imports no torch of its own."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from rlhf_lab.errors import ConfigError

GROUP = "rlhf_lab.rewards"


def function(name: str) -> Any:
    """The function behind an entry point. Raises ConfigError where there is none, or it is no function."""
    found = {point.name: point for point in entry_points(group=GROUP)}
    where = f"reward.terms.callable.name={name}"
    if name not in found:
        known = ", ".join(sorted(found)) or "none is installed"
        raise ConfigError(
            f"{where} is no entry point of the group {GROUP} ({known}); declare it "
            f'in the pyproject.toml of your package: [project.entry-points."{GROUP}"], '
            f'{name} = "module:function"'
        )
    place = found[name].value
    try:
        loaded = found[name].load()
    except Exception as error:  # the module is the user's, and importing it can fail in any way
        raise ConfigError(
            f"{where} is declared as {place}, which cannot be imported ({type(error).__name__}: {error}); correct the "
            f'line {name} = "module:function", or the module'
        ) from error
    if not callable(loaded):
        raise ConfigError(
            f"{where} is declared as {place}, which is {type(loaded).__name__} and not a function of (prompts, "
            "responses)"
        )
    return loaded
