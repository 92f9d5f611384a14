"""Protocols of the settings in each config group: attributes that any package may use, regardless of the chosen kind.

The classes themselves are in higher-level packages and in plug-ins. Attributes of a single kind are read only by the
code of that kind. Most attributes of `model` and `algorithm` are of this sort, so `Config` does not type those two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field
from typing import Any, ClassVar, Protocol, Self

from rlhf_lab.core.capabilities import Capability
from rlhf_lab.core.ranges import BySize


class DataSource(Protocol):
    """Settings of `data=…`; see `data.settings.DataSettings`."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    by_size: ClassVar[BySize]

    @property
    def capabilities(self) -> Capability: ...

    @property
    def is_generated(self) -> bool: ...

    @property
    def world(self) -> str: ...

    def sources_by_name(self) -> Mapping[str, Any]: ...

    @property
    def max_turns(self) -> int: ...

    def of_run(self, seed: int) -> Self: ...


class JudgeSource(Protocol):
    """Settings of `judge=…`; see `judges.backends.settings.JudgeSettings`."""

    @property
    def reads_truth(self) -> bool: ...

    @property
    def library(self) -> str: ...

    @property
    def is_greedy(self) -> bool: ...

    def identity(self) -> Mapping[str, Any]: ...
