"""Settings of `data=mbpp`. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability
from rlhf_lab.core.ranges import Ge
from rlhf_lab.data.file_settings import PromptFileSettings


@register("data", "mbpp")
@dataclass(frozen=True)
class MBPP(PromptFileSettings):
    """Programming tasks in words with assertions as hidden tests: MBPP, its sanitized version, or files of their form.

    A row has `text` or `prompt` (the task), `code` (a solution) and `test_list` (assertions); `test_setup_code` or
    `test_imports` run before the tests. The prompt is the task with the first assertions, which state the name of the
    function. All assertions are hidden tests, also those that are shown.

    Args:
        shown_tests: maximum number of assertions in the prompt; the published results show three.
    """

    provides: ClassVar[Capability] = Capability.TEXT | Capability.DEMONSTRATIONS
    fixed_columns: ClassVar[tuple[str, ...]] = ("text", "prompt", "code")
    shown_tests: Annotated[int, Ge(0)] = 3
