"""Hydra's access to the files of a user's own directory (`--config-dir`): within size limits and that directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins import file_config_source
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from omegaconf import OmegaConf
from omegaconf.base import Container
from omegaconf.errors import OmegaConfBaseException

from rlhf_lab.config.inventory import read_yaml
from rlhf_lab.core.errors import ConfigError

HEADER_CHARACTERS = 512
"""Number of characters at the start of a file in which Hydra looks for lines such as `# @package _global_`."""
MAX_INTERPOLATIONS = 1000
"""Maximum number of replaced interpolations (${key}) in one config. A chain of values that each name the next one twice
would double that number with every value."""


@cache
def register_source() -> None:
    """Make Hydra read files with `FileConfigSource`. Runs once per process."""
    Plugins.instance()  # registers Hydra's own source, which is replaced here
    SourcesRegistry.instance().types[FileConfigSource.scheme()] = FileConfigSource


class FileConfigSource(file_config_source.FileConfigSource):
    """Directory of config files. Raises ConfigError for a file that cannot be read.

    The class has the name of Hydra's own source. A worker of a parallel sweep receives the registry with this class in
    it, and Hydra then refuses to register its own class under another name.
    """

    def load_config(self, config_path: str) -> ConfigResult:
        """Read one file within size limits; return its values with Hydra's header."""
        file = Path(self.path, self._normalize_file_name(config_path))
        values = read_yaml(file)
        _check_keys(values, file)
        try:
            config = OmegaConf.create(values)
        except OmegaConfBaseException as error:  # an interpolation with a syntax error
            raise ConfigError(
                f"{file}: {str(error).splitlines()[0]}; write ${{key}} with the dotted key of a setting"
            ) from None
        header = self._get_header_dict(file.read_text(encoding="utf-8-sig")[:HEADER_CHARACTERS])
        return ConfigResult(config=config, path=f"{self.scheme()}://{self.path}", provider=self.provider, header=header)

    def is_config(self, config_path: str) -> bool:
        """Return True if a path inside the directory is a config file."""
        self._check_inside(config_path)
        return super().is_config(config_path)

    def is_group(self, config_path: str) -> bool:
        """Return True if a path inside the directory is a config group."""
        self._check_inside(config_path)
        return super().is_group(config_path)

    def _check_inside(self, config_path: str) -> None:
        """Raise ConfigError for a path outside the directory. Links inside it may point anywhere."""
        if os.path.isabs(config_path) or os.path.normpath(config_path).split(os.sep)[0] == os.pardir:
            raise ConfigError(
                f"{self.path}: a defaults list names {config_path!r}, which is outside this directory; move the file "
                "into the directory and name it by its path there"
            )


def _check_keys(values: dict[str, Any], file: Path) -> None:
    """Raise ConfigError for keys that are not text and for a malformed defaults list, which Hydra reports unclearly."""
    # YAML reads unquoted keys such as 1, true or null as values.
    wrong_keys = [key for key in values if not isinstance(key, str)]
    if wrong_keys:
        raise ConfigError(f"{file}: the key {wrong_keys[0]} is read as a value, not as text; put it in quotes")
    expected = "expected a list such as [dpo_base, override /algorithm: dpo]"
    defaults = values.get("defaults", [])
    if not isinstance(defaults, list):
        raise ConfigError(f"{file}: defaults={str(defaults)[:40]} is not a list; {expected}")
    for number, choice in enumerate(defaults, start=1):
        if not _is_choice(choice):
            raise ConfigError(f"{file}: entry {number} of defaults, {str(choice)[:40]}, is not an option; {expected}")


def _is_choice(choice: Any) -> bool:
    """Return True for an entry of a defaults list that names an option, or a group and its options."""
    if not isinstance(choice, dict):
        return isinstance(choice, str)
    if len(choice) != 1:
        return False
    ((group, option),) = choice.items()
    options = option if isinstance(option, list) else [option]
    return isinstance(group, str) and all(isinstance(name, (str, type(None))) for name in options)


@contextmanager
def bounded_interpolations() -> Iterator[None]:
    """Raise ConfigError as soon as a config needs more than `MAX_INTERPOLATIONS` replacements in this block."""
    # OmegaConf has no limit of its own, so its resolver is replaced by a counting one during the block.
    resolve = Container._resolve_interpolation_from_parse_tree
    count = 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count > MAX_INTERPOLATIONS:
            raise ConfigError(
                f"the settings need more than {MAX_INTERPOLATIONS} replacements of ${{key}}; write the values out "
                "where they are used"
            )
        return resolve(*args, **kwargs)

    Container._resolve_interpolation_from_parse_tree = counted  # type: ignore[method-assign]
    try:
        yield
    finally:
        Container._resolve_interpolation_from_parse_tree = resolve  # type: ignore[method-assign]
