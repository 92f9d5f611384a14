"""A section: one top-level key of a run's config, and the questions that the lab asks of each of them.

A section belongs to the package that reads it. Whatever another part of the lab has to know of it is answered here by a
method, so that no other part names sections.
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
    """Base class of every section, and of the settings that every kind of a config group shares.

    Class attributes:
        inherited: True if stages before the run take the section over from it.
        gold_role: role of `needs` that makes this section say what responses are worth; empty if it cannot.
        smoke, smoke_real: setting → its maximum at `size=smoke`; the second for models that are not made from scratch.
    """

    inherited: ClassVar[bool] = False
    gold_role: ClassVar[str] = ""

    def parts(self, config: Config) -> list[tuple[str, Any]]:
        """(group, settings) of the components that the stage uses because of this section."""
        return []

    def contradictions(self, config: Config) -> list[str]:
        """What other sections of the config say that this one cannot work with; one message each."""
        return []

    def leaves_out(self, role: str, config: Config) -> bool:
        """Return True if `needs` names the role for a part that this run does not have, so nothing is built for it."""
        return False

    def roles_read(self, config: Config) -> set[str]:
        """Roles of `needs` that the section reads."""
        return {self.gold_role} if self.gold_role and config.algorithm.measures_gold else set()

    def key_material(self, config: Config) -> dict[str, Any]:
        """What the section adds to the key of a stage besides the settings of the sections that the algorithm uses."""
        return {}

    def digests(self, config: Config) -> dict[str, str]:
        """Dotted setting → digest of the file that it names: in a key a file counts by its content."""
        return {}

    def gold(self, corpus: Any, run: Any) -> Any:
        """The corpus of a run with an oracle that says what responses are worth; for sections with a `gold_role`."""
        raise NotImplementedError(f"{type(self).__name__}.gold")

    def definitions(self, config: Config) -> list[tuple[str, str]]:
        """(module, name) of code that the stage runs because of this section, its components apart."""
        return []

    def local_models(self, config: Config) -> dict[str, str]:
        """Name → folder or hub id of models that the stage loads because of this section."""
        return {}


def section(name: str, *, parts: str = "") -> Callable[[type[Settings]], type[Settings]]:
    """Class decorator: this dataclass is the section `name` of the config.

    Args:
        parts: field that maps names to the settings of kinds of the group of this name, for a group of which several
            options are chosen at once; empty for a section that is no group.
    """

    def decorate(cls: type[Settings]) -> type[Settings]:
        registry.add_section(name, cls, parts)
        return cls

    return decorate
