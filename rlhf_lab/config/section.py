"""Base class of sections, i.e. of the top-level keys of a run's config, with the methods that other packages call.

A section belongs to the package that reads it. Its methods answer everything that other packages need to know about it,
so that no other package has to name sections.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from rlhf_lab.config import registry
from rlhf_lab.core.ranges import CheckedSettings

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config

Settings = TypeVar("Settings", bound="Section")


class Section(CheckedSettings):
    """Base class of every section, and of the settings that all kinds of a config group share.

    Class attributes:
        inherited: True if stages before the run use the same section.
    """

    inherited: ClassVar[bool] = False

    def parts(self, config: Config) -> list[tuple[str, Any]]:
        """Return (group, settings) of the components that the stage uses because of this section."""
        return []

    def contradictions(self, config: Config) -> list[str]:
        """Return one message for each setting of another section that this section cannot work with."""
        return []

    def notes(self, config: Config) -> list[str]:
        """Return sentences that a reader of the result must know about these settings; the result stores them."""
        return []

    def leaves_out(self, role: str, config: Config) -> bool:
        """Return True if `needs` names a role for a component that this run lacks, so that nothing is built for it."""
        return False

    def roles_read(self, config: Config) -> set[str]:
        """Return the roles of `needs` that the section reads."""
        return set()

    def key_material(self, config: Config) -> dict[str, Any]:
        """Return what the section adds to a stage's key, the hash under which it is stored.

        Settings that the algorithm uses are part of the key anyway.
        """
        return {}

    def digests(self, config: Config) -> dict[str, str]:
        """Return a map from dotted setting to the digest of the file that it names.

        A stage's key depends on the content of such files.
        """
        return {}

    def local_models(self, config: Config) -> dict[str, str]:
        """Return name → directory or hub id of the models that the stage loads because of this section."""
        return {}


def section(name: str, *, parts: str = "") -> Callable[[type[Settings]], type[Settings]]:
    """Return a class decorator that registers a dataclass as the section `name` of the config.

    Args:
        parts: field that maps names to the settings of kinds of the group of this name, if several options of the
            group can be chosen at once; empty for a section that is not a group.
    """

    def decorate(cls: type[Settings]) -> type[Settings]:
        registry.add_section(name, cls, parts)
        return cls

    return decorate
